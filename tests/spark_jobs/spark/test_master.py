"""What it means that Spark does not start: a standalone master may be away. No JVM is started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from include.errors import ServiceUnreachable
from spark_jobs.spark import session
from tests.conftest import SetSettings

ILLEGAL_STATE = "java.lang.IllegalStateException"


class Refused(Py4JJavaError):
    """What Py4J raises for a Java exception, without the exception."""

    def __init__(self, kind: str) -> None:
        named = SimpleNamespace(getName=lambda: kind)
        self.java_exception = SimpleNamespace(getClass=lambda: named, _target_id="")
        self.exception_cmd = ""

    def __str__(self) -> str:
        return "Cannot call methods on a stopped SparkContext."


@pytest.mark.parametrize(
    ("master", "kind", "expected"),
    [
        ("spark://127.0.0.1:9", ILLEGAL_STATE, ServiceUnreachable),
        ("spark://127.0.0.1:9", "java.lang.IllegalArgumentException", Refused),
        ("local[2]", ILLEGAL_STATE, Refused),
    ],
)
def test_service_is_unreachable_when_spark_stops_at_its_start_with_a_standalone_master(
    monkeypatch: pytest.MonkeyPatch,
    set_settings: SetSettings,
    tmp_path: Path,
    master: str,
    kind: str,
    expected: type[Exception],
) -> None:
    def refuse(_: Any) -> None:
        raise Refused(kind)

    set_settings(TIDEMARK_HOME=str(tmp_path), TIDEMARK_SPARK_MASTER=master)
    monkeypatch.setattr(session.SparkSession.Builder, "getOrCreate", refuse)
    with pytest.raises(expected) as raised:
        session.build_session("x")
    if isinstance(raised.value, ServiceUnreachable):
        assert "spark://127.0.0.1:9 does not answer" in str(raised.value)
        assert "TIDEMARK_SPARK_MASTER" in raised.value.remedy


@pytest.mark.parametrize(
    ("master", "authenticate"),
    [("local[*]", "true"), ("local[2,4]", "true"), ("spark://127.0.0.1:9", None), ("yarn", None)],
)
def test_driver_asks_who_connects_when_spark_makes_the_secret_for_it_alone(
    monkeypatch: pytest.MonkeyPatch, set_settings: SetSettings, tmp_path: Path, master: str, authenticate: str | None
) -> None:
    made = []

    def refuse(builder: Any) -> None:
        made.append(builder._options)
        raise Refused("java.lang.IllegalArgumentException")

    set_settings(TIDEMARK_HOME=str(tmp_path), TIDEMARK_SPARK_MASTER=master)
    monkeypatch.setattr(session.SparkSession.Builder, "getOrCreate", refuse)
    with pytest.raises(Refused):
        session.build_session("x")
    assert [each.get("spark.authenticate") for each in made] == [authenticate]
