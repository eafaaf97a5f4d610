"""When a query that met an unknown schema id starts again, without registry and Spark."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from include.pipelines import load_pipeline
from include.schemas.registry import RegisteredSchema
from include.schemas.writer_schemas import MOST_UNKNOWN, WriterSchemas
from spark_jobs.streaming import restarts
from spark_jobs.streaming.restarts import SchemaRestarts

KNOWN, UNKNOWN = 1, 7


class Registry:
    """A registry with one schema, which counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def versions(self, _: str) -> list[int]:
        return []

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        self.asked.append(schema_id)
        return RegisteredSchema('"string"') if schema_id == KNOWN else None


def write_log(checkpoint: Path, *, planned: int, committed: int) -> None:
    """Write the names that a checkpoint has after so many micro-batches."""
    for log, number in (("offsets", planned), ("commits", committed)):
        (checkpoint / log).mkdir(parents=True)
        for batch in range(number):
            (checkpoint / log / str(batch)).touch()


def start_again(
    monkeypatch: pytest.MonkeyPatch, folder: Path, batches: Iterable[list[int]], failed_at: int = KNOWN
) -> list[int]:
    """Let a query start again for micro-batches with these ids; return what the registry was asked."""
    registry = Registry()
    schemas = WriterSchemas(folder, registry)  # type: ignore[arg-type]
    ids = iter(batches)
    monkeypatch.setattr(restarts, "writer_schemas", lambda: schemas)
    monkeypatch.setattr(restarts, "read_batch", lambda *_: SimpleNamespace(ranges=[]))
    monkeypatch.setattr(restarts, "read_ranges", lambda *_: None)
    monkeypatch.setattr(restarts, "prepare", lambda *_: schemas.resolve(next(ids), "gps-value"))
    queries, spark = SchemaRestarts(load_pipeline("gps_positions")), Any
    for query in ("archive", "a_view", "archive"):
        assert queries.may_start(spark, query, str(folder / "checkpoint"), failed_at)  # type: ignore[arg-type]
    return registry.asked


def test_log_says_once_that_the_stream_must_be_started_again_when_the_registry_does_not_know_an_id(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: list[str]
) -> None:
    write_log(tmp_path / "checkpoint", planned=3, committed=2)
    assert start_again(monkeypatch, tmp_path, [[KNOWN, UNKNOWN], [UNKNOWN], [KNOWN]]) == [KNOWN, UNKNOWN]
    [message] = said
    assert "no schema with id 7," in message
    assert "start the stream again" in message
    assert "quarantine replay gps_positions --reason unknown_schema" in message


def test_log_says_nothing_when_the_registry_knows_all_ids(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: list[str]
) -> None:
    write_log(tmp_path / "checkpoint", planned=1, committed=0)
    start_again(monkeypatch, tmp_path, [[KNOWN]] * 3)
    assert said == []


@pytest.mark.parametrize("batches", [0, 2])
def test_id_is_resolved_when_the_log_lacks_the_micro_batch_of_a_query_in_real_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: list[str], batches: int
) -> None:
    """Spark writes it there when it ends; those before are not read again: Kafka may have removed their records."""
    write_log(tmp_path / "checkpoint", planned=batches, committed=batches)
    assert start_again(monkeypatch, tmp_path, [], failed_at=UNKNOWN) == [UNKNOWN]
    [message] = said
    assert "no schema with id 7," in message


def test_registry_is_asked_for_no_more_ids_and_the_query_starts_when_it_did_not_know_a_thousand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: list[str]
) -> None:
    write_log(tmp_path / "checkpoint", planned=1, committed=0)
    batch = [UNKNOWN + number for number in range(MOST_UNKNOWN + 1)]
    assert start_again(monkeypatch, tmp_path, [batch] * 3) == batch[:MOST_UNKNOWN]
    [message] = said
    assert "no schema with id 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 and 990 more," in message
    assert "nor for any other after so many" in message
