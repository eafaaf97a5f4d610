"""`test` and `bench`: for those who change Tidemark."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from include.settings import REPOSITORY

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def register(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    app.command(context_settings=_PASS_ON)(test)
    app.command()(bench)


def test(context: typer.Context) -> None:
    """Run the test suite; arguments go to pytest."""
    os.chdir(REPOSITORY)
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *context.args])


def bench(name: Annotated[str, typer.Argument(help="e.g. archive; default: all")] = "") -> None:
    """Run the benchmarks and print their ratios as JSON."""
    os.chdir(REPOSITORY)
    os.execv(sys.executable, [sys.executable, "-m", "tests.benchmarks", *([name] if name else [])])
