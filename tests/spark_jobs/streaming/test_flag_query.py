"""How the query for flags learns that new limits may be learned, on a real PostgreSQL and without Spark."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from include import lake, waiting
from include.errors import ReconciliationFailed, ServiceUnreachable, TidemarkError
from include.ledger.archive import micro_batches
from include.ledger.database import engine
from include.ledger.intervals.evidence import raised_since
from include.ledger.streams import flags as flag_ledger
from include.ledger.streams import writers
from include.ledger.streams.flags import FLAGS
from include.ledger.streams.generations import StreamGeneration
from include.offsets import OffsetRange, TopicIdentity, TopicPartition, offsets_json
from include.pipelines import load_pipeline
from include.pipelines.spec import Limit
from include.streams.checkpoints import checkpoint_uri
from spark_jobs.spark.checkpoint import PlannedBatch
from spark_jobs.streaming import flag_query
from spark_jobs.streaming.flag_query import FlagQuery
from spark_jobs.streaming.restarts import PoisonRestarts
from spark_jobs.streaming.started_code import StreamVersions
from spark_jobs.views import flags as views_flags
from tests.conftest import Home
from tests.support import ledger_history
from tests.support.ledger_history import PIPELINE, TOPIC, TOPIC_ID
from tests.support.ledger_reads import statements_of

pytestmark = pytest.mark.services


def learning(monkeypatch: pytest.MonkeyPatch, *limits: Limit) -> tuple[FlagQuery, list[int]]:
    """A query that learns these limits, and how many revisions it learned from, each time."""
    learned: list[int] = []

    def note(spark: object, pipeline: object, views: object, revisions: list[object]) -> list[Limit]:
        learned.append(len(revisions))
        return list(limits)

    monkeypatch.setattr(flag_query, "learned", note)
    pipeline, spark = load_pipeline(PIPELINE), None
    restarts = PoisonRestarts(PIPELINE, threading.Event())
    generation = StreamGeneration(PIPELINE, 0, {}, {})
    versions = StreamVersions("decoder", {}, "rules")
    lease = writers.acquire(PIPELINE)
    return FlagQuery(spark, pipeline, lease, generation, restarts, versions, until_caught_up=True), learned


def test_files_of_revisions_are_read_only_when_a_revision_is_new(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger_history.fill(postgres.database, 5)
    query, learned = learning(monkeypatch)
    found = []
    for state in ("registered", "registered", "superseded", "registered"):
        ledger_history.change(postgres.database, f"UPDATE revisions SET state = '{state}' WHERE id = 'r-4'")
        with statements_of(engine()) as sent:
            query._learn()
        found.append(any(re.search(r"\brevisions\.files\b", each) for each in sent))
    assert found == [True, False, True, True]
    assert learned == [5, 4, 5]


class Cluster:
    """A Spark context whose executors register as time goes by, and the clock of that time."""

    def __init__(self, master: str, slots: list[int]) -> None:
        self.master, self.now, self._slots = master, 0.0, slots

    @property
    def defaultParallelism(self) -> int:  # noqa: N802
        return self._slots[min(int(self.now), len(self._slots) - 1)]

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def triggers(monkeypatch: pytest.MonkeyPatch, cluster: Cluster, starts: int = 1) -> list[str]:
    """Return the kind of trigger that each start of the query for five topic partitions gets."""
    monkeypatch.setattr(waiting, "time", cluster)
    pipeline = load_pipeline("auction_bids")
    restarts = PoisonRestarts(pipeline.name, threading.Event())
    generation = StreamGeneration(pipeline.name, 0, {}, {})
    spark: Any = SimpleNamespace(sparkContext=cluster)
    lease: Any = None
    versions = StreamVersions("decoder", {}, "rules")
    query = FlagQuery(spark, pipeline, lease, generation, restarts, versions, until_caught_up=False)
    return [next(iter(query._trigger(5))) for _ in range(starts)]


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "local-cluster[2,4,1024]"])
def test_flags_are_raised_in_real_time_when_executors_register_late(
    monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    cluster = Cluster(master, [2, 2, 4, 4, 8])
    assert triggers(monkeypatch, cluster) == ["realTime"]
    assert 4 <= cluster.now < 6


def test_executors_are_waited_for_once_when_there_are_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster("spark://host:7077", [2, 4])
    assert triggers(monkeypatch, cluster, starts=3) == ["processingTime"] * 3
    assert 29 <= cluster.now <= 31


@pytest.mark.parametrize("master", ["local[*]", "local[2]", "local"])
def test_nothing_is_waited_for_when_spark_runs_in_the_driver(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    cluster = Cluster(master, [2])
    assert triggers(monkeypatch, cluster) == ["processingTime"]
    assert cluster.now == 0


def test_other_limits_are_in_force_and_this_is_told_when_the_ledger_cannot_keep_a_subject(
    postgres: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ledger_history.fill(postgres.database, 1)
    kept = Limit("far_above", '["toys\\u0000","EUR"]', "12.50")
    nobody: Any = None
    query, _ = learning(monkeypatch, Limit("burst", "\0x"), kept, Limit("shill_pair", nobody))
    query._learn()
    assert query._limits == [kept]
    assert flag_ledger.last_limits(PIPELINE) == (query._version, [kept])
    (warning,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert "burst, shill_pair" in warning
    assert "\0" not in warning


def test_limits_have_a_fixed_order_when_a_subject_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [SimpleNamespace(rule="burst", subject=subject, above=None) for subject in ("b", None, "a")]
    learning_these = SimpleNamespace(collect=lambda: rows)
    monkeypatch.setattr(views_flags, "transform", lambda *_: lambda views: learning_these)
    found = views_flags.learn_limits(load_pipeline("auction_bids"), {})
    assert [each.subject for each in found] == [None, "a", "b"]


def test_limits_are_learned_at_the_next_look_when_the_store_of_the_revisions_was_away(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger_history.fill(postgres.database, 1)
    query, learned = learning(monkeypatch, limit := Limit("far_above", "toys", "12.50"))
    reads = flag_query.learned

    def away(*_: object) -> list[Limit]:
        raise PySparkException("the bucket")

    monkeypatch.setattr(flag_query, "learned", away)
    monkeypatch.setattr(flag_query, "translate", lambda _: ServiceUnreachable("the bucket"))
    before = flag_ledger.last_limits(PIPELINE)
    query._learn()
    assert flag_ledger.last_limits(PIPELINE) == (query._version, query._limits) == before
    monkeypatch.setattr(flag_query, "learned", reads)
    query._learn()
    assert learned == [1]
    assert flag_ledger.last_limits(PIPELINE) == (query._version, [limit]) != before


@pytest.mark.parametrize(
    ("error", "looks"),
    [
        pytest.param(TidemarkError("a disk is full"), [1, 1, 2], id="passes"),
        pytest.param(None, [1, 1, 2], id="unknown"),
        pytest.param(ReconciliationFailed("the file is damaged"), [1, 1, 1], id="of the files"),
    ],
)
def test_limits_are_learned_after_a_pause_unless_the_files_are_to_blame_when_none_could_be_learned(
    postgres: Home, monkeypatch: pytest.MonkeyPatch, error: TidemarkError | None, looks: list[int]
) -> None:
    ledger_history.fill(postgres.database, 1)
    query, _ = learning(monkeypatch)
    tried: list[int] = []

    def fail(*_: object) -> list[Limit]:
        tried.append(1)
        raise PySparkException("no rows")

    monkeypatch.setattr(flag_query, "learned", fail)
    monkeypatch.setattr(flag_query, "translate", lambda _: error)
    clock = Cluster("", [])
    monkeypatch.setattr(flag_query, "time", clock)
    found = []
    for seconds in (0, 60, 600):
        clock.sleep(seconds)
        query._learn()
        found.append(len(tried))
    assert found == looks


@pytest.mark.parametrize("why", ["a person is being erased", "the store of the revisions is away"])
def test_version_without_limits_is_in_force_when_none_can_be_learned_before_the_first(
    postgres: Home, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    ledger_history.fill(postgres.database, 1)
    ledger_history.change(postgres.database, "TRUNCATE limits_versions CASCADE")
    query, _ = learning(monkeypatch)

    def away(*_: object) -> list[Limit]:
        raise PySparkException("the bucket")

    monkeypatch.setattr(flag_query, "learned", away)
    monkeypatch.setattr(flag_query, "translate", lambda _: ServiceUnreachable("the bucket"))
    monkeypatch.setattr(flag_query, "unfinished", lambda _: why == "a person is being erased")
    query._learn()
    # As every start does.
    assert flag_ledger.note_run(query.lease, query._version, "rules", {}, {})
    assert flag_ledger.last_limits(PIPELINE) == (query._version, query._limits) == (query._version, [])


def test_position_is_stored_before_anything_is_committed_and_again_when_the_next_driver_begins_elsewhere(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger_history.fill(postgres.database, 1)
    tp, added = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
    for begins in ({tp: 7}, {tp: 7}, {tp: 7, added: 0}, {tp: 9, added: 0}):
        query, _ = learning(monkeypatch)
        query._move(begins, {TOPIC: TOPIC_ID}, "rules")
        writers.release(query.lease)
        assert micro_batches.positions(PIPELINE, FLAGS) == begins


def test_last_run_raised_the_flags_in_an_added_topic_partition_when_its_driver_was_killed_before_the_commit(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger_history.fill(postgres.database, 2)
    known, added = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 2)
    batches = {"0": PlannedBatch([OffsetRange(known, 20, 40), OffsetRange(added, 0, 30)], None)}
    topic = TopicIdentity(TOPIC, TOPIC_ID, 3)
    monkeypatch.setattr(flag_query, "checkpoint_id", lambda _: "id-of-the-checkpoint")
    monkeypatch.setattr(flag_query.lake, "exists", lambda uri: uri.rpartition("/")[2] in (*batches, "-1"))
    began = datetime.now(UTC) - timedelta(hours=3)
    monkeypatch.setattr(flag_query.lake, "size_and_mtime", lambda _: (9, began))
    monkeypatch.setattr(flag_query, "read_batch", lambda _, batch: batches[str(batch)])
    monkeypatch.setattr(flag_query.kafka, "describe_topics", lambda _: {TOPIC: topic})
    query, _ = learning(monkeypatch)

    def end() -> None:
        raise InterruptedError

    monkeypatch.setattr(query, "_learn", end)
    with pytest.raises(InterruptedError):
        query.start({})
    assert micro_batches.positions(PIPELINE, FLAGS) == {known: 40, added: 30}
    forces = flag_ledger.in_force(PIPELINE, [OffsetRange(tp, 0, 40, TOPIC_ID) for tp in (known, added)])
    found = [(each.range.topic_partition, each.range.from_offset, each.version) for each in forces]
    assert found == [(known, 0, 1), (known, 20, 2), (added, 0, 2)]
    before = replace(forces[-1], since=began - timedelta(days=9))
    assert abs(raised_since(PIPELINE, before) - began) < timedelta(minutes=5)


def test_position_goes_on_when_spark_has_removed_batches_before_they_were_committed(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger_history.fill(postgres.database, 1)
    tp = TopicPartition(TOPIC, 0)
    monkeypatch.setattr(flag_query.kafka, "describe_topics", lambda _: {TOPIC: TopicIdentity(TOPIC, TOPIC_ID, 2)})
    query, _ = learning(monkeypatch)
    checkpoint = checkpoint_uri(query.generation, FLAGS)
    lake.write_text(f"{checkpoint}/metadata", '{"id": "of-a-late-driver"}')
    query._move({tp: 7}, {TOPIC: TOPIC_ID}, "rules")
    for batch in (40, 41, 42):
        lake.write_text(f"{checkpoint}/offsets/{batch}", f"v1\n{{}}\n{offsets_json({tp: 10 * batch})}")
        lake.write_text(f"{checkpoint}/commits/{batch}", "v1\n{}")
        committed = query.commit_finished()
        assert micro_batches.positions(PIPELINE, FLAGS) == {tp: 10 * batch}
        assert committed == 1
    assert query.commit_finished() == 0
    # The next one is there, without that from whose end on it read.
    for gone in ("offsets", "commits"):
        system, path = lake.filesystem(f"{checkpoint}/{gone}/42")
        system.delete_file(path)
    lake.write_text(f"{checkpoint}/offsets/43", f"v1\n{{}}\n{offsets_json({tp: 430})}")
    lake.write_text(f"{checkpoint}/commits/43", "v1\n{}")
    assert query.commit_finished() == 1
    assert micro_batches.positions(PIPELINE, FLAGS) == {tp: 430}
