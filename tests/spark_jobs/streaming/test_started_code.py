"""A driver notes the versions of the code that it runs, whatever is deployed while it runs: no Spark, no services."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from include import versions
from include.errors import TidemarkError, UsageError
from include.ledger.archive.micro_batches import BatchCommit
from include.ledger.streams.generations import StreamGeneration
from include.ledger.streams.writers import Lease
from include.pipelines import load_pipeline
from include.pipelines.spec import Listing, Pipeline, UserDefined
from include.pipelines.spec.lines import parse_line_source
from spark_jobs import transforms
from spark_jobs.decoding.records import check_transforms
from spark_jobs.lines import line_sinks, line_stream
from spark_jobs.sinks import landing, speed_view
from spark_jobs.streaming import kafka_stream, started_code
from spark_jobs.streaming.started_code import StreamVersions, load_code, versions_of
from tests.support.shipped import UNUSED

LEASE = Lease("nest_cameras", 7, "here")
CACHED = (versions.decoder_version, versions.view_version, versions.rules_version)


@dataclass
class Disk:
    """The code that lies on disk."""

    code: str = "old"

    def versions(self) -> StreamVersions:
        """What a process that starts now would note."""
        for each in CACHED:
            each.cache_clear()
        return StreamVersions(
            versions.decoder_version("nest_cameras"),
            {"hourly_counts": versions.view_version("nest_cameras", "hourly_counts")},
            versions.rules_version("nest_cameras"),
        )

    def deploy(self) -> None:
        """Put newer code there; a process that has computed nothing yet computes from it."""
        self.code = "new"
        for each in CACHED:
            each.cache_clear()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(versions, "executed_code", lambda *_: disk.code)
    for each in CACHED:
        each.cache_clear()
    yield disk
    for each in CACHED:
        each.cache_clear()


class Began(Exception):
    """The queries are about to start."""


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[StreamVersions]:
    """The versions that a driver which holds the lease gives to its queries; then it ends."""
    given: list[StreamVersions] = []
    beating = SimpleNamespace(note_application=lambda spark: None, stop_requested=lambda: False)

    def queries(*arguments: Any, **_: Any) -> Any:
        given.extend(each for each in arguments if isinstance(each, StreamVersions))
        raise Began

    for stream, name in ((kafka_stream, "_Queries"), (line_stream, "_LineQueries")):
        monkeypatch.setattr(stream, "Stop", lambda: SimpleNamespace(requested=False))
        monkeypatch.setattr(stream, "leased", lambda pipeline: nullcontext((LEASE, beating)))
        monkeypatch.setattr(stream, "has_sources", lambda pipeline: False)
        monkeypatch.setattr(stream, name, queries)
    return given


def test_versions_of_the_started_code_are_handed_on_when_code_is_deployed_before_the_first_commit(
    disk: Disk, given: list[StreamVersions], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = disk.versions()

    def begin(pipeline: Pipeline) -> Any:
        disk.deploy()
        return SimpleNamespace(generation=StreamGeneration("nest_cameras", 0, {}, {}))

    monkeypatch.setattr(kafka_stream, "begin", begin)
    monkeypatch.setattr(kafka_stream, "RowOutputs", lambda *_: None)
    with pytest.raises(Began):
        kafka_stream.run_stream(lambda: None, load_pipeline("nest_cameras"), until_caught_up=True)  # type: ignore[arg-type,return-value]
    assert given == [old]
    assert old != disk.versions()


def test_line_stream_hands_on_the_versions_of_the_started_code_when_code_is_deployed_later(
    disk: Disk, given: list[StreamVersions], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = disk.versions()
    feed = SimpleNamespace(start=disk.deploy, is_alive=lambda: False, check=lambda: None, end=lambda: None)
    monkeypatch.setattr(line_stream, "_begin", lambda *_: StreamGeneration("nest_cameras", 0, {}, {}))
    monkeypatch.setattr(line_stream, "feed_of", lambda *_, **__: feed)
    source = parse_line_source("socket://localhost:9999")
    with pytest.raises(Began):
        line_stream.run_line_stream(lambda: None, load_pipeline("nest_cameras"), source, until_caught_up=True)  # type: ignore[arg-type,return-value]
    assert given == [old]


def test_micro_batch_is_committed_with_the_driver_s_version_when_newer_code_lies_on_disk(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, old = load_pipeline("nest_cameras"), disk.versions()
    disk.deploy()
    committed: list[BatchCommit] = []
    planned = SimpleNamespace(ranges=[], after_file=0, until_file=0, watermark=None)
    for module in (landing, speed_view, line_sinks):
        for name in ("read_batch", "read_line_batch"):
            monkeypatch.setattr(module, name, lambda *_, **__: planned, raising=False)
        monkeypatch.setattr(module, "write_landing", lambda *_: None, raising=False)
        monkeypatch.setattr(module, "read_back", lambda *_: [], raising=False)
        monkeypatch.setattr(module, "move_quarantined", lambda *_: [], raising=False)
    monkeypatch.setattr(landing, "find_changes", lambda *_: ())
    for ledger in (landing.micro_batches, line_sinks.lines):
        monkeypatch.setattr(ledger, "commit", lambda lease, batch, *_: committed.append(batch))
    monkeypatch.setattr(landing.micro_batches, "is_committed", lambda *_: False)
    monkeypatch.setattr(landing.micro_batches, "stored_topics", lambda *_: {})
    monkeypatch.setattr(landing, "topics_that_left", lambda *_: set())
    monkeypatch.setattr(landing.kafka, "describe_topics", lambda *_: {})
    monkeypatch.setattr(line_sinks.lines, "files_between", lambda *_: [])
    monkeypatch.setattr(speed_view.writers, "renew", lambda *_: False)
    monkeypatch.setattr(speed_view, "check_compacted_topic", lambda *_: None)
    monkeypatch.setattr(landing.LandingSink, "_append_to_delta", lambda *_: None)
    values: Any = SimpleNamespace(sparkSession=None)
    monkeypatch.setattr(speed_view.SpeedViewSink, "_values", lambda *_: nullcontext((values, 0)))
    landing.LandingSink(pipeline, LEASE, "id", "", old.decoder, lambda _: None).land(values, 0)
    line_sinks.LineLandingSink(pipeline, LEASE, "id", "", old.decoder, 0, lambda *_: None).land(values, 0)
    (view,) = pipeline.views
    generation = StreamGeneration("nest_cameras", 0, {}, {})
    for sink in (speed_view.SpeedViewSink, line_sinks.LineViewSink):
        sink(pipeline, view, LEASE, generation, None, "id", "", old.views[view.name], []).emit(values, 0)
    expected = [old.decoder, old.decoder, old.views[view.name], old.views[view.name]]
    assert [each.decoder_version for each in committed] == expected


def test_stream_does_not_start_when_code_is_deployed_while_its_versions_are_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = load_pipeline("nest_cameras")
    code = load_code(pipeline)
    assert "spark_jobs/transforms/nest_cameras.py" in code
    versions_of(pipeline, code)
    with pytest.raises(TidemarkError, match=r"transforms/nest_cameras\.py changed — start the stream again"):
        started_code.versions_of(pipeline, {**code, "spark_jobs/transforms/nest_cameras.py": "another"})


@pytest.mark.parametrize("stream", [kafka_stream, line_stream])
def test_driver_does_not_start_when_code_is_deployed_while_it_waits_for_the_lease(
    monkeypatch: pytest.MonkeyPatch, stream: Any
) -> None:
    path = "spark_jobs/transforms/nest_cameras.py"
    lies_there: dict[str, str] = {}

    @contextmanager
    def leased(pipeline: str) -> Iterator[tuple[Lease, Any]]:
        lies_there[path] = "newer"
        yield LEASE, SimpleNamespace()

    monkeypatch.setattr(stream, "load_code", lambda pipeline: {**load_code(pipeline), **lies_there})
    monkeypatch.setattr(
        started_code, "changed_code", lambda code: [p for p, new in lies_there.items() if code[p] != new]
    )
    monkeypatch.setattr(stream, "Stop", SimpleNamespace)
    monkeypatch.setattr(stream, "leased", leased)
    monkeypatch.setattr(stream, "has_sources", lambda pipeline: False)
    source = [parse_line_source("socket://localhost:9999")] if stream is line_stream else []
    run: Any = stream.run_line_stream if source else stream.run_stream
    with pytest.raises(TidemarkError, match=f"code was deployed while the stream started: {path} changed"):
        run(lambda: None, load_pipeline("nest_cameras"), *source, until_caught_up=True)


def test_reference_that_cannot_be_read_is_wrong_usage_when_a_stream_starts(tmp_path: Path) -> None:
    pipeline = load_pipeline("nest_cameras")
    [(name, reference)] = pipeline.references.items()
    without = replace(pipeline, references={name: replace(reference, path=tmp_path / "gone.csv")})
    with pytest.raises(UsageError, match=r"gone\.csv"):
        versions_of(without, load_code(without))


def test_decoder_that_cannot_be_imported_is_wrong_usage_when_a_stream_starts() -> None:
    decoder = UserDefined("spark_jobs.transforms.nest_cameras:no_such", schema="n BIGINT")
    with pytest.raises(UsageError, match="no_such"):
        load_code(replace(load_pipeline("nest_cameras"), decoder=decoder))


@pytest.mark.parametrize("of", ["the archive", "a view", "a report"])
def test_transform_that_is_not_there_is_wrong_usage_when_a_stream_starts(of: str) -> None:
    pipeline = load_pipeline("nest_cameras")
    misspelt = {
        "the archive": lambda: replace(pipeline, archive=replace(pipeline.archive, rows="camera")),
        "a view": lambda: replace(pipeline, views=(replace(pipeline.views[0], aggregate="camera"),)),
        "a report": lambda: replace(pipeline, reports=(Listing("L", rows="camera", columns=("device_id",)),)),
    }[of]()
    with pytest.raises(UsageError, match=r"spark_jobs/transforms/nest_cameras\.py has no function camera"):
        load_code(misspelt)


@pytest.mark.parametrize("content", ["def cameras(:", "import no_such_library", "1 / 0"])
def test_module_of_transforms_is_named_when_it_cannot_be_loaded(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_transforms.py").write_text(content)
    monkeypatch.setattr(transforms, "__path__", [*transforms.__path__, str(tmp_path)])
    with pytest.raises(UsageError, match=r"spark_jobs/transforms/broken_transforms\.py cannot be loaded: \w+Error: "):
        check_transforms(replace(load_pipeline("nest_cameras"), name="broken_transforms"))


def test_module_of_transforms_is_named_when_it_is_not_there() -> None:
    with pytest.raises(UsageError, match=rf"spark_jobs/transforms/{UNUSED}\.py has no function"):
        load_code(replace(load_pipeline("nest_cameras"), name=UNUSED))
