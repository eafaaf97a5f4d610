"""A micro-batch of the archive: failures of its write, and what it finds wrong before it commits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, PySparkException

from include import kafka, lake
from include.errors import AnotherWriter, ServiceUnreachable, TidemarkError, TopicRecreated, UsageError
from include.ledger.archive import micro_batches
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit
from include.ledger.streams import lines, writers
from include.ledger.streams.generations import StreamGeneration
from include.offsets import Fates, OffsetRange, TopicIdentity, TopicPartition
from include.pipelines import load_pipeline
from spark_jobs.lines.line_sinks import LineLandingSink, LineViewSink
from spark_jobs.sinks import landing
from spark_jobs.sinks.speed_view import SpeedViewSink
from tests.conftest import Home
from tests.support.leases import held_lease

DECODED: Any = SimpleNamespace(sparkSession=None)
NEST = load_pipeline("nest_cameras")
TP = TopicPartition("nest-logs", 0)
STATS = NEST.views[0].speed.topic


@dataclass
class Writes:
    """Writes that fail with an error, and how many were tried and noted."""

    error: Exception
    tried: int = 0
    noted: list[str] = field(default_factory=list)

    def write(self, pipeline: object, decoded: object, folder: str) -> None:
        self.tried += 1
        raise self.error

    def note(self, pipeline: str, query: str, query_id: str, batch: int, cause: str) -> int:
        self.noted.append(cause)
        return len(self.noted)


def sink_that_fails_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> tuple[landing.LandingSink, Writes]:
    writes = Writes(error)
    monkeypatch.setattr(landing, "write_landing", writes.write)
    monkeypatch.setattr(landing, "note_failure", writes.note)
    monkeypatch.setattr(landing, "find_poison", lambda *_: {})
    for name in ("decode", "read_ranges", "withhold"):
        monkeypatch.setattr(landing, name, lambda *_: None)
    lease: Any = None
    return landing.LandingSink(load_pipeline("nest_cameras"), lease, "id", "", "noted", lambda _: None), writes


def test_error_of_the_code_is_raised_at_once_when_spark_refuses_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    error = AnalysisException("The Parquet datasource does not support writing empty or nested empty schemas")
    sink, writes = sink_that_fails_with(error, monkeypatch)
    with pytest.raises(AnalysisException, match="empty schemas"):
        sink._write(DECODED, 7, [], "folder")
    assert (writes.tried, writes.noted) == (1, [])


def test_write_is_tried_again_and_searched_when_it_fails_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, writes = sink_that_fails_with(PySparkException("no disk"), monkeypatch)
    with pytest.raises(TidemarkError, match="could not be written, though all its records decode"):
        sink._write(DECODED, 7, [], "folder")
    assert writes.noted == ["PySparkException: no disk"] * landing.IDENTICAL


@pytest.fixture
def folder(own_lake: Path) -> str:
    """The landing folder of a micro-batch in a lake without services."""
    return lake.uri("landing", NEST.name, "batch")


def write_archived(folder: str, **columns: list[Any]) -> None:
    path = Path(folder.removeprefix("file://")) / "fate=archived" / "date=2026-11-20" / "part-0.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table(columns), path)


NO_LEASE: Any = None


def landing_sink(lease: writers.Lease = NO_LEASE) -> landing.LandingSink:
    pipeline = replace(NEST, name=lease.pipeline) if lease else NEST
    return landing.LandingSink(pipeline, lease, "id", "", "noted", lambda _: None)


@pytest.mark.parametrize(
    ("planned", "said"),
    [
        (OffsetRange(TP, 4, 6), r"3 records were read of nest-logs-0 \[4, 6\): more than it has offsets"),
        (OffsetRange(TopicPartition("nest-logs", 1), 4, 9), "3 records were read of nest-logs-0: more than"),
    ],
    ids=["a record too many", "another topic partition"],
)
def test_micro_batch_is_not_committed_when_its_files_hold_records_that_were_not_planned(
    folder: str, planned: OffsetRange, said: str
) -> None:
    sink = landing_sink()
    write_archived(folder, kafka_topic=["nest-logs"] * 3, kafka_partition=[0] * 3, kafka_element=[0] * 3)
    with pytest.raises(TidemarkError, match=said):
        sink._read_back(folder, [planned], "batch")
    # Compaction leaves offsets without a record.
    [file], fates = sink._read_back(folder, [OffsetRange(TP, 4, 9)], "batch")
    assert (file.rows, fates) == (3, {TP: Fates(archived=3)})


@pytest.mark.parametrize(
    ("numbers", "first"),
    [([1, 3], 1), ([1, 2, 2, 3], 1), ([2, 3], 1), ([1, 2, 3], None)],
    ids=["a line is missing", "a line is there twice", "the first line is missing", "the file was not noted"],
)
def test_lines_are_not_committed_unless_each_has_one_fate(folder: str, numbers: list[int], first: int | None) -> None:
    sink = LineLandingSink(NEST, NO_LEASE, "id", "", "noted", 0, lambda *_: None)
    write_archived(folder, source_name=["a"] * len(numbers), source_line=numbers, source_element=[0] * len(numbers))
    with pytest.raises(TidemarkError, match=f"{len(numbers)} lines were read of a, lines {min(numbers)} to 3"):
        sink._count(folder, {} if first is None else {"a": first})


def test_fates_of_lines_are_counted_when_some_have_several_rows(folder: str) -> None:
    sink = LineLandingSink(NEST, NO_LEASE, "id", "", "noted", 0, lambda *_: None)
    write_archived(folder, source_name=["a"] * 4, source_line=[5, 6, 6, 7], source_element=[0, 0, 1, 0])
    [file], fates = sink._count(folder, {"a": 5})
    assert (file.rows, fates) == (4, {"a": Fates(archived=3)})


@pytest.mark.services
@pytest.mark.parametrize("now", [{}, {"nest-logs": TopicIdentity("nest-logs", "other", 1)}], ids=["gone", "recreated"])
def test_micro_batch_is_not_committed_when_a_topic_is_another_one_than_before(
    postgres: Home, monkeypatch: pytest.MonkeyPatch, now: dict[str, TopicIdentity]
) -> None:
    with held_lease(f"landing_{len(now)}") as lease:
        sink, before = landing_sink(lease), {"nest-logs": TopicIdentity("nest-logs", "id", 1)}
        micro_batches.commit(lease, BatchCommit(lease.pipeline, ARCHIVE, f"query-{lease.pipeline}", 0, topics=before))
        monkeypatch.setattr(kafka, "describe_topics", existing(before))
        assert sink._topics([OffsetRange(TP, 4, 9)]) == before
        monkeypatch.setattr(kafka, "describe_topics", existing(now))
        with pytest.raises(TopicRecreated):
            # Although none of its records is in the micro-batch.
            sink._topics([])


@pytest.mark.services
def test_micro_batch_is_committed_when_a_view_was_first_to_read_a_topic_that_it_was_planned_without(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_lease("landing_first") as lease:
        sink = landing_sink(lease)
        old, new = (TopicIdentity(name, f"id of {name}", 1) for name in (TP.topic, "new-logs"))
        view = BatchCommit(lease.pipeline, "hourly_counts", "id", 0, topics={old.topic: old, new.topic: new})
        micro_batches.commit(lease, view)
        monkeypatch.setattr(kafka, "describe_topics", existing({old.topic: old, new.topic: new}))
        assert sink._topics([OffsetRange(TP, 4, 9)]) == {old.topic: old}
        monkeypatch.setattr(kafka, "describe_topics", existing({old.topic: old}))
        with pytest.raises(TopicRecreated, match="new-logs"):
            sink._topics([OffsetRange(TP, 4, 9)])


def existing(topics: Mapping[str, TopicIdentity]) -> Callable[[Iterable[str]], dict[str, TopicIdentity]]:
    """What the brokers tell of the topics that they are asked for."""
    return lambda asked: {each: topics[each] for each in asked if each in topics}


class Written:
    """A view's target that keeps the versions that it was given, and the view's sink, which writes one value."""

    def __init__(self, kind: type[SpeedViewSink], lease: writers.Lease, checkpoint: Path, end: object) -> None:
        self.versions: list[int] = []
        # As Spark writes them: where the source begins, and a micro-batch in the write-ahead log.
        begins, logged = checkpoint / "sources" / "0" / "0", checkpoint / "offsets" / "0"
        for file, content in (begins, ["v1", {"nest-logs": {"0": 0}}]), (logged, ["v1", {}, end]):
            file.parent.mkdir(parents=True)
            file.write_text("\n".join(part if isinstance(part, str) else json.dumps(part) for part in content))
        of_it = replace(NEST, name=lease.pipeline), NEST.views[0], lease, StreamGeneration(lease.pipeline, 0, {}, {})
        target: Any = self
        self.sink = kind(*of_it, None, f"view-{lease.pipeline}", checkpoint.as_uri(), "v", [target])

    def write(self, values: object, version: int) -> None:
        self.versions.append(version)


@pytest.mark.services
@pytest.mark.parametrize("now", [{}, {"nest-logs": TopicIdentity("nest-logs", "other", 1)}], ids=["gone", "recreated"])
def test_no_target_of_a_view_is_written_when_a_topic_is_another_one_than_before(
    postgres: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, now: dict[str, TopicIdentity]
) -> None:
    with held_lease(f"view_{len(now)}") as lease:
        before = {"nest-logs": TopicIdentity("nest-logs", "id", 1)}
        micro_batches.commit(lease, BatchCommit(lease.pipeline, ARCHIVE, f"query-{lease.pipeline}", 0, topics=before))
        monkeypatch.setattr(SpeedViewSink, "_values", lambda *_: nullcontext((DECODED, 1)))
        written = Written(SpeedViewSink, lease, tmp_path, {"nest-logs": {"0": 2}})
        monkeypatch.setattr(kafka, "describe_topics", lambda _: now)
        with pytest.raises(TopicRecreated):
            written.sink.emit(DECODED, 0)
        assert written.versions == []
        monkeypatch.setattr(kafka, "describe_topics", lambda _: before)
        written.sink.emit(DECODED, 0)
        assert written.versions == [0]
        assert micro_batches.positions(lease.pipeline, NEST.views[0].name) == {TP: 2}


@pytest.mark.services
def test_view_of_lines_commits_up_to_the_file_that_it_read(
    postgres: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with held_lease("view_of_lines") as lease:
        monkeypatch.setattr(SpeedViewSink, "_values", lambda *_: nullcontext((DECODED, 1)))
        monkeypatch.setattr(kafka, "describe_topics", lambda _: {STATS: TopicIdentity(STATS, "id", 1)})
        written = Written(LineViewSink, lease, tmp_path, {"file": 3})
        written.sink.emit(DECODED, 0)
        assert written.versions == [0]
        assert lines.committed_span(f"view-{lease.pipeline}", 0) == (0, 3)


@pytest.mark.services
@pytest.mark.parametrize("emitted", [0, 1])
def test_view_of_lines_goes_on_when_kafka_does_not_tell_which_topic_it_writes(
    postgres: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, emitted: int
) -> None:
    asked: list[object] = []

    def describe(topics: object) -> NoReturn:
        asked.append(topics)
        raise ServiceUnreachable("describe: no answer within 10 s", remedy="")

    with held_lease(f"view_in_outage_{emitted}") as lease:
        monkeypatch.setattr(SpeedViewSink, "_values", lambda *_: nullcontext((DECODED, emitted)))
        monkeypatch.setattr(kafka, "describe_topics", describe)
        written = Written(LineViewSink, lease, tmp_path, {"file": 3})
        written.sink.emit(DECODED, 0)
        # Kafka is asked nothing where nothing is written to it.
        assert len(asked) == len(written.versions) == emitted
        assert lines.committed_span(f"view-{lease.pipeline}", 0) == (0, 3)


@pytest.mark.services
@pytest.mark.parametrize("kind", [SpeedViewSink, LineViewSink])
@pytest.mark.parametrize("now", ["", "another"], ids=["gone", "recreated"])
def test_running_view_stops_before_it_writes_when_its_own_topic_is_another_one(
    postgres: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type[SpeedViewSink], now: str
) -> None:
    with held_lease(f"own_topic_{kind.__name__.lower()}_{now}") as lease:
        view, ids = NEST.views[0], {"nest-logs": "id", STATS: "id"}
        end = {"file": 2} if kind is LineViewSink else {"nest-logs": {"0": 2}}

        def describe(topics: Iterable[str]) -> dict[str, TopicIdentity]:
            return {topic: TopicIdentity(topic, ids[topic], 1) for topic in topics if ids.get(topic)}

        monkeypatch.setattr(kafka, "describe_topics", describe)
        monkeypatch.setattr(SpeedViewSink, "_values", lambda *_: nullcontext((DECODED, 1)))
        written = Written(kind, lease, tmp_path, end)
        written.sink.generation = replace(written.sink.generation, topics={view.name: "id"})
        written.sink.emit(DECODED, 0)
        log = tmp_path / "offsets"
        (log / "1").write_bytes((log / "0").read_bytes())
        ids[STATS] = now
        with pytest.raises(
            UsageError, match=f"the topic {STATS} .*, and with it what the speed view {view.name}"
        ) as refused:
            written.sink.emit(DECODED, 1)
        assert "./tidemark new-generation" in refused.value.remedy
        assert written.versions == [0]


@pytest.mark.services
def test_nothing_is_appended_to_the_delta_table_when_the_lease_is_lost(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended: list[object] = []
    monkeypatch.setattr(landing, "append_batch", lambda *arguments: appended.append(arguments))
    lease = writers.acquire("landing_delta")
    sink = landing_sink(lease)
    sink._append_to_delta(DECODED.sparkSession, [], 0)
    assert len(appended) == 1
    # It waits for a publication, and then looks at its lease.
    monkeypatch.setattr(landing, "await_replaced_rows", lambda _: writers.release(lease))
    with pytest.raises(AnotherWriter):
        sink._append_to_delta(DECODED.sparkSession, [], 1)
    assert len(appended) == 1
