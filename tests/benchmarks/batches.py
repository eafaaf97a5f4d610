"""`bench batches`: what a micro-batch costs with 2,000 behind it, against one with 20 behind it; and what one of a
speed view costs in a generation that began after a long history, against one after a short history.

Two homes, one pipeline each; both streams run with tiny micro-batches until one has 20 and the other 2,000
committed. Then both get drivers in turns, which commit as many more each; the first of them warm the driver
up and do not count. A micro-batch's cost is the time from one commit of the archive query to the next, as the
ledger noted it: planning, decoding, landing, the commits of Spark's log and of the ledger, with the speed
query beside it. The speed view's is measured likewise between its own commits, in two more homes.
"""

from __future__ import annotations

import itertools
import statistics
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2

from tests.benchmarks.home import BenchHome, bench_home
from tests.benchmarks.targets import Target

OFFSETS = 8
"""Offsets of a micro-batch."""


HISTORY_DAYS = 1000
"""The days over which the events of the histories are spread."""


def run(
    past: tuple[int, int] = (20, 2000),
    measured: int = 60,
    rounds: int = 5,
    history: tuple[int, int] = (2_000, 200_000),
) -> dict[str, Any]:
    """Median milliseconds of a micro-batch per round and home; the ratio of the medians."""
    with bench_home() as young, bench_home() as old:
        for home, batches in zip((young, old), past, strict=True):
            _advance(home, batches)
        found = {"micro_batches_behind": {"young": past[0], "old": past[1]}}
        found |= _in_turns(young, old, "archive", measured, rounds)
    with bench_home() as young, bench_home() as old:
        for home, events in zip((young, old), history, strict=True):
            _remember(home, events)
            _advance(home, measured)
        after = {"events_behind": {"young": history[0], "old": history[1]}}
        found["speed_view_in_a_new_generation"] = after | _in_turns(young, old, "hourly_counts", measured, rounds)
    return found


def targets(found: dict[str, Any]) -> list[Target]:
    """Return the target: earlier micro-batches do not slow down a later one."""
    after = found["speed_view_in_a_new_generation"]
    return [
        Target("cost_ratio", found["cost_ratio"]["median"], at_most=1.1),
        Target("speed_view_in_a_new_generation.cost_ratio", after["cost_ratio"]["median"], at_most=1.1),
    ]


def _in_turns(young: BenchHome, old: BenchHome, query: str, measured: int, rounds: int) -> dict[str, Any]:
    costs: list[tuple[float, float]] = []
    for number in range(rounds):
        # They alternate, so that other work of the machine affects both.
        order = (young, old) if number % 2 == 0 else (old, young)
        found = {home.path: _cost(home, query, measured) for home in order}
        costs.append((found[young.path], found[old.path]))
    ratios = sorted(after / before for before, after in costs)
    return {
        "milliseconds": {
            "young": [round(before * 1000) for before, _ in costs],
            "old": [round(after * 1000) for _, after in costs],
        },
        "cost_ratio": {
            "min": round(ratios[0], 3),
            "median": round(statistics.median(ratios), 3),
            "max": round(ratios[-1], 3),
        },
    }


def _remember(home: BenchHome, events: int) -> None:
    """Archive so many events of a long time, and begin a generation after them."""
    start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(days=HISTORY_DAYS + 2)
    span = ("--start", start.strftime("%Y-%m-%dT%H:%M:%SZ"), "--span", f"{HISTORY_DAYS}d")
    home.run("produce", "nest_cameras", "--events", str(events), *span)
    home.run("stream", "nest_cameras", "--until-caught-up")
    home.run("new-generation", "nest_cameras", "--reason", "its base is what the benchmark is about")


def _advance(home: BenchHome, batches: int) -> int:
    """Commit so many more micro-batches with a driver of their own; the id of the last one before."""
    before = _committed(home, "archive")[-1:] or [(0, 0.0)]
    start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
    events = ("--events", str(batches * OFFSETS), "--start", start.strftime("%Y-%m-%dT%H:%M:%SZ"), "--span", "50m")
    home.run("produce", "nest_cameras", *events)
    home.run("stream", "nest_cameras", "--until-caught-up", TIDEMARK_MAX_OFFSETS_PER_TRIGGER=str(OFFSETS))
    return before[0][0]


def _cost(home: BenchHome, query: str, batches: int) -> float:
    """Median seconds of the query's second half of so many more micro-batches."""
    last = _advance(home, batches)
    moments = [moment for number, moment in _committed(home, query) if number > last]
    steps = [after - before for before, after in itertools.pairwise(moments)]
    return statistics.median(steps[len(steps) // 2 :])


def _committed(home: BenchHome, query: str) -> list[tuple[int, float]]:
    """Id and time of each micro-batch that the query committed, s."""
    connection = psycopg2.connect(str(home.state("postgres")["address"]))
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT id, extract(epoch FROM committed_at) FROM micro_batches WHERE query = %s ORDER BY id", (query,)
            )
            return [(int(number), float(moment)) for number, moment in cursor.fetchall()]
    finally:
        connection.close()
