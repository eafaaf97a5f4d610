"""`./tidemark bench [NAME]`: runs benchmarks on services of their own and prints their ratios as JSON."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from typing import Any, NoReturn

from include.errors import UsageError
from include.pipelines import pipeline_names
from tests.benchmarks import (
    ablation,
    archive,
    batches,
    commands,
    flags,
    iceberg,
    interval,
    pages,
    pipelines,
    reads,
    scale,
    starts,
)
from tests.benchmarks.targets import Target

BENCHMARKS = {
    "ablation": ablation,
    "archive": archive,
    "batches": batches,
    "commands": commands,
    "flags": flags,
    "iceberg": iceberg,
    "interval": interval,
    "pages": pages,
    "reads": reads,
    "pipelines": pipelines,
    "scale": scale,
    "starts": starts,
}
"""Modules with `run`, whose parameters are a benchmark's options, and `targets` for its results."""


def main() -> int:
    """Run benchmarks and print JSON; return 1 if `--check` is given and a figure misses its target."""
    arguments = _parser().parse_args()
    given = {key: value for key, value in vars(arguments).items() if key not in {"name", "check"} and value is not None}
    names = [arguments.name] if arguments.name else list(BENCHMARKS)
    for name in names:
        if unknown := given.keys() - _options(name):
            _parser().error(f"{name} takes no {', '.join(sorted(unknown))}")
    found: dict[str, Any] = {name: BENCHMARKS[name].run(**given) for name in names}
    print(json.dumps(found, indent=2))
    missed = False
    for name in names:
        targets: list[Target] = BENCHMARKS[name].targets(found[name])
        for target in targets:
            print(f"{name}: {target}", file=sys.stderr)
            missed = missed or not target.met
    return 1 if missed and arguments.check else 0


def _options(benchmark: str) -> set[str]:
    return set(inspect.signature(BENCHMARKS[benchmark].run).parameters)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """End with one line and the code of wrong usage; argparse's own would mean that a validation failed."""
        self.exit(UsageError.exit_code, f"tidemark: {message} — see ./tidemark bench --help\n")


def _parser() -> argparse.ArgumentParser:
    def of(option: str, meaning: str) -> str:
        return f"{meaning} ({', '.join(name for name in BENCHMARKS if option in _options(name))})"

    parser = _Parser(
        prog="./tidemark bench",
        description="\n".join(str(module.__doc__).splitlines()[0] for module in BENCHMARKS.values()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", choices=BENCHMARKS)
    parser.add_argument("--check", action="store_true", help="end with 1 if a figure misses what is wanted of it")
    parser.add_argument("--events", type=int, help=of("events", "messages in the topics"))
    parser.add_argument("--rounds", type=int, help=of("rounds", "rounds that count"))
    parser.add_argument(
        "--seconds",
        type=float,
        help=of("seconds", "how long a round of an idle stack, or the flags' steady state, takes"),
    )
    parser.add_argument("--bad-fraction", type=float, help=of("bad_fraction", "share of bad messages, 0 to 1"))
    parser.add_argument(
        "--pipeline",
        action="append",
        dest="pipelines",
        choices=pipeline_names(),
        help=of("pipelines", "may be given several times"),
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
