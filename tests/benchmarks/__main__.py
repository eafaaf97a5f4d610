"""`./tidemark bench [NAME]`: runs benchmarks on services of their own and prints their ratios as JSON."""

from __future__ import annotations

import argparse
import json

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
    arguments = parser.parse_args()
    names = [arguments.name] if arguments.name else list(BENCHMARKS)
    print(json.dumps({name: BENCHMARKS[name]() for name in names}, indent=2))


if __name__ == "__main__":
    main()
