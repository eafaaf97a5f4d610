"""The verbs `pipelines`, `ranges`, `explain`, `lag` and `verify`, which need no Spark."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from include.cli import AsJson, PipelineName
from include.cli.output import (
    clean,
    console,
    print_facts,
    print_json,
    print_lines,
    print_table,
    progress,
    suggest,
)
from include.errors import UsageError
from include.pipelines import declarations, load_pipeline
from include.pipelines.spec import Pipeline
from include.settings import settings
from include.times import format_time, parse_time


def pipelines(as_json: AsJson = False) -> None:
    """List the declared pipelines with topics, tables and DAGs."""
    declared = [
        {
            "name": p.name,
            "description": p.description,
            "topics": list(p.source.named or [p.source.pattern]),
            "tables": [f"lake.{table}" for table in p.tables],
            "speed_views": {view.name: view.speed.topic for view in p.views},
            "written_topics": p.written_topics,
            "dags": [
                f"{kind}__{p.name}" for kind in ("stream", "interval", *(["daily"] if p.schedule.is_hourly else []))
            ],
            "quarantine": f"{settings().lake_uri}/quarantine/{p.name}",
            "locations": _locations(p),
            "live_tables": list(p.live_tables),
            "schedule": p.schedule.cron,
        }
        for p in declarations().loaded
    ]
    for reason in declarations().reasons:
        progress(reason)
    if as_json:
        print_json(declared)
        return
    rows = [
        [p.name, p.source.named or [p.source.pattern], p.tables, [view.speed.topic for view in p.views]]
        for p in declarations().loaded
    ]
    print_table(
        ["pipeline", "topics", "tables", "speed views to"],
        [[name, *("\n".join(each) for each in several)] for name, *several in rows],
    )
    console.print("\nDAGs: stream__PIPELINE, interval__PIPELINE. Schedules: --json", style="dim")
    places = "tables/TABLE and, of each PIPELINE, landing, quarantine, reports, proofs and checkpoints"
    console.print(clean(f"In {settings().lake_uri}: {places}"), style="dim", highlight=False)
    if declared:
        suggest(f"./tidemark demo {declared[0]['name']}")


def _locations(pipeline: Pipeline) -> dict[str, str]:
    """Return the pipeline's folders in the lake, by table and by what else they hold."""
    kinds = ["landing", "quarantine", "reports", "proofs", "checkpoints"]
    kinds += ["delta"] if pipeline.archive.delta else []
    kinds += ["references"] if pipeline.references else []
    folders = {f"lake.{table}": f"tables/{table}" for table in pipeline.tables}
    folders |= {kind: f"{kind}/{pipeline.name}" for kind in kinds}
    folders |= {f"iceberg.{table}": f"iceberg/{table}" for table in pipeline.iceberg_tables}
    return {name: f"{settings().lake_uri}/{folder}" for name, folder in folders.items()}


def ranges(
    pipeline: PipelineName,
    from_time: Annotated[
        str | None, typer.Option("--from", help="only the interval that starts at this time; with --to all from it on")
    ] = None,
    to_time: Annotated[
        str | None, typer.Option("--to", help="only the interval that ends at this time; with --from all up to it")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the pinned offset ranges of all intervals, or of some."""
    from include.ledger.intervals.pinned import pinned_intervals

    declared = load_pipeline(pipeline)
    first = None if from_time is None else parse_time(from_time)
    last = None if to_time is None else parse_time(to_time)
    pinned = pinned_intervals(declared.name, first if last is None else None)
    if last is not None and first is None:
        pinned = [each for each in pinned if each.interval.to_time == last]
    elif last is not None and first is not None:
        pinned = [each for each in pinned if first <= each.interval.from_time and each.interval.to_time <= last]
    rows = [
        {
            "from": format_time(each.interval.from_time),
            "to": format_time(each.interval.to_time),
            **r.as_json(),
        }
        for each in pinned
        for r in each.ranges
    ]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(list(rows[0]), [list(row.values()) for row in rows])
        suggest(f"./tidemark interval {declared.name} --from {rows[-1]['from']} --to {rows[-1]['to']}")
    else:
        console.print("no interval is pinned")
        suggest(f"./tidemark interval {declared.name} --from TIME --to TIME")


def explain(
    table: Annotated[str, typer.Argument(help="e.g. nest_cameras or lake.nest_cameras")],
    partition: Annotated[str, typer.Argument(help="e.g. date=2026-11-20/interval=2026-11-20T05")],
    as_json: AsJson = False,
) -> None:
    """Show where a table partition comes from.

    That is its revision, files, interval, offset ranges, counts and verdict.
    """
    from include.intervals import explanation

    explained = explanation.explain(table.removeprefix("lake."), partition)
    if as_json:
        print_json(explained)
        return
    print_facts(
        {name: explained[name] for name in ("table", "partition", "revision", "location", "rows", "content_hash")}
    )
    run = explained["run"]
    agrees = "points at it" if explained["catalog"]["agrees"] else f"points at {explained['catalog']['location']}"
    print_facts(
        {"catalog": agrees, "interval": f"{explained['interval']['from']} to {explained['interval']['to']}", **run}
    )
    print_table(
        ["file", "rows", "bytes", "offsets", "as built"],
        [
            [f["name"], f["rows"], f["bytes"], _offset_bounds(f.get("kafka_offset")), _as_built(f["differs"])]
            for f in explained["files"]
        ],
    )
    columns = ["topic", "partition", "from_offset", "until_offset", "archived", "empty", "quarantined", "gaps"]
    columns += ["erased"] if any(r.get("erased") for r in explained["ranges"]) else []
    print_table(columns, [[r[name] for name in columns] for r in explained["ranges"]])
    print_facts(
        {
            "records": _counts(explained["records"]),
            "reconciliation": _counts(explained["reconciliation"]),
            "validation": "passed" if explained["validation"].get("success") else "not passed",
            "report": explained["report"],
        }
    )
    columns = ["revision", "state", "rows", "content_hash", "code_version", "run_by", "built_at", "retired_at"]
    print_table(columns, [[r[name] or "" for name in columns] for r in explained["revisions"]])
    suggest(f"./tidemark rebuild {explained['table']} {explained['partition']}")


_TOLD_FIRST = ("in_ranges", "archived", "empty", "quarantined", "gaps", "erased", "matched", "pending", "late")


def _counts(counts: dict[str, int]) -> str:
    order = [*(name for name in _TOLD_FIRST if name in counts), *sorted(counts.keys() - set(_TOLD_FIRST))]
    return ", ".join(f"{counts[name]:,} {name.replace('_', ' ')}" for name in order)


def _as_built(differs: list[str]) -> str:
    return f"no: {', '.join(differs)}" if differs else "yes"


def _offset_bounds(bounds: list[int] | None) -> str:
    return f"{bounds[0]} to {bounds[1]}" if bounds else ""


def lag(
    pipeline: Annotated[str, typer.Argument(metavar="[PIPELINE]", help="default: all pipelines")] = "",
    as_json: AsJson = False,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="print Prometheus's text format instead of a table")
    ] = False,
) -> None:
    """Show how many offsets each query is behind its topics.

    Committed offsets are the ledger's, end offsets are Kafka's.
    """
    from include.monitor import lag as lags
    from include.monitor.missing import summarize_missing

    if as_json and metrics:
        raise UsageError("--json and --metrics are two formats", remedy="leave one of them out")
    declared = [load_pipeline(pipeline)] if pipeline else declarations().loaded
    for reason in () if pipeline else declarations().reasons:
        progress(reason)
    measured = [each for one in declared for each in lags.lag_of(one)]
    errors: dict[str, str] = {}
    for one in declared:
        if error := lags.log_error(one, [each for each in measured if each.pipeline == one.name]):
            progress(str(error))
            errors[one.name] = error.message
    if as_json:
        told = [{**asdict(each), "lag": each.lag, "log_error": errors.get(each.pipeline, "")} for each in measured]
        # Of a topic that is gone, nothing was measured.
        unmeasured = errors.keys() - {each.pipeline for each in measured}
        nothing = dict.fromkeys(("query", "topic", "partition", "committed", "end", "lag"))
        told += [{"pipeline": name, **nothing, "log_error": errors[name]} for name in sorted(unmeasured)]
        print_json(told)
    elif metrics:
        # As on /metrics: 0 would say that nothing waits.
        current = (each for each in measured if each.pipeline not in errors)
        typer.echo(lags.as_metrics(current, map(summarize_missing, declared)), nl=False)
    else:
        columns = ["pipeline", "query", "topic", "partition", "committed", "end", "lag"]
        print_table(columns, [[getattr(each, name) for name in columns] for each in measured])
        for tp, (stable, end) in lags.open_transactions(measured).items():
            progress(f"a transaction is open at offset {stable} of {tp}, {end - stable} offsets lie behind it")
        behind = next((each.pipeline for each in measured if each.lag), "")
        stream, interval = f"stream {behind} --until-caught-up", "interval PIPELINE --from TIME --to TIME"
        # What to do about an error is told with it: its lags of 0 do not say that a stream has caught up.
        if not errors:
            suggest(f"./tidemark {stream if behind else interval}")


def verify(
    file: Annotated[str, typer.Argument(help="the proof: a path, or a URI in the lake")],
    lake: Annotated[str, typer.Option("--lake", metavar="URI", help="default: the lake of the settings")] = "",
    kafka: Annotated[
        str, typer.Option("--kafka", metavar="BOOTSTRAP", help="also read the offsets again from this Kafka")
    ] = "",
    public_key: Annotated[
        str | None,
        typer.Option("--public-key", help="the signer's, in hexadecimal; default: that of the key in the settings"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the proof of a registered interval.

    Files, rows, counts, chain and signature, and with --kafka the records. Each difference is named; then it ends
    with 3.
    """
    from include.errors import ReconciliationFailed
    from include.proof.check import check_proof
    from include.proof.verify import lines

    report = check_proof(file, lake, kafka, public_key)
    if as_json:
        print_json({"file": file, "differences": report.differences, "notes": report.notes})
    else:
        print_lines(lines(report))
    if report.differences:
        raise typer.Exit(ReconciliationFailed.exit_code)
