"""Replays quarantined records of a pipeline through the current code.

spark-submit spark_jobs/replay_quarantine.py --pipeline NAME --by USER@HOST --result FILE
    [--topic T] [--partition P] [--offset O] [--reason CODE] [--topic-id ID]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from include.pipelines import load_pipeline
from include.quarantine import Selection
from include.versions import decoder_version
from spark_jobs.quarantine.replay import replay
from spark_jobs.spark.entry import run_entry
from spark_jobs.spark.session import build_session
from spark_jobs.streaming.started_code import check_code, load_code


def main(argv: list[str]) -> int:
    """Run with these arguments and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--by", required=True)
    parser.add_argument("--result", required=True, type=Path)
    parser.add_argument("--topic")
    parser.add_argument("--partition", type=int)
    parser.add_argument("--offset", type=int)
    parser.add_argument("--reason")
    parser.add_argument("--topic-id")
    arguments = parser.parse_args(argv)
    pipeline = load_pipeline(arguments.pipeline)
    selection = Selection.of(
        pipeline,
        arguments.topic,
        partition=arguments.partition,
        offset=arguments.offset,
        reason=arguments.reason,
        topic_id=arguments.topic_id,
    )
    # Before Spark starts: what is deployed meanwhile is not the code that decodes these records.
    code = load_code(pipeline)
    decoder_version(pipeline.code)
    check_code(pipeline, code, "replay")
    counts = replay(build_session(f"replay {pipeline.name}"), pipeline, selection, by=arguments.by)
    arguments.result.write_text(json.dumps(counts))
    return 0


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
