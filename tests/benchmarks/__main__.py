"""`./tidemark bench [NAME]`: runs benchmarks on services of their own and prints their ratios as JSON."""

from __future__ import annotations

import argparse
import inspect
import json

from include.pipelines import pipeline_names
from tests.benchmarks import archive, batches, flags, pipelines, reads

BENCHMARKS = {
    "archive": archive.run,
    "batches": batches.run,
    "flags": flags.run,
    "reads": reads.run,
    "pipelines": pipelines.run,
}


def main() -> None:
    """Arguments to JSON on standard output."""
    summaries = "\n".join(str(module.__doc__).splitlines()[0] for module in (archive, batches, flags, reads, pipelines))
    parser = argparse.ArgumentParser(
        prog="./tidemark bench",
        description=summaries,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", choices=BENCHMARKS)
    asked = parser.add_argument_group("of archive and pipelines")
    asked.add_argument("--events", type=int, help="messages in the topics")
    asked.add_argument("--rounds", type=int, help="that count, after as many that do not")
    asked.add_argument("--bad-fraction", type=float, help="share of bad messages, 0 to 1")
    asked.add_argument("--pipeline", action="append", dest="pipelines", choices=pipeline_names())
    arguments = parser.parse_args()
    given = {key: value for key, value in vars(arguments).items() if key != "name" and value is not None}
    names = [arguments.name] if arguments.name else list(BENCHMARKS)
    for name in names:
        if unknown := given.keys() - inspect.signature(BENCHMARKS[name]).parameters.keys():
            parser.error(f"{name} takes no {', '.join(sorted(unknown))}")
    print(json.dumps({name: BENCHMARKS[name](**given) for name in names}, indent=2))


if __name__ == "__main__":
    main()
