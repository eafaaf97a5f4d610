"""Notes Spark's progress of the running queries in the ledger, in a thread that can neither slow nor fail one.

Spark's listener would call into Python for every micro-batch, in the queue that all listeners share. So a thread asks
each query for its last progress, which is one call and one JSON text, however fast the query is.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from include.errors import one_line
from include.ledger.streams import progress
from include.ledger.streams.progress import QueryProgress
from spark_jobs.spark.log import log_of

EVERY = timedelta(seconds=2)
"""How often the queries are asked."""

LAST = timedelta(seconds=2)
"""How long the last look may take."""

_TOTAL = "triggerExecution"
"""Spark's name for the total duration."""


class ProgressNotes(threading.Thread):
    """Asks the running queries until ended. An unreachable ledger only costs points in the page's charts."""

    def __init__(self, pipeline: str, running: Callable[[], Mapping[str, StreamingQuery]]) -> None:
        super().__init__(name="progress", daemon=True)
        self._pipeline = pipeline
        self._running = running
        self._noted: dict[str, QueryProgress] = {}
        self._ended = threading.Event()
        self._is_away = False

    def run(self) -> None:
        """Ask and note until ended, then once more."""
        while not self._ended.wait(EVERY.total_seconds()):
            self._look()
        self._look()

    def _look(self) -> None:
        """Ask each query once, and note what is new."""
        try:
            last = [each for name, query in self._running().items() if (each := last_progress(name, query)) is not None]
            new = [each for each in last if self._noted.get(each.query) != each]
            if new:
                progress.note(self._pipeline, new)
                self._noted.update({each.query: each for each in new})
            self._is_away = False
        except (PySparkException, Py4JError, ConnectionError):
            # The driver is ending, or the query was just replaced.
            return
        except Exception as error:  # the thread's edge: the charts go on as soon as the ledger writes again
            if not self._is_away:
                log_of(self._pipeline).warning("the progress of the queries is not noted: %s", one_line(str(error)))
            self._is_away = True

    def end(self) -> None:
        """End the thread; one that waits for the ledger is not waited for."""
        self._ended.set()
        self.join(LAST.total_seconds())


def last_progress(name: str, query: StreamingQuery) -> QueryProgress | None:
    """Return a query's last progress, also when it has ended; None when there is none yet."""
    last = query._jsq.lastProgress()
    return None if last is None else read_progress(name, json.loads(last.json()))


def read_progress(query: str, reported: Mapping[str, Any]) -> QueryProgress:
    """Return Spark's JSON of a query's progress as a row; values that Spark leaves out or cannot measure are 0."""
    parts = {name: milliseconds / 1000 for name, milliseconds in reported.get("durationMs", {}).items()}
    state = reported.get("stateOperators", ())
    watermark = reported.get("eventTime", {}).get("watermark")
    read_until = None if watermark is None else datetime.fromisoformat(watermark)
    return QueryProgress(
        query,
        int(reported["batchId"]),
        datetime.fromisoformat(reported["timestamp"]),
        int(reported.get("numInputRows") or 0),
        _rate(reported.get("inputRowsPerSecond")),
        _rate(reported.get("processedRowsPerSecond")),
        parts.get(_TOTAL, sum(parts.values())),
        {name: seconds for name, seconds in parts.items() if name != _TOTAL},
        # Before the first record Spark reports 1970.
        read_until if read_until and read_until.year > 1970 else None,
        sum(int(each.get("numRowsTotal") or 0) for each in state),
        sum(int(each.get("memoryUsedBytes") or 0) for each in state),
    )


def _rate(rate: Any) -> float:
    """Return a rate; Spark writes a rate that it could not measure as text, or leaves it out."""
    return float(rate) if isinstance(rate, int | float) and rate == rate and abs(rate) < 1e15 else 0.0
