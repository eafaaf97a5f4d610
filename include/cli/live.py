"""`tail`, `top`, `shell`, `report`, `sql`: the verbs that show records and tables as they are, and change nothing."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from include.cli import AsJson, PipelineName, refuse_options
from include.cli.output import (
    clean,
    console,
    has_reader,
    print_exact_json,
    print_facts,
    print_json_rows,
    print_lines,
    print_table,
    progress,
    suggest,
    working,
)
from include.errors import UsageError
from include.ledger.archive import landing_files
from include.ledger.intervals.states import Source
from include.monitor import exact_json
from include.pipelines import declarations, load_line_pipeline, load_pipeline
from include.pipelines.spec import Pipeline
from include.spark.run import run_attached, run_job, run_watched_job
from include.spark.submission import SHORT, SparkSubmission, submission
from include.times import format_time, parse_duration

BAR = 30
"""Characters of the longest bar."""


def tail(
    pipeline: PipelineName,
    last: Annotated[int, typer.Option("--last", min=0, help="begin this many offsets before each end")] = 10,
    once: Annotated[bool, typer.Option("--once", help="show what is there now, then end")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print a line of JSON for each record or row")] = False,
) -> None:
    """Show the records of a pipeline's topics as they come, decoded, or with the reason why not; Ctrl-C ends it.

    Each record is shown with its offset and the fate that the archive would give it. Nothing is kept or committed.
    """
    declared = load_pipeline(pipeline)
    options = [*(["--once"] if once else []), *(["--json"] if as_json else [])]
    arguments = ["--pipeline", declared.name, "--last", str(last), *options]
    job = submission("tail_topic", *arguments, name=f"tail {declared.name}", short=True, decoder=declared.decoder)
    raise typer.Exit(run_attached(job))


def top(
    context: typer.Context,
    pipeline: PipelineName,
    once: Annotated[bool, typer.Option("--once", help="show what is landed now, then end")] = False,
    since: Annotated[str, typer.Option("--since", help="begin with landed events of this long ago: 50m, 3h")] = "2h",
    windows: Annotated[int, typer.Option("--windows", min=1, max=144, help="how many of the newest windows")] = 1,
    as_json: AsJson = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="a page on loopback instead, with a chart that follows")
    ] = False,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="of the page; 0: a free one")] = 0,
) -> None:
    """Show the largest keys per window, live, as the pipeline's `Top` report or first view says; Ctrl-C ends it.

    A second stream reads the files that the archive query has committed. It keeps nothing and affects nothing:
    any number may run. With --json every change is one line.
    """
    declared = load_pipeline(pipeline)
    report = declared.top_report
    if serve and (once or as_json):
        raise UsageError("a page cannot be served with --once or --json", remedy="leave them out")
    if not serve:
        refuse_options(context, "without --serve", "port")
    begin = datetime.now(UTC).replace(microsecond=0) - parse_duration(since)
    # A ledger that cannot be reached is reported before Spark starts.
    landing_files.before_events(declared.name, begin)
    first = format_time(begin)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "top.json"
        arguments = ["--pipeline", declared.name, "--since", first, "--windows", str(windows), "--result", str(result)]
        job = submission("show_top", *arguments, *(["--once"] if once else []), name=f"top {declared.name}", short=once)
        if serve:
            from include.monitor.live_page import live_app, serving

            with serving(live_app(result, report.title, declared.name), port) as address:
                progress(f"{declared.name}: {address} (Ctrl-C ends it)")
                raise typer.Exit(run_watched_job(job, lambda: True))
        raise typer.Exit(_once(job, result, as_json) if once else _live(job, result, as_json))


def shell(
    pipeline: PipelineName,
    in_python: Annotated[
        bool, typer.Option("--python", help="a prompt or a program in Python, with spark, pipeline and ledger")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """SQL over a pipeline as it is now; statements from the terminal, or from standard input, separated by `;`.

    Each view is a table under its own name that follows the topic; the archive up to the last commit is
    `<pipeline>_live`; registered tables are in the database `lake`; `live.<pipeline>_<view>` is one
    answer from both, where PostgreSQL serves the view. `<pipeline>_files` and `<pipeline>_socket` are
    what was read from lines instead of Kafka.
    """
    if in_python and as_json:
        raise UsageError("Python prints what it wants", remedy="leave out --json or --python")
    declared = load_line_pipeline(pipeline) or load_pipeline(pipeline)
    options = [*(["--json"] if as_json else []), *(["--python"] if in_python else [])]
    arguments = ["--pipeline", declared.name, *options]
    name, delta = f"shell {declared.name}", _any_delta_table()
    job = submission("open_shell", *arguments, name=name, short=True, delta=delta, decoder=declared.decoder)
    raise typer.Exit(run_attached(job))


def _any_delta_table() -> bool:
    """Return whether any pipeline has a Delta table, so that the catalog may hold views of it."""
    return any(pipeline.archive.delta for pipeline in declarations().loaded)


def _once(job: SparkSubmission, result: Path, as_json: bool) -> int:
    if code := run_watched_job(job, lambda: True):
        return code
    shown = exact_json.loads(result.read_text())
    print_exact_json(shown) if as_json else console.print(render(shown))
    return 0


def _live(job: SparkSubmission, result: Path, as_json: bool) -> int:
    if as_json:
        return run_watched_job(job, _at_changes(result, lambda text: print(text, flush=True)))
    # On a terminal the tables are drawn again in place, elsewhere one after the other.
    with Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live:

        def draw(text: str) -> None:
            drawn = render(exact_json.loads(text))
            live.update(drawn, refresh=True) if live else console.print(drawn)

        return run_watched_job(job, _at_changes(result, draw))


def _at_changes(result: Path, show: Callable[[str], None]) -> Callable[[], bool]:
    """Return a function that passes the file's text to `show` when it differs from the last one.

    It returns whether somebody can still read what is shown.
    """
    shown = ""

    def look() -> bool:
        nonlocal shown
        text = result.read_text() if result.exists() else ""
        if text != shown:
            shown = text
            show(text)
            return has_reader()
        return True

    return look


def render(shown: dict[str, Any]) -> Group:
    """Return the windows as tables with a bar per row; texts from data cannot colour or move anything."""
    parts: list[Any] = [Text.from_markup(f"[bold]{clean(shown['title'])}[/bold]  {clean(shown['pipeline'])}")]
    for window in shown["windows"]:
        parts.append(_table(shown, window))
    if not shown["windows"]:
        parts.append(Text("nothing has landed yet"))
    late = f", {shown['late']} groups of rows came too late" if shown["late"] else ""
    ahead = f", windows that have not begun: {shown['ahead']}" if shown["ahead"] else ""
    # A view in complete mode has none.
    watermark = f", watermark {shown['watermark']}" if shown["watermark"] else ""
    parts.append(Text(f"updated {shown['updated_at']}{watermark}{late}{ahead}", style="dim"))
    return Group(*parts)


def _table(shown: dict[str, Any], window: dict[str, Any]) -> Table:
    in_part = f", read from {shown['since']} on" if window["from"] < shown["since"] else ""
    title = f"{window['from']} to {window['to']}{in_part}: {window['total']} in all, {window['keys']} different"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name in shown["by"]:
        table.add_column(clean(name))
    table.add_column(clean(shown["measure"]), justify="right")
    table.add_column("")
    # A sum of nulls is null.
    most = max((row[-1] or 0 for row in window["rows"]), default=0)
    for *key, count in window["rows"]:
        bar = ProgressBar(total=float(most) or 1.0, completed=float(count or 0), width=BAR)
        table.add_row(*(clean(part) for part in key), "–" if count is None else str(count), bar)
    return table


def report(
    pipeline: PipelineName,
    ranges: Annotated[
        str, typer.Option("--ranges", metavar="TOPIC:PARTITION:FROM-UNTIL,…", help="offsets; UNTIL is not included")
    ],
    source: Annotated[Source, typer.Option("--source", help="where the ranges are read from")] = Source.KAFKA,
    as_json: AsJson = False,
) -> None:
    """Give a pipeline's reports and the fates of the records over any offset ranges; nothing is registered."""
    from include.intervals.reporting.asked_ranges import check_ranges, format_ranges, parse_ranges

    declared = load_pipeline(pipeline)
    wanted = parse_ranges(ranges, declared.name)
    check_ranges(declared, wanted, source)
    arguments = ["--pipeline", declared.name, "--ranges", format_ranges(wanted), "--source", source.value]
    with working(f"{declared.name}: reading the ranges", as_json=as_json):
        result = _report_of(declared, arguments, sum(map(len, wanted)) < SHORT)
    if as_json:
        print_exact_json(result)
        return
    print_facts(result["records"])
    if not result["reports"]:
        print_lines([f"{declared.name} declares no report"])
    for title, section in result["reports"].items():
        print_table(section["columns"], [list(row.values()) for row in section["rows"]], title=title)
        print_lines([f"{section['note']}; {section['truncated']} rows more"])
    suggest(f"./tidemark quarantine list {declared.name}")


def _report_of(pipeline: Pipeline, arguments: list[str], short: bool) -> dict[str, Any]:
    """Run the Spark application that reports ranges, and return its result. Raise Exit with its code."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        arguments += ["--result", str(result)]
        name, delta = f"report {pipeline.name}", _any_delta_table()
        job = submission("report_ranges", *arguments, name=name, short=short, delta=delta, decoder=pipeline.decoder)
        if code := run_job(job):
            raise typer.Exit(code)
        parsed: dict[str, Any] = json.loads(result.read_text())
        return parsed


def sql(
    query: Annotated[str, typer.Argument(metavar="SELECT", help="one SQL query over lake.* and live.*")],
    as_json: AsJson = False,
) -> None:
    """Query the catalog with Spark SQL.

    With `--json`, of columns with one name the second is `name_2`.

    `lake.<table>` is what was registered; `live.<pipeline>_<view>`, if served, is one answer from both layers.
    """
    with working("querying the catalog", as_json=as_json), tempfile.TemporaryDirectory() as folder:
        statement, result = Path(folder) / "query.sql", Path(folder) / "result.json"
        statement.write_text(query)
        arguments = ("--query", str(statement), "--result", str(result), *(["--whole"] if as_json else []))
        job = submission("run_sql", *arguments, name="sql", short=True, delta=_any_delta_table())
        if code := run_job(job):
            raise typer.Exit(code)
        with result.open() as lines:
            columns = exact_json.loads(next(lines))
            rows = map(exact_json.loads, lines)
            if as_json:
                print_json_rows(columns, rows)
                return
            shown = list(rows)
    print_table(columns, shown)
    console.print(f"[dim]{len(shown)} rows[/dim]")
    suggest("./tidemark explain TABLE PARTITION shows where a partition's rows come from")
