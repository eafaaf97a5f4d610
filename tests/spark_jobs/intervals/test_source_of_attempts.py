"""From where an attempt's interval is built when its topic is no longer as it was pinned: real services and Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from include.errors import TopicRecreated
from include.intervals.pinning import pin_interval
from include.ledger.database import session
from include.ledger.intervals import attempts
from include.ledger.intervals.states import Source
from include.ledger.models import Build
from include.offsets import TopicPartition
from include.pipelines import load_pipeline
from include.pipelines.spec import KafkaTopics
from include.streams import generations
from include.versions import code_version
from tests.conftest import Home
from tests.support.topic_log import Log, hour

pytestmark = [pytest.mark.spark, pytest.mark.services]


def test_attempt_is_built_from_the_archive_when_its_topic_left_and_was_deleted_since(
    in_process: Home, spark: Any
) -> None:
    from spark_jobs.intervals.build import build
    from spark_jobs.reconciliation.interval_run import IntervalRun

    nest = replace(load_pipeline("nest_cameras"), views=(), reports=())
    nest = replace(nest, archive=replace(nest.archive, partition_by={"device": "device_id"}))
    kept, former, both = (
        replace(nest, source=KafkaTopics(subscribe=topics))
        for topics in (("tried-kept",), ("tried-former",), ("tried-kept", "tried-former"))
    )
    logs = Log(kept), Log(former, 1)
    for log in logs:
        log.create(1)
        log.send(0, 0.2, 0.8)
        log.archive()
    pinned = pin_interval(both, hour(0), pinned_by="test")
    version = code_version(nest.name)
    attempt = attempts.begin_attempt(pinned, run_by="test", code_version=version, source=Source.KAFKA)
    generations.unsubscribe(kept, "tried-former", reason="over", left_by="test@host")
    logs[1].delete()
    build(IntervalRun(spark, kept, attempts.load_attempt(attempt)))
    built = attempts.load_attempt(attempt)
    assert built.source is Source.ARCHIVE
    assert built.findings.build is not None
    assert built.findings.build.reconciliation.unexplained == 0
    # Nothing was landed here.
    gaps = {tp: counts.gaps for tp, counts in built.findings.build.fates.items()}
    assert gaps == {TopicPartition(topic, 0): 2 for topic in both.source.subscribe}
    with session() as ledger:
        assert ledger.get_one(Build, built.build).partition_by == {"device": "device_id"}


def test_nothing_is_built_from_kafka_when_the_topic_was_created_again_since_it_was_pinned(
    in_process: Home, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_jobs.intervals import build
    from spark_jobs.reconciliation.interval_run import IntervalRun

    # A name of its own, because the other test pins intervals too.
    monkeypatch.setattr(build, "code_version", lambda *_: "1")
    nest = replace(load_pipeline("nest_cameras"), views=(), reports=())
    log = Log(replace(nest, source=KafkaTopics(subscribe=("tried-again",)), name="tried_again"))
    log.create(1)
    log.send(0, 0.2, 0.8)
    log.archive()
    pinned = pin_interval(log.pipeline, hour(0), pinned_by="test")
    log.delete()
    log.create(1)
    # The same offsets have other records.
    log.send(0, 0.4, 0.6)
    attempt = attempts.begin_attempt(pinned, run_by="test", code_version="1", source=Source.KAFKA)
    with pytest.raises(TopicRecreated, match="topic tried-again was deleted and created again"):
        build.build(IntervalRun(spark, log.pipeline, attempts.load_attempt(attempt)))
    assert attempts.load_attempt(attempt).findings.build is None
