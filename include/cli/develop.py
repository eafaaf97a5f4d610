"""`test` and `bench`: for those who change Tidemark."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from include.settings import REPOSITORY

_TWO_AT_A_TIME = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def register(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    app.command(context_settings=_PASS_ON)(test)
    app.command()(bench)


def test(context: typer.Context) -> None:
    """Run the test suite, two modules at a time; arguments go to pytest instead."""
    os.chdir(REPOSITORY)
    # Services and drivers of a module wait for each other half of the time: the other half is another module's.
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *(context.args or _TWO_AT_A_TIME)])


def bench(name: Annotated[str, typer.Argument(help="e.g. archive; default: all")] = "") -> None:
    """Run the benchmarks and print their ratios as JSON."""
    os.chdir(REPOSITORY)
    os.execv(sys.executable, [sys.executable, "-m", "tests.benchmarks", *([name] if name else [])])
