"""A driver's log gets at most one line a minute about micro-batches, and no record is missing in their sums."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from spark_jobs.streaming.summed_lines import EVERY, SummedLines


class Told(logging.Handler):
    """The lines of a log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def told() -> Iterator[Told]:
    handler = Told()
    logger = logging.getLogger("test_summed_lines")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def test_one_line_a_minute_has_all_records_when_a_stream_commits_every_second(told: Told) -> None:
    now = [0.0]
    log = logging.LoggerAdapter(logging.getLogger("test_summed_lines"), {})
    lines = SummedLines(log, "%s records, %s quarantined, %.1f s", clock=lambda: now[0])
    for number in range(150):
        lines.add(f"micro-batch {number} committed: ", 10, 1, 0.5)
        now[0] += 1
    assert told.lines == [
        "micro-batch 0 committed: 10 records, 1 quarantined, 0.5 s",
        "micro-batch 60 committed: 600 records, 60 quarantined, 30.0 s in 60 micro-batches",
        "micro-batch 120 committed: 600 records, 60 quarantined, 30.0 s in 60 micro-batches",
    ]
    # The topic is quiet from here on: the rest is told all the same.
    lines.tell_due()
    assert len(told.lines) == 3
    now[0] += EVERY
    lines.tell_due()
    assert told.lines[3:] == ["micro-batch 149 committed: 290 records, 29 quarantined, 14.5 s in 29 micro-batches"]
    lines.tell_due()
    lines.tell()
    assert len(told.lines) == 4


def test_rest_is_told_when_the_stream_ends(told: Told) -> None:
    log = logging.LoggerAdapter(logging.getLogger("test_summed_lines"), {})
    lines = SummedLines(log, "%s rows sent, %s refused, %.1f s")
    lines.add("", 3, 0, 0.1)
    lines.add("", 4, 1, 0.2)
    lines.tell()
    assert told.lines == ["3 rows sent, 0 refused, 0.1 s", "4 rows sent, 1 refused, 0.2 s"]
