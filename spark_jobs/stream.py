"""The continuous job of a pipeline: the archive query and its speed queries in one Spark application.

spark-submit spark_jobs/stream.py --pipeline NAME [--until-caught-up] [--from socket://HOST:PORT|FOLDER'S URI]
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING

from include.pipelines import load_pipeline
from include.pipelines.spec.lines import parse_line_source
from spark_jobs.lines.line_stream import run_line_stream
from spark_jobs.spark.entry import run_entry
from spark_jobs.spark.session import build_session
from spark_jobs.streaming.flag_query import task_slots
from spark_jobs.streaming.kafka_stream import run_stream
from spark_jobs.streaming.launch import noting_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(argv: list[str]) -> int:
    """Run with these arguments and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--until-caught-up", action="store_true")
    parser.add_argument("--from", dest="line_source")
    arguments = parser.parse_args(argv)
    pipeline = load_pipeline(arguments.pipeline)
    if arguments.line_source:
        session = partial(build_session, f"stream {pipeline.name} from lines", catalog=pipeline.joins_catalog)
        source = parse_line_source(arguments.line_source)
        return run_line_stream(session, pipeline, source, until_caught_up=arguments.until_caught_up)

    def open_session() -> SparkSession:
        # Asked under the lease: a broker that is away ends the driver as elsewhere in its start.
        slots = task_slots(pipeline)
        return build_session(f"stream {pipeline.name}", catalog=pipeline.joins_catalog, task_slots=slots)

    return noting_end(lambda: run_stream(open_session, pipeline, until_caught_up=arguments.until_caught_up))


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
