"""CPU seconds of one look at two running queries, noted in the ledger: of this process and its JVM.

python -m tests.benchmarks.progress_notes PIPELINE LOOKS
"""

from __future__ import annotations

import sys
import tempfile
import time

import psutil
from pyspark.sql import SparkSession

from spark_jobs.streaming.progress import ProgressNotes

WARM = 300
"""Warm-up looks: the JVM compiles frequent code, which a running stream pays once."""


def main(pipeline: str, looks: int) -> int:
    """Write the CPU seconds of a look."""
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
        spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        # One micro-batch, then the queries wait, so all CPU time is that of the looks.
        rows = spark.readStream.format("rate").load()
        queries = {
            name: rows.writeStream.format("noop")
            .queryName(name)
            .option("checkpointLocation", f"{folder}/{name}")
            .trigger(processingTime="1 hour")
            .start()
            for name in ("archive", "by_zip")
        }
        while not all(query.lastProgress for query in queries.values()):
            time.sleep(0.2)
        notes = ProgressNotes(pipeline, lambda: queries)
        _look(notes, WARM)
        before = _cpu()
        _look(notes, looks)
        print((_cpu() - before) / looks)
        spark.stop()
    return 0


def _look(notes: ProgressNotes, times: int) -> None:
    for _ in range(times):
        # As if each query had new progress, like a busy one.
        notes._noted.clear()
        notes._look()


def _cpu() -> float:
    mine = psutil.Process()
    every = [each.cpu_times() for each in (mine, *mine.children(recursive=True))]
    return sum(each.user + each.system for each in every)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
