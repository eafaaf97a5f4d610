"""`demo` and `produce`: the main job on a fresh machine, through Airflow, and records for a topic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from include.cli import AsJson, PipelineName, refuse_options
from include.cli.output import (
    console,
    print_exact_json,
    print_facts,
    print_result,
    print_table,
    progress,
    suggest,
    working,
)
from include.errors import UsageError
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline
from include.setting_values import check_contact
from include.times import parse_duration, parse_time

_OF_GENERATED = ("seed", "rate", "bad_fraction", "start", "span")
_OF_STREAMS = ("until", "seconds", "contact", "accept_gap")

Topic = Annotated[str, typer.Option("--topic", help="one of the pipeline's topics; default: the first")]


def demo(
    pipeline: Annotated[str, typer.Argument(metavar="[PIPELINE]", help="name of a declared pipeline")] = "nest_cameras",
    topic: Topic = "",
    as_json: AsJson = False,
) -> None:
    """Run a pipeline end to end and show the published table.

    Start all services, produce records, and run stream and last complete interval through Airflow.
    """
    from include.airflow.demo_run import run_demo

    declared = load_pipeline(pipeline)
    result = run_demo(declared, progress, topic=_checked_topic(declared, topic))
    pages = f"{result.airflow.rstrip('/')}/tidemark"
    if as_json:
        login = {"user": result.user, "password": result.password}
        print_exact_json({"airflow": result.airflow, "pages": f"{pages}/", "login": login, "verdict": result.verdict})
        return
    console.print()
    print_table(
        ["registered table", "partition", "rows", "content hash"],
        [[f"lake.{r['table']}", r["partition"], r["rows"], r["content_hash"]] for r in result.verdict["registered"]],
    )
    console.print()
    archive = next((r for r in result.verdict["registered"] if r["table"] == declared.table), None)
    print_facts(
        {
            "Airflow": f"{result.airflow}  (user {result.user}, password {result.password})",
            "Pages": f"{pages}/  (with the same login)",
            "Report": _report(pages, declared.name, result.verdict["report"]),
            "Records": _sum_of_fates(result.verdict["records"]),
            "Reconciled": _compared(result.verdict["reconciliation"]),
            "Where from": f"./tidemark explain {archive['table']} {archive['partition']}" if archive else "",
            "Query": f'./tidemark sql "SELECT count(*) FROM lake.{declared.table}"',
            "Live": _live(declared),
            **_flags(declared),
            "Alerts": "./tidemark airflow dags unpause watch",
            "Housekeeping": "./tidemark airflow dags unpause housekeeping",
            "Stop it all": "./tidemark down",
        }
    )


def _live(pipeline: Pipeline) -> str:
    """Return the command that shows the pipeline's largest keys live; empty when no view has windows."""
    try:
        return f"./tidemark top {pipeline.name} --serve" if pipeline.top_report else ""
    except UsageError:
        return ""


def _flags(pipeline: Pipeline) -> dict[str, str]:
    """Return the flags' topic, and a command whose records all rules flag; nothing without flags.

    The demo's own records came before its interval, from which the rules learn their limits.
    """
    if pipeline.flags is None:
        return {}
    more = f"./tidemark produce {pipeline.name} --events 3000"
    return {"Flags": f"topic {pipeline.flags.topic}", "More flags": f"{more}  (records that all rules flag)"}


def _report(pages: str, pipeline: str, location: str) -> str:
    """Return where a browser finds the interval's report: its file, or its page where the file lies in a bucket."""
    if "://" not in location:
        # Unlike Spark, a browser and a terminal read a URI with its escapes.
        return Path(location).as_uri()
    return f"{pages}/intervals/{pipeline}/{location.rsplit('/', 1)[-1].removesuffix('.html')}/report"


def _sum_of_fates(records: dict[str, int]) -> str:
    fates = ("archived", "empty", "quarantined", "gaps", *(("erased",) if records.get("erased") else ()))
    parts = " + ".join(f"{records[name]} {name}" for name in fates)
    return f"{records['in_ranges']} in ranges = {parts}"


def _compared(reconciliation: dict[str, int]) -> str:
    return "compared: " + ", ".join(f"{count} {name}" for name, count in sorted(reconciliation.items()))


def produce(
    context: typer.Context,
    pipeline: PipelineName,
    events: Annotated[int | None, typer.Option("--events", min=1, help="how many messages to generate")] = None,
    seed: Annotated[
        int, typer.Option("--seed", help="seed of the generator; the same seed and start give the same messages")
    ] = 1,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.001, help="messages per second; default: as fast as possible")
    ] = None,
    bad_fraction: Annotated[
        float, typer.Option("--bad-fraction", min=0, max=1, help="share of invalid messages, 0 to 1")
    ] = 0.0,
    start: Annotated[
        str | None, typer.Option("--start", help="event time of the first message (ISO); default: now minus the span")
    ] = None,
    span: Annotated[str, typer.Option("--span", help="time over which event times are spread: 10s, 50m, 3h")] = "3h",
    topic: Topic = "",
    from_stream: Annotated[
        str | None,
        typer.Option("--from-stream", metavar="URL", help="write the events of this stream of server-sent events"),
    ] = None,
    until: Annotated[
        int | None, typer.Option("--until", min=1, help="with --from-stream: stop after this many events")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0, help="with --from-stream: stop after this time")
    ] = None,
    contact: Annotated[
        str, typer.Option("--contact", help="with --from-stream: e-mail address or page for the service to reach you")
    ] = "",
    accept_gap: Annotated[
        str, typer.Option("--accept-gap", help="with --from-stream, when the position is too old: `present` or a TIME")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Write generated messages or a stream's events to a topic.

    The topic is created if missing. Print counts of what was written. A stream is followed until SIGTERM or Ctrl-C;
    the next run resumes after the last event that reached Kafka.
    """
    from include.producing import generate as production

    declared = load_pipeline(pipeline)
    if (events is None) == (from_stream is None):
        raise UsageError(
            "exactly one of --events and --from-stream is needed", remedy="either --events N or --from-stream URL"
        )
    if events is None:
        refuse_options(context, "with --from-stream", *_OF_GENERATED)
    else:
        refuse_options(context, "with --events", *_OF_STREAMS)
    if events is None or from_stream:
        bounds = {"until": until, "seconds": seconds}
        written = _followed(declared, str(from_stream), topic, accept_gap, contact, **bounds)
        print_result(written, as_json=as_json)
        return
    first = parse_time(start) if start else None
    with working(f"{declared.name}: writing {events:,} messages", events, as_json=as_json) as done:
        written = production.produce(
            declared,
            events=events,
            seed=seed,
            rate=rate,
            bad_fraction=bad_fraction,
            start=first,
            span=parse_duration(span),
            topic=_checked_topic(declared, topic),
            enqueued=done,
        )
    print_result(written, as_json=as_json)
    suggest(f"./tidemark stream {declared.name} --until-caught-up")


def _followed(pipeline: Pipeline, url: str, topic: str, accept_gap: str, contact: str, **bounds: Any) -> dict[str, Any]:
    from include.producing.follower import follow
    from include.producing.refused_position import parse_go_on

    try:
        contact = check_contact(contact)
    except ValueError as error:
        raise UsageError(f"--contact: {error}", remedy="e.g. --contact me@example.org") from None
    go_on = parse_go_on(accept_gap) if accept_gap else None
    topic = _checked_topic(pipeline, topic)
    return follow(pipeline, url, tell=progress, topic=topic, contact=contact, go_on=go_on, **bounds)


def _checked_topic(pipeline: Pipeline, topic: str) -> str:
    if topic and not pipeline.source.reads(topic):
        raise UsageError(
            f"the pipeline does not read topic {topic!r}", remedy=f"it reads {pipeline.source}", pipeline=pipeline.name
        )
    return topic
