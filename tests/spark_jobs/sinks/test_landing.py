"""Which failures of a micro-batch's write are tried again and lead to a search, and which are of the code."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException

from include.errors import TidemarkError
from include.pipelines import load_pipeline
from spark_jobs.sinks import landing

DECODED: Any = SimpleNamespace(sparkSession=None)


@dataclass
class Writes:
    """Writes that fail with an error, and how many were tried and noted."""

    error: Exception
    tried: int = 0
    noted: list[str] = field(default_factory=list)

    def write(self, decoded: object, folder: str) -> None:
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
