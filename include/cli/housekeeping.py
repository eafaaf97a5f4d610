"""`housekeeping`: what tables have replaced goes, closed days are compacted."""

from __future__ import annotations

from typing import Annotated

import typer

from include.cli import AsJson
from include.cli.output import console, print_json, print_table, progress, suggest, working
from include.housekeeping import run as keeping
from include.pipelines import all_pipelines, load_pipeline


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command()(housekeeping)


def housekeeping(
    pipeline: Annotated[str, typer.Argument(metavar="[PIPELINE]", help="default: all")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be done")] = False,
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="instead of the declared times, e.g. 6h; no interval may run")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove landing of registered intervals, old revisions and leftovers after their time; compact closed days."""
    chosen = [load_pipeline(pipeline)] if pipeline else all_pipelines()
    done = []
    with working("housekeeping", len(chosen), as_json=as_json) as finished:
        for number, each in enumerate(chosen):
            finished(number)
            done.append(keeping.keep_house(each, dry_run=dry_run, older_than=older_than, progress=progress))
    if as_json:
        print_json(done)
        return
    columns = [
        "pipeline",
        "landing files",
        "compacted files",
        "revisions",
        "orphans",
        "Iceberg metadata",
        "files deleted",
        "bytes deleted",
        "old generations",
        "old logs",
    ]
    rows = [
        [
            each["pipeline"],
            each["landing"]["files"],
            each["compacted"]["files"],
            each["revisions"]["revisions"],
            len(each["orphans"]),
            len(each["metadata"]),
            each["deleted"]["files"],
            each["deleted"]["bytes"],
            each["generations"]["generations"],
            each["logs"]["files"],
        ]
        for each in done
    ]
    print_table(columns, rows)
    if dry_run:
        console.print("nothing was changed")
        suggest("./tidemark housekeeping does it")
    else:
        suggest("./tidemark doctor")
