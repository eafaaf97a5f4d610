"""Topics that exist already, for a user who may neither create topics nor read their settings, or without ids."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Uuid

from include import kafka
from include.errors import ServiceUnreachable, TopicRecreated, UsageError
from include.kafka import TopicLimits, topics
from include.kafka.sources import check_topics_read, describe_source
from include.pipelines.spec import KafkaTopics
from tests.conftest import SetSettings

DENIED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
MISSING = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)


def answer(result: Any) -> Future[Any]:
    """A future with the result, or with the error."""
    future: Future[Any] = Future()
    if isinstance(result, KafkaError):
        future.set_exception(KafkaException(result))
    else:
        future.set_result(result)
    return future


class Admin:
    """Kafka's admin client of a user without the rights Create and DescribeConfigs, as librdkafka reports it."""

    def __init__(self, described: Any, config: Any = DENIED) -> None:
        self.described, self.config = described, config

    def list_topics(self, **_: Any) -> Any:
        """The names of all topics that the user may describe."""
        return SimpleNamespace(topics={})

    def create_topics(self, new: list[Any], **_: Any) -> dict[str, Future[Any]]:
        return {each.topic: answer(DENIED) for each in new}

    def describe_topics(self, wanted: Any, **_: Any) -> dict[str, Future[Any]]:
        return {topic: answer(self.described) for topic in ("t",)}

    def describe_configs(self, resources: list[Any], **_: Any) -> dict[Any, Future[Any]]:
        return {resource: answer(self.config) for resource in resources}


EXISTS = SimpleNamespace(topic_id="id", partitions=[0, 1])
COMPACT = {"cleanup.policy": SimpleNamespace(value="compact")}
DELETE = {"cleanup.policy": SimpleNamespace(value="delete")}
BOTH = {"cleanup.policy": SimpleNamespace(value="compact,delete")}


@pytest.fixture(autouse=True)
def no_broker(set_settings: SetSettings) -> None:
    set_settings(TIDEMARK_KAFKA_BOOTSTRAP="127.0.0.1:1")
    topics._warn_unreadable.cache_clear()


def use(monkeypatch: pytest.MonkeyPatch, admin: Admin) -> None:
    monkeypatch.setattr(topics, "admin", lambda: admin)


def test_topic_is_used_when_it_exists_and_the_user_must_not_create_any(
    monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    use(monkeypatch, Admin(EXISTS))
    assert kafka.create_topic("t", 2) is False
    assert said == []
    for _ in range(2):
        assert kafka.create_topic("t", 2, compacted=True) is False
        assert not kafka.is_compacted("t")
        assert kafka.topic_limits("t") == TopicLimits(1_000_000 - 1024, is_compacted=False)
    assert said == ["this user must not read the settings of the topic t (DescribeConfigs), so they are not checked"]


def test_topic_must_still_be_compacted_when_its_settings_may_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Admin(EXISTS, COMPACT))
    assert kafka.create_topic("t", 2, compacted=True) is False


@pytest.mark.parametrize("config", [DELETE, BOTH])
def test_command_is_named_when_retention_would_delete_values_of_a_speed_view(
    monkeypatch: pytest.MonkeyPatch, config: Any
) -> None:
    use(monkeypatch, Admin(EXISTS, config))
    with pytest.raises(UsageError, match=rf"cleanup\.policy={config['cleanup.policy'].value},") as refused:
        kafka.create_topic("t", 2, compacted=True)
    assert (
        "kafka-configs.sh --bootstrap-server 127.0.0.1:1 --alter --entity-type topics --entity-name t "
        "--add-config cleanup.policy=compact" in refused.value.remedy
    )


def test_topic_and_the_right_are_named_when_it_is_missing_and_must_not_be_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, Admin(MISSING))
    with pytest.raises(UsageError, match=r"no topic t exists.*Create.*deployment\.md"):
        kafka.create_topic("t", 2)


def test_topic_and_the_right_are_named_when_it_must_not_even_be_described(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Admin(DENIED))
    for ask in (lambda: kafka.create_topic("t", 2), lambda: kafka.describe_topics(["t"])):
        with pytest.raises(ServiceUnreachable, match="refuses this user a right about t"):
            ask()


def test_topic_is_refused_when_the_brokers_give_it_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """All would have the same one, also a topic that was deleted and created again."""
    use(monkeypatch, Admin(SimpleNamespace(topic_id=Uuid(0, 0), partitions=[0])))
    with pytest.raises(UsageError, match=r"the brokers give the topic t no id — .*Kafka 2\.8"):
        kafka.describe_topics(["t"])


def test_right_is_named_when_a_pattern_s_topic_must_not_be_described_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Admin(DENIED))
    source = KafkaTopics(pattern="t|u")
    with pytest.raises(ServiceUnreachable, match="refuses this user a right about t"):
        check_topics_read("p", source, {"t": "id"}, describe_source(source), ())


def test_topic_is_gone_when_a_pattern_s_topic_is_not_known_by_name_either(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Admin(MISSING))
    source = KafkaTopics(pattern="t|u")
    with pytest.raises(TopicRecreated, match="no longer exists"):
        check_topics_read("p", source, {"t": "id"}, describe_source(source), ())


def test_message_is_as_large_as_the_topic_takes_when_that_is_less_than_the_client_sends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, Admin(EXISTS, {"max.message.bytes": SimpleNamespace(value="50000")}))
    assert kafka.topic_limits("t") == TopicLimits(50_000 - 1024, is_compacted=False, batch=50_000)
    use(monkeypatch, Admin(EXISTS, {"max.message.bytes": SimpleNamespace(value="8000000")}))
    assert kafka.topic_limits("t") == TopicLimits(1_000_000 - 1024, is_compacted=False, batch=1_000_000)
    assert kafka.topic_limits("t", 9_000_000).largest == 8_000_000 - 1024
