"""The verbs `new`, `test` and `bench`, for those who add a pipeline or change Tidemark."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from include.cli.output import print_facts, progress
from include.settings import REPOSITORY

_BY_MODULE = ("--dist", "loadfile", "--no-loadscope-reorder")


def test(context: typer.Context) -> None:
    """Run the test suite, four modules at a time.

    Arguments go to pytest, `-h` among them, and the exit code is pytest's. Where they name tests or workers of their
    own, it is one module at a time.
    """
    if context.args == ["--help"]:
        print(context.get_help())
        return
    os.chdir(REPOSITORY)
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *workers(context.args), *context.args])


def workers(arguments: Sequence[str]) -> Sequence[str]:
    """Return the options by which pytest runs modules in parallel; none if the arguments name tests or workers."""
    chosen = any(each.startswith(("-n", "--numprocesses")) for each in arguments)
    named = any((REPOSITORY / each.split("::")[0]).exists() for each in arguments)
    # More workers than CPUs: modules spend much of their time waiting for services and drivers. In the long tier, each
    # may take the memory of an Airflow.
    count = "3" if any("slow" in each for each in arguments) else "4"
    return () if chosen or named else ("-n", count, *_BY_MODULE)


def bench(context: typer.Context) -> None:
    """Run the benchmarks and print their ratios as JSON.

    `./tidemark bench --help` lists their names and options.
    """
    os.chdir(REPOSITORY)
    os.execv(sys.executable, [sys.executable, "-m", "tests.benchmarks", *context.args])


class Format(StrEnum):
    """Format of a new pipeline's messages. It is the only one, so nobody need name it."""

    json = "json"


def new(
    name: Annotated[str, typer.Argument(help="name of the pipeline, its table and its files, e.g. door_events")],
    sample: Annotated[Path, typer.Option("--sample", help="file of real messages, one JSON object per line")],
    message_format: Annotated[Format, typer.Option("--format", hidden=True)] = Format.json,
    topic: Annotated[str, typer.Option("--topic", help="topic to read; default: the name with hyphens")] = "",
    event_time: Annotated[
        str,
        typer.Option(
            "--event-time", help="dotted path of the event time's field; default: the first field with a time"
        ),
    ] = "",
    key: Annotated[
        str | None, typer.Option("--key", help="text field to count by; default: the one whose values repeat most")
    ] = None,
) -> None:
    """Write a new pipeline from a sample of its messages.

    The pipeline can be run at once.
    """
    from include.scaffold.new_pipeline import write_pipeline

    written = write_pipeline(name, sample, topic=topic, event_time=event_time, key=key)
    counted_by = f"{written.key} and hour" if written.key else "hour"
    print_facts({"topic": written.topic, "event time": written.event_time, "counted by": counted_by})
    for path in written.files:
        progress(f"wrote {path}")
    progress(f"next: ./tidemark test tests/spark_jobs/transforms/test_{name}.py, then ./tidemark demo {name}")
