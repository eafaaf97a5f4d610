"""SQL or Python over a pipeline as it is now: its views live in memory, its archive, and the catalog.

python spark_jobs/open_shell.py --pipeline NAME [--json] [--python]

Statements come from standard input, each ended by `;` or by the end of its line on a terminal.
"""

from __future__ import annotations

import argparse
import sys

from spark_jobs.live.shell import run_shell
from spark_jobs.spark.entry import run_entry


def main(argv: list[str]) -> int:
    """Run with these arguments and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--python", action="store_true")
    arguments = parser.parse_args(argv)
    return run_shell(arguments.pipeline, as_json=arguments.json, in_python=arguments.python)


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
