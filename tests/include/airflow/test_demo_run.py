"""What the demo says where it cannot go on."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from include.airflow import demo_run
from include.airflow.demo_run import run_demo, tell_failures
from include.errors import ReconciliationFailed, UsageError
from include.ledger import lineage
from include.ledger.intervals import attempts
from include.ledger.streams import launches
from include.offsets import TopicIdentity
from include.pipelines import load_pipeline
from include.pipelines.spec import KafkaTopics
from include.services import supervisor
from include.times import every
from tests.conftest import Home, SetSettings
from tests.support import s3_server
from tests.support.attempts import begin_attempt
from tests.support.shipped import UNUSED


@pytest.mark.services
def test_each_driver_that_failed_is_told_once_with_its_last_line_when_airflow_starts_others(
    postgres: Home, tmp_path: Path
) -> None:
    pipeline, said, told = load_pipeline("nest_cameras"), list[str](), {"of-an-earlier-demo"}
    for name, code in (("of-an-earlier-demo", 6), ("refused", 6), ("stopped", 0), ("runs", None)):
        log = tmp_path / f"{name}.log"
        log.write_text(f"a line before\n{name}: check the bucket\n")
        launches.note_intent(name, "nest_cameras", "here", str(log))
        if code is not None:
            launches.note_end(name, code)
    launches.note_unsubmitted("full", "nest_cameras", 1, "No space left on device: tmp")
    for _ in range(2):
        tell_failures(pipeline, told, said.append)
    assert said == [
        "  the stream's driver ended with exit code 6: refused: check the bucket",
        "  the stream's driver could not be submitted: No space left on device: tmp",
    ]


class ApiOfARun:
    """Airflow's API while one run of the interval's DAG has failed; schedules alike give runs alike ids."""

    address = "http://airflow"

    def runs(self, dag: str) -> list[dict[str, str]]:
        return [{"dag_run_id": "scheduled__2026-11-20T05:00:00+00:00", "state": "failed"}]

    def tasks(self, dag: str, run: str) -> dict[str, str]:
        return {"pin_ranges": "success", "reconcile": "failed"}


@pytest.mark.services
def test_demo_takes_exit_code_and_verdict_of_its_own_run_when_another_pipeline_has_a_run_of_the_same_id(
    postgres: Home,
) -> None:
    run_by = "airflow scheduled__2026-11-20T05:00:00+00:00"
    for name, code in (("nest_cameras", 3), ("isp_hits", 6)):
        attempts.end_attempt(begin_attempt(name, run_by=run_by), code, {"pipeline": name})
    api: Any = ApiOfARun()
    with pytest.raises(ReconciliationFailed, match=r"interval__nest_cameras scheduled__.* failed in reconcile"):
        demo_run._wait_for_run(api, "nest_cameras", set(), lambda _: None)
    assert lineage.exit_code_of_run("nest_cameras", run_by) == 3
    assert lineage.exit_code_of_run("isp_hits", run_by) == 6
    assert lineage.verdict_of_run("isp_hits", run_by)["pipeline"] == "isp_hits"
    assert lineage.verdict_of_run("nest_cameras", run_by)["pipeline"] == "nest_cameras"
    assert lineage.exit_code_of_run("wiki_changes", run_by) is None
    assert lineage.verdict_of_run("wiki_changes", run_by) == {}


@pytest.mark.parametrize("missing", ["generator", "topic"])
def test_demo_starts_nothing_and_says_what_is_missing_when_it_cannot_produce(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr(demo_run, "_prepare_lake", lambda _: pytest.fail("nothing is prepared"))
    monkeypatch.setattr(supervisor, "up", lambda *_: pytest.fail("no service is started"))
    pipeline, said = load_pipeline("isp_hits"), "name one with --topic"
    if missing == "topic":
        pipeline = replace(pipeline, source=KafkaTopics(pattern="door-.*"))
    else:
        pipeline, said = replace(pipeline, name=UNUSED), f"include/producing/messages/{UNUSED}.py is not there"
    with pytest.raises(UsageError, match=said):
        run_demo(pipeline, lambda _: None)


@pytest.mark.parametrize(
    ("schedule", "span"),
    [("15m", timedelta(hours=3)), ("1h", timedelta(hours=3)), ("6h", timedelta(hours=12)), ("1d", timedelta(days=2))],
)
def test_events_fill_the_last_complete_interval_when_a_demo_produces_them(
    monkeypatch: pytest.MonkeyPatch, schedule: str, span: timedelta
) -> None:
    class Enough(Exception):
        """The messages are produced."""

    given: dict[str, Any] = {}

    def produced(*_: object, **arguments: object) -> None:
        given.update(arguments)
        raise Enough

    monkeypatch.setattr(demo_run, "_prepare_lake", lambda _: None)
    monkeypatch.setattr(supervisor, "up", lambda *_: None)
    monkeypatch.setattr(demo_run, "produce", produced)
    said: list[str] = []
    pipeline = replace(load_pipeline("isp_hits"), source=KafkaTopics(pattern="door-.*"), schedule=every(schedule))
    with pytest.raises(Enough):
        run_demo(pipeline, said.append, topic="door-bells")
    assert given["span"] == span
    assert given["topic"] == "door-bells"
    hours = span // timedelta(hours=1)
    assert said == [f"producing 20000 messages over the last {hours} hours" if hours < 48 else
                    "producing 20000 messages over the last 2 days"]  # fmt: skip


def test_demo_starts_nothing_when_the_settings_name_a_broker_whose_topic_has_records(
    monkeypatch: pytest.MonkeyPatch,
    set_settings: SetSettings,
) -> None:
    class Started(Exception):
        """Something is prepared."""

    def prepare(_: object) -> None:
        raise Started

    def describe(topics: list[str]) -> dict[str, TopicIdentity]:
        return {topic: TopicIdentity(topic, "id", 2) for topic in topics if topic in topics_there}

    pipeline = load_pipeline("isp_hits")
    ends, topics_there = {1: 7}, {pipeline.source.named[0]}
    monkeypatch.setattr(demo_run, "_prepare_lake", prepare)
    monkeypatch.setattr(demo_run.kafka, "describe_topics", describe)
    monkeypatch.setattr(
        demo_run.kafka, "offset_bounds", lambda every: {tp: (5, ends.get(tp.partition, 5)) for tp in every}
    )
    with pytest.raises(Started):
        run_demo(pipeline, lambda _: None)
    set_settings(TIDEMARK_KAFKA_BOOTSTRAP="broker:9092")
    with pytest.raises(UsageError, match=f"the topic {pipeline.source.named[0]} at broker:9092 has records") as said:
        run_demo(pipeline, lambda _: None)
    assert "unset TIDEMARK_KAFKA_BOOTSTRAP" in said.value.remedy
    # The ledger of the present one may know the topic of that broker.
    assert "a TIDEMARK_HOME of its own" in said.value.remedy
    ends.clear()
    with pytest.raises(Started):
        run_demo(pipeline, lambda _: None)


@pytest.mark.slow
@pytest.mark.services
def test_demo_starts_nothing_and_says_so_when_the_bucket_is_missing_or_refuses(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with s3_server.serving(tmp_path_factory.mktemp("s3")) as server:
        home = s3_server.BucketHome(tmp_path_factory.mktemp("home"), server)
        missing = home.run("demo", expect=6, TIDEMARK_LAKE="s3a://no-such-bucket/tidemark")
        refused = home.run("demo", expect=6, AWS_SECRET_ACCESS_KEY="wrong-canary")
    assert missing.stderr == (
        "tidemark: the lake s3a://no-such-bucket/tidemark: the bucket does not exist — "
        "create it, or correct TIDEMARK_LAKE\n"
    )
    assert f"the lake s3a://{s3_server.BUCKET}/tidemark: " in refused.stderr
    assert "the credentials, then start again" in refused.stderr
    assert "wrong-canary" not in refused.stderr
    assert not (home.path / "services").exists()
