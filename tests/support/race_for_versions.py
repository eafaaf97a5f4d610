"""Two threads of one application put each version of a Delta log at once; standard output tells who won which.

spark-submit tests/support/race_for_versions.py LOG_STORE VERSIONS

As JSON: a list for each version, of the writers whose put was accepted, and at last the one whose commit is there.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

from py4j.protocol import Py4JJavaError

from include import lake
from spark_jobs.spark.entry import run_entry
from spark_jobs.spark.session import build_session

WRITERS = ("one", "other")


def main(argv: list[str]) -> int:
    log_store, versions = argv[0], int(argv[1])
    spark: Any = build_session("race for versions")
    jvm, configuration, barrier = spark._jvm, spark._jsc.hadoopConfiguration(), Barrier(len(WRITERS))
    store = getattr(jvm, log_store)(configuration)

    def put(writer: str, version: int) -> bool:
        path = jvm.org.apache.hadoop.fs.Path(lake.uri("race", log_store, f"{version:020}.json"))
        actions = jvm.java.util.Collections.singletonList(writer).iterator()
        barrier.wait()
        try:
            store.write(path, actions, False, configuration)
        except Py4JJavaError as error:
            if "FileAlreadyExists" in error.java_exception.getClass().getName():
                return False
            raise
        return True

    with ThreadPoolExecutor(len(WRITERS)) as pool:
        for version in range(versions):
            won = list(pool.map(put, WRITERS, [version] * len(WRITERS)))
            there = lake.read_text(lake.uri("race", log_store, f"{version:020}.json")).strip()
            print(json.dumps([*(writer for writer, each in zip(WRITERS, won, strict=True) if each), there]))
    return 0


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
