"""`stream`, `interval`, `approve`, `rebuild`: the verbs that start streams and intervals."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import Annotated

import typer

from include.cli import AsJson, PipelineName
from include.cli.output import (
    console,
    print_exact_json,
    print_facts,
    print_json,
    print_lines,
    progress,
    progress_console,
    suggest,
    working,
)
from include.errors import ServiceUnreachable, TidemarkError
from include.intervals import approving, steps
from include.intervals.boundaries import asked_interval
from include.intervals.reporting.plan import plan_interval
from include.intervals.reporting.summary import Step, summarize
from include.intervals.verdict import Verdict
from include.ledger.intervals import attempts, locks
from include.ledger.intervals.states import Source
from include.ledger.streams import writers
from include.monitor.lag import lag_of, still_behind, total_lag
from include.pipelines import as_lines, load_pipeline
from include.pipelines.spec import Pipeline
from include.pipelines.spec.lines import parse_line_source
from include.processes import user_at_host
from include.spark.run import AskedToStop, run_job, run_stream_job, run_watched_job, stopping_on_signals
from include.spark.submission import SHORT, SparkSubmission, stream_submission
from include.streams.stopping import request_stop
from include.times import parse_time

_LOOK_AGAIN = 2.0
"""Seconds between two looks at how far a stream is."""


def stream(
    pipeline: PipelineName,
    until_caught_up: Annotated[bool, typer.Option("--until-caught-up", help="process what is there, then end")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="ask the running driver to stop after its micro-batch")] = False,
    line_source: Annotated[
        str | None,
        typer.Option("--from", help="lines of socket://HOST:PORT or of a folder's files, file:///FOLDER, not Kafka"),
    ] = None,
) -> None:
    """Run the continuous job in the foreground; SIGTERM or Ctrl-C stops it gracefully."""
    if stop:
        progress(request_stop(pipeline, line_source))
        return
    try:
        with stopping_on_signals():
            code = _stream(load_pipeline(pipeline), until_caught_up, line_source)
    except AskedToStop:
        # Before there was a driver.
        code = 0
    raise typer.Exit(code)


def _stream(declared: Pipeline, until_caught_up: bool, line_source: str | None) -> int:
    name, arguments = declared.name, ["--until-caught-up"] if until_caught_up else []
    if line_source is not None:
        name = as_lines(declared, parse_line_source(line_source).kind).name
        arguments += ["--from", line_source]
    # How many lines there are is unknown before they are read.
    short = until_caught_up and line_source is None and total_lag(declared) < SHORT
    job = stream_submission(declared, *arguments, name=name, short=short)
    if not until_caught_up or line_source is not None or job.mode == "cluster":
        return run_stream_job(job, partial(writers.request_stop, name))
    code = _catch_up(declared, job)
    if code == 0:
        suggest(f"./tidemark interval {name} --from TIME --to TIME")
    return code


def _catch_up(pipeline: Pipeline, job: SparkSubmission) -> int:
    """Run a stream until it has caught up and return its exit code; on a terminal, a bar shows how far it is."""
    if not progress_console.is_terminal:
        return run_stream_job(job)
    ends = lag_of(pipeline)
    total = sum(each.lag for each in ends)
    looked = time.monotonic()
    with working(f"{pipeline.name}: {total:,} offsets to read", total) as done:

        def look() -> bool:
            nonlocal looked
            if time.monotonic() - looked > _LOOK_AGAIN:
                looked = time.monotonic()
                # What is only shown ends nothing: the driver waits for a ledger that is away.
                with suppress(ServiceUnreachable):
                    done(total - still_behind(pipeline, ends))
            return True

        return run_watched_job(job, look)


def interval(
    pipeline: PipelineName,
    from_time: Annotated[str, typer.Option("--from", help="start, e.g. 2026-11-20T05:00:00Z")],
    to_time: Annotated[str, typer.Option("--to", help="end, e.g. 2026-11-20T06:00:00Z")],
    source: Annotated[Source, typer.Option("--source", help="where the ranges are read from")] = Source.KAFKA,
    repin: Annotated[
        bool, typer.Option("--repin", help="resolve the ranges again (the last pinned interval only)")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only print what would be read and replaced")] = False,
    new_references: Annotated[
        bool, typer.Option("--new-references", help="build a registered interval with what the references hold now")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run one interval end to end, as the DAG does, and print its verdict: in words on a terminal, else as JSON."""
    declared = load_pipeline(pipeline)
    wanted = asked_interval(declared, parse_time(from_time), parse_time(to_time))
    run_by = user_at_host()
    if dry_run:
        plan = list(plan_interval(declared, wanted, source=source, repin=repin, new_references=new_references))
        if as_json:
            print_json(plan)
        else:
            print_lines(plan)
        return
    _note(f"{declared.name}: pinning {wanted}", as_json)
    with working(f"{declared.name}: pinning {wanted}", as_json=as_json):
        attempt = steps.pin(declared.name, wanted, run_by=run_by, source=source, repin=repin)
    _print_step("pin_ranges", attempt)
    with locks.attempt_under_way(declared.name, wanted):
        _note(f"{declared.name}: building and reconciling", as_json)
        with working(f"{declared.name}: building, reconciling and publishing {wanted}", as_json=as_json):
            code = run_job(steps.submit_both(declared.name, attempt, new_references=new_references))
        if code not in steps.JUDGED:
            raise typer.Exit(attempts.note_failure(attempt, code))
        _print_step("build_interval", attempt)
        if not steps.is_unexplained(attempt):
            _print_step("publish", attempt)
        verdict = steps.announce(attempt)
    _end(attempt, verdict, code, as_json)


def approve(
    pipeline: PipelineName,
    from_time: Annotated[str, typer.Option("--from", help="start of the interval")],
    to_time: Annotated[str, typer.Option("--to", help="its end")],
    reason: Annotated[str, typer.Option("--reason", help="why; kept for ever")],
    question: Annotated[
        int | None, typer.Option("--question", help="number of the question; refused if it was asked again since")
    ] = None,
    refuse: Annotated[bool, typer.Option("--refuse", help="decide that it is not registered")] = False,
    as_json: AsJson = False,
) -> None:
    """Decide about an interval that failed only by warnings: it is registered, or, with `--refuse`, it is not."""
    declared = load_pipeline(pipeline)
    wanted = asked_interval(declared, parse_time(from_time), parse_time(to_time))
    asked = approving.find_question(declared.name, wanted, question)
    if refuse:
        verdict = approving.refuse(asked, by=user_at_host(), reason=reason)
        _print_step("publish", asked.attempt)
        _conclude(verdict, as_json)
        return
    for line in approving.lines_of(approving.approve(asked, by=user_at_host(), reason=reason)):
        progress(line)
    with locks.attempt_under_way(declared.name, wanted):
        with working(f"{declared.name}: validating and publishing {wanted}", as_json=as_json):
            code = run_job(steps.submit("publish", declared.name, asked.attempt))
        if code not in steps.JUDGED:
            raise typer.Exit(attempts.note_failure(asked.attempt, code))
        _print_step("publish", asked.attempt)
        verdict = steps.announce(asked.attempt)
    _end(asked.attempt, verdict, code, as_json)


def _end(attempt: int, verdict: Verdict, code: int, as_json: bool) -> None:
    """Print an attempt's verdict, and end with its exit code."""
    _print_step("announce", attempt, verdict)
    _conclude(verdict, as_json)
    if verdict.exit_code == 3:
        steps.judge_reconciliation(attempt)
    raise typer.Exit(verdict.exit_code or code)


def _print_step(step: Step, attempt: int, verdict: Verdict | None = None) -> None:
    for line in summarize(step, attempt, verdict):
        progress(line)


def _note(line: str, as_json: bool) -> None:
    """Write a line to a log; at a terminal a bar shows the same."""
    if not as_json and not progress_console.is_terminal:
        progress(line)


def _conclude(verdict: Verdict, as_json: bool) -> None:
    """Print a verdict: programs read JSON on standard output, people the words."""
    if as_json or not console.is_terminal:
        print_exact_json(verdict.as_json())
        progress(verdict.in_words())
        return
    if verdict.registered:
        first = verdict.registered[0]
        suggest(f"./tidemark explain {first['table']} {first['partition']}")
    elif verdict.exit_code:
        suggest(f"read {verdict.report}")
    print_lines([verdict.in_words()])


def rebuild(
    table: Annotated[str, typer.Argument(help="e.g. nest_cameras or lake.nest_cameras")],
    partition: Annotated[str, typer.Argument(help="e.g. date=2026-11-20/interval=2026-11-20T05")],
    source: Annotated[Source, typer.Option("--source", help="where the ranges are read from")] = Source.KAFKA,
    as_json: AsJson = False,
) -> None:
    """Build a registered partition again from its pinned ranges; 0 if it, the ledger and the registered files agree."""
    from include.intervals import rebuild as rebuilding

    with working(f"{table} {partition}: building it again", as_json=as_json):
        comparison = rebuilding.rebuild(table.removeprefix("lake."), partition, source, run_job)
    if as_json:
        print_exact_json(comparison)
    else:
        print_lines(comparison.pop("notes"))
        print_facts(comparison)
        suggest(f"./tidemark explain {table} {partition}")
    if not comparison["equal"]:
        raise TidemarkError(
            f"{table} {partition} is not what its offsets give: {'; '.join(rebuilding.differences(comparison))}",
            remedy="run its interval again, which names every difference and registers nothing while there is one"
            if comparison["unexplained"]
            else "run its interval again, which registers it again",
        )
