"""A right that brokers refuse to Spark's own client is told as such: no record and no code is to blame."""

from __future__ import annotations

import pytest

from include.errors import ServiceUnreachable
from spark_jobs.spark import failures
from spark_jobs.spark.failures import translate
from spark_jobs.spark.thrown import Thrown
from tests.conftest import SetSettings

KAFKA = "org.apache.kafka.common.errors."
ABOVE = (f"{KAFKA}ApiException", "org.apache.kafka.common.KafkaException", "java.lang.RuntimeException")


@pytest.fixture(autouse=True)
def address(set_settings: SetSettings) -> None:
    set_settings(TIDEMARK_KAFKA_BOOTSTRAP="broker.invalid:9092")


def meaning_of(monkeypatch: pytest.MonkeyPatch, *kinds: str, message: str) -> ServiceUnreachable:
    failed = Thrown(("org.apache.spark.SparkException",), "Job aborted", "org.apache.spark.Scheduler", "", {})
    cause = Thrown((*(KAFKA + kind for kind in kinds), *ABOVE), message, "org.apache.kafka.FetchCollector", "", {})
    monkeypatch.setattr(failures, "chain_of", lambda _: iter([failed, cause]))
    meaning = translate(RuntimeError())
    assert isinstance(meaning, ServiceUnreachable)
    return meaning


@pytest.mark.parametrize("kind", ["TopicAuthorizationException", "GroupAuthorizationException"])
def test_missing_right_is_told_when_spark_may_not_read(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    said = "Not authorized to access topics: [door-new]"
    meaning = meaning_of(monkeypatch, kind, "AuthorizationException", message=said)
    assert f"refuses this user a right: {kind}: {said}" in meaning.message
    assert meaning.remedy.startswith("grant the right that is missing")


@pytest.mark.parametrize("kind", ["SaslAuthenticationException", "SslAuthenticationException"])
def test_password_and_certificate_are_named_when_brokers_refuse_them_to_spark(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    meaning = meaning_of(monkeypatch, kind, "AuthenticationException", message="Authentication failed")
    assert f"refuses us: {kind}: Authentication failed" in meaning.message
    assert "TIDEMARK_KAFKA_PROPERTIES" in meaning.remedy
