"""Runs a small interval, so that the JVM has loaded the classes of intervals when it dumps them at its end.

spark-submit spark_jobs/train_classes.py
"""

from __future__ import annotations

import sys

from include.pipelines import load_pipeline
from spark_jobs.spark.entry import run_entry
from spark_jobs.spark.session import build_session
from spark_jobs.training.small_interval import METASTORE, run_small_interval


def main(argv: list[str]) -> int:
    """Train with one pipeline: the classes are Spark's, not the pipeline's."""
    spark = build_session("class training", metastore=METASTORE)
    run_small_interval(spark, load_pipeline("nest_cameras"))
    spark.stop()
    return 0


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
