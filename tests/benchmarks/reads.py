"""`bench reads`: bytes that the broker sends while an interval runs, against the bytes of its ranges.

What the broker sends is counted by the kernel for the broker's process (`/proc/<pid>/io`, which counts
`sendfile` too), so nothing that reads Kafka on behalf of the interval is forgotten: Spark, the second
reader of the gaps, the search for boundaries. Bytes of the ranges are those of the topic's log segments,
as they lie on disk and go over the wire. The hours before and after the measured one are just as full.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psutil

from tests.benchmarks.home import BenchHome, bench_home
from tests.benchmarks.targets import Target

HOURS = 3
_TIME = "%Y-%m-%dT%H:%M:%SZ"


def run(events: int = 150_000) -> dict[str, Any]:
    """Bytes sent during the middle one of three intervals, and during a rerun, against those of its ranges."""
    with bench_home() as home:
        start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=HOURS + 1)
        sizes = [0]
        for hour in range(HOURS):
            begin = (start + timedelta(hours=hour)).strftime(_TIME)
            span = ("--start", begin, "--span", "59m", "--seed", str(hour))
            home.run("produce", "nest_cameras", "--events", str(events), "--bad-fraction", "0.01", *span)
            sizes.append(_log_bytes(home))
        home.run("stream", "nest_cameras", "--until-caught-up")
        sent = [_sent_during_interval(home, start + timedelta(hours=1)) for _ in range(2)]
        in_ranges = sizes[2] - sizes[1]
        return {
            "offsets": events,
            "bytes_in_ranges": in_ranges,
            "bytes_sent": {"first_run": sent[0], "rerun": sent[1]},
            "sent_ratio": {"first_run": round(sent[0] / in_ranges, 3), "rerun": round(sent[1] / in_ranges, 3)},
        }


def targets(found: dict[str, Any]) -> list[Target]:
    """Return the targets: an interval reads its ranges once, and little else."""
    return [Target(f"sent_ratio.{run}", ratio, at_most=1.1) for run, ratio in found["sent_ratio"].items()]


def _log_bytes(home: BenchHome) -> int:
    return sum(path.stat().st_size for path in (home.path / "kafka").glob("nest-logs-*/*.log"))


def _sent_during_interval(home: BenchHome, begin: datetime) -> int:
    broker = psutil.Process(home.state("kafka")["pid"])
    before = broker.io_counters().write_chars
    bounds = ("--from", begin.strftime(_TIME), "--to", (begin + timedelta(hours=1)).strftime(_TIME))
    home.run("interval", "nest_cameras", *bounds)
    return int(broker.io_counters().write_chars - before)
