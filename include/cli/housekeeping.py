"""`housekeeping`, `erase` and `rename`: delete what tables have replaced or keep of a person; a column's new name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from include.cli import AsJson, PipelineName, refuse_options
from include.cli.output import clean, console, print_facts, print_json, print_table, progress, suggest, working
from include.errors import TidemarkError, UsageError
from include.housekeeping import run as keeping
from include.pipelines import declarations, load_pipeline
from include.processes import user_at_host


def housekeeping(
    pipeline: Annotated[str, typer.Argument(metavar="[PIPELINE]", help="default: all")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only print what would be done")] = False,
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="instead of the declared times, e.g. 6h")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove landing of registered intervals, old revisions and leftovers after their time; compact closed days.

    Of all pipelines, those whose declaration is refused are left and named; the exit code is 64 then. One that fails
    keeps none of the others from being done; the exit code is that of the first failure.
    """
    chosen = [load_pipeline(pipeline)] if pipeline else declarations().pipelines
    refused = [] if pipeline else declarations().reasons
    done: list[dict[str, Any]] = []
    failures: list[TidemarkError] = []
    with working("housekeeping", len(chosen), as_json=as_json) as finished:
        for number, each in enumerate(chosen):
            finished(number)
            try:
                done.append(keeping.keep_house(each, dry_run=dry_run, older_than=older_than, progress=progress))
            except TidemarkError as error:
                error.pipeline = error.pipeline or each.name
                failures.append(error)
    for reason in (*refused, *map(str, failures[1:])):
        progress(reason)
    if done or not failures:
        _tell(done, dry_run=dry_run, as_json=as_json)
    for failure in failures[:1]:
        raise failure
    if refused:
        raise typer.Exit(UsageError.exit_code)


def _tell(done: Sequence[Mapping[str, Any]], *, dry_run: bool, as_json: bool) -> None:
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


def erase(
    context: typer.Context,
    pipeline: PipelineName,
    key: Annotated[
        list[str] | None, typer.Option("--key", help="who or what is erased; may be given several times")
    ] = None,
    keys_file: Annotated[Path | None, typer.Option("--keys-file", help="file with one key per line")] = None,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", help="path of the key inside an archive row; default: as declared"),
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="why; kept for ever, so name nobody in it")] = "",
    whole_records: Annotated[
        bool, typer.Option("--whole-records", help="also erase rows of others that the same messages hold")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only print how much would be erased")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="finish the unfinished erasure; needs no key")] = False,
    as_json: AsJson = False,
) -> None:
    """Erase what is kept about a person or thing: rows of tables, landing, quarantine, views and topics of views."""
    from include.erasure import run
    from include.erasure.keys import read_keys

    declared = load_pipeline(pipeline)
    if resume:
        # The ledger has what was asked for when the erasure began.
        refuse_options(context, "with --resume", "key", "keys_file", "column", "reason", "whole_records", "dry_run")
        _show(run.resume(declared, progress), as_json)
        return
    wish = run.Wish(read_keys(key or [], keys_file), column or [], reason, user_at_host(), whole_records)
    if dry_run:
        _show(run.dry_run(declared, wish), as_json)
        return
    _show(run.erase(declared, wish, progress), as_json)


def rename(
    pipeline: PipelineName,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say which intervals are left")] = False,
    as_json: AsJson = False,
) -> None:
    """Build the intervals again whose files lack a renamed column's new name, so that tables show it."""
    from include.housekeeping import renaming

    declared = load_pipeline(pipeline)
    done = renaming.state(declared) if dry_run else renaming.rename(declared, user_at_host(), progress)
    if as_json:
        print_json(done)
    else:
        print_facts(done)


def _show(account: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(account)
        return
    remains = account.pop("remains", [])
    print_facts(account)
    for each in remains:
        console.print(f"remains: {clean(each)}", highlight=False, soft_wrap=True)
    if "erasure" in account:
        suggest("./tidemark rebuild TABLE PARTITION shows that nothing comes back from Kafka")
    else:
        console.print("nothing was changed")
