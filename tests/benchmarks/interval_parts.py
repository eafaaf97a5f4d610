"""One pipeline's intervals taken apart in a warm driver: the CPU seconds of each part, beside the archive query's.

Run by `bench interval` under spark-submit. Functions of the interval's jobs are wrapped; what one costs without those
that it calls is its part. The same intervals are built and published again, so everything is compiled when it counts.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline
from include.spark import driver_folders
from include.spark.submission import submission
from include.times import Interval, parse_time

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WRAPPED = (
    ("spark_jobs.intervals.read", "count_fates", "Kafka: read, decoded, hashed"),
    ("spark_jobs.intervals.read", "_compare_written", "Kafka against written files, gaps"),
    ("spark_jobs.intervals.write", "write_files", "{table}: read, sorted, written"),
    ("spark_jobs.intervals.write", "_read_back", "{table}: read back and hashed"),
    ("spark_jobs.intervals.write", "_move", "files: SHA-256 and move"),
    ("spark_jobs.intervals.build", "reconcile_view", "views: aggregated and compared"),
    ("spark_jobs.intervals.build", "reconcile_flags", "flags: compared"),
    ("spark_jobs.intervals.build", "collect_report", "report"),
    ("spark_jobs.intervals.build", "compare_revisions", "revisions: compared with the registered"),
    ("spark_jobs.publication.validate", "run_checkpoint", "expectations"),
    ("spark_jobs.publication.publish_build", "register", "registration"),
    ("spark_jobs.publication.publish_build", "publish_delta", "Delta table"),
)
"""Module, function and part; a function that writes or reads a table's files names it."""


class Parts:
    """CPU seconds of this process, its JVM and their children, by part."""

    def __init__(self) -> None:
        driver = psutil.Process()
        jvm = next((child for child in driver.children() if child.name() == "java"), driver.parent())
        self._processes = [driver, *([jvm] if jvm else [])]
        self._open = ["rest"]
        self._at = self.used()
        self.seconds: dict[str, float] = defaultdict(float)

    def used(self) -> float:
        """CPU seconds so far; the JVM counts Python workers that it has reaped."""
        times = [each.cpu_times() for each in self._processes]
        own = {each.pid for each in self._processes}
        workers = [each for each in self._processes[-1].children(recursive=True) if each.pid not in own]
        living = 0.0
        for each in workers:
            try:
                living += sum(each.cpu_times()[:2])
            except psutil.NoSuchProcess:
                continue
        return living + sum(sum(each[:4]) for each in times[1:]) + sum(times[0][:2])

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the CPU time used inside for that part, except for its inner parts."""
        self._note()
        self._open.append(name)
        try:
            yield
        finally:
            self._note()
            self._open.pop()

    def _note(self) -> None:
        now = self.used()
        self.seconds[self._open[-1]] += now - self._at
        self._at = now


class Inline(Executor):
    """Runs what is submitted at once, in the caller's thread."""

    def __init__(self, **_: Any) -> None:
        """Take the options of an executor with threads."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the function, and return what it returned."""
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


def wrap(parts: Parts) -> None:
    """Wrap the functions of the interval's jobs, so that they count for their parts."""

    def wrapped(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            with parts.part(name.format(table=_table_of(arguments))):
                return function(*arguments, **named)

        return called

    # One after the other, so that all CPU time meanwhile counts for one part.
    importlib.import_module("spark_jobs.intervals.read").ThreadPoolExecutor = Inline  # type: ignore[attr-defined]
    for module_name, function_name, part in WRAPPED:
        module = importlib.import_module(module_name)
        setattr(module, function_name, wrapped(getattr(module, function_name), part))


def _table_of(arguments: tuple[Any, ...]) -> str:
    """The table of a layout, or of the location that is written."""
    for each in arguments:
        if table := getattr(each, "table", ""):
            return str(table)
        if isinstance(each, str) and "/tables/" in each:
            return each.split("/tables/")[1].split("/")[0]
    return ""


def run_interval(spark: SparkSession, pipeline: Pipeline, interval: Interval) -> tuple[dict[str, float], int, float]:
    """Build and publish an interval; CPU seconds by part, its offsets, and wall seconds."""
    from include.intervals.pinning import pin_interval
    from include.ledger.intervals import attempts
    from include.ledger.intervals.states import Source
    from include.versions import code_version
    from spark_jobs.intervals.build import build
    from spark_jobs.publication.publish_build import publish
    from spark_jobs.reconciliation.interval_run import IntervalRun

    pinned = pin_interval(pipeline, interval, pinned_by="bench")
    version = code_version(pipeline.name)
    attempt = attempts.begin_attempt(pinned, run_by="bench", code_version=version, source=Source.KAFKA)
    begun = time.monotonic()
    PARTS.seconds.clear()
    with PARTS.part("rest"):
        run = IntervalRun(spark, pipeline, attempts.load_attempt(attempt))
        build(run)
        findings = attempts.load_attempt(attempt).findings.build
        if findings is None or findings.reconciliation.unexplained:
            raise SystemExit(f"{interval} is not reconciled: its figures do not count")
        spark.catalog.clearCache()
        publish(run)
    attempts.close_attempt(attempt, 0)
    return dict(PARTS.seconds), sum(len(each) for each in pinned.ranges), time.monotonic() - begun


def measure(pipeline: Pipeline, hours: list[Interval], rounds: int) -> dict[str, Any]:
    """CPU seconds per million offsets: of the archive query, and between the smallest and the largest interval.

    Half of the rounds warm up.
    """
    from spark_jobs.publish import publishing_session

    spark = publishing_session("bench interval")
    wrap(PARTS)
    turns = [[run_interval(spark, pipeline, each) for each in hours] for _ in range(rounds)]
    # The cheapest of the warm runs: others that use the machine make some dearer, and none cheaper.
    warm = zip(*turns[rounds // 2 :], strict=True)
    measured = [min(of_hour, key=lambda run: sum(run[0].values())) for of_hour in warm]
    (few, small, few_seconds), (many, large, many_seconds) = measured[0], measured[-1]
    millions = (large - small) / 1e6
    marginal = {name: round((many.get(name, 0) - few.get(name, 0)) / millions, 1) for name in sorted({*few, *many})}
    archive = archive_query(pipeline, rounds)
    total = sum(marginal.values())
    return {
        "offsets": [small, large],
        "cpu_seconds": [round(sum(each.values()), 1) for each in (few, many)],
        "wall_seconds": [round(few_seconds, 1), round(many_seconds, 1)],
        "cpu_per_million": round(total, 1),
        "parts_of_smallest": {name: round(used, 2) for name, used in sorted(few.items(), key=lambda part: -part[1])},
        "parts_per_million": dict(sorted(marginal.items(), key=lambda part: -part[1])),
        "archive_query_cpu_per_million": round(archive, 1),
        "ratio_to_archive_query": round(total / archive, 2),
    }


def archive_query(pipeline: Pipeline, rounds: int) -> float:
    """CPU seconds of the archive query per million records, over the whole topic, when it is warm."""
    from tests.benchmarks.archive_queries import Queries

    queries = Queries(pipeline)
    for number in range(rounds):
        before = PARTS.used()
        queries.archive(number).start().awaitTermination()
        used = PARTS.used() - before
    return used / queries.records * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--hour", action="append", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--result", type=Path, required=True)
    arguments = parser.parse_args()
    pipeline = load_pipeline(arguments.pipeline)
    if "TIDEMARK_BENCH" not in os.environ:
        delta = pipeline.archive.delta
        job = submission("build_interval", *sys.argv[1:], name="bench interval", delta=delta)
        command = [Path(__file__).as_posix() if part == job.application else part for part in job.command()]
        environment = {**os.environ, **job.env, "TIDEMARK_BENCH": "1", "TIDEMARK_LEASE_SECONDS": "120"}
        return subprocess.run(command, env=environment, check=False).returncode
    driver_folders.hold()
    hours = [Interval(begin, begin + timedelta(hours=1)) for begin in map(parse_time, arguments.hour)]
    found = measure(pipeline, hours, arguments.rounds)
    arguments.result.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    PARTS = Parts()
    sys.exit(main())
