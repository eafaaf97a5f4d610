"""`new`, `test` and `bench`: for those who add a pipeline or change Tidemark."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from include.cli.output import print_facts, progress
from include.settings import REPOSITORY

_THREE_AT_A_TIME = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def register(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    app.command(context_settings=_PASS_ON)(test)
    app.command(context_settings=_PASS_ON)(bench)
    app.command()(new)


def test(context: typer.Context) -> None:
    """Run the test suite, three modules at a time; arguments go to pytest instead."""
    os.chdir(REPOSITORY)
    # Services and drivers of a module wait for each other a good part of the time, which is another module's then.
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *(context.args or _THREE_AT_A_TIME)])


def bench(context: typer.Context) -> None:
    """Run the benchmarks and print their ratios as JSON; their names and options: `./tidemark bench --help`."""
    os.chdir(REPOSITORY)
    os.execv(sys.executable, [sys.executable, "-m", "tests.benchmarks", *context.args])


class Format(StrEnum):
    """Of the messages of a new pipeline."""

    json = "json"


def new(
    name: Annotated[str, typer.Argument(help="of the pipeline, its table and its files, e.g. door_events")],
    sample: Annotated[Path, typer.Option("--sample", help="messages as they come: a JSON object a line")],
    message_format: Annotated[Format, typer.Option("--format", help="of the messages")] = Format.json,
    topic: Annotated[str, typer.Option("--topic", help="default: the name with hyphens")] = "",
    event_time: Annotated[str, typer.Option("--event-time", help="path of the field; default: the first time")] = "",
    key: Annotated[str | None, typer.Option("--key", help="text to count by; default: what repeats most")] = None,
) -> None:
    """Write a new pipeline from a sample of its messages; it runs at once."""
    from include.scaffold.new_pipeline import write_pipeline

    made = write_pipeline(name, sample, topic=topic, event_time=event_time, key=key)
    counted = f"{made.key} and hour" if made.key else "hour"
    print_facts({"topic": made.topic, "event time": made.event_time, "counted by": counted})
    for path in made.files:
        progress(f"wrote {path}")
    progress(f"next: ./tidemark test tests/spark_jobs/transforms/test_{name}.py, then ./tidemark demo {name}")
