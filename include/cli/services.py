"""The verbs `up`, `down`, `status`, `airflow`, `setup-database` and `doctor`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from include.cli import AsJson
from include.cli.output import clean, console, print_facts, print_json, print_table, progress, suggest, working
from include.errors import TidemarkError
from include.ledger.alerts import Alert, open_alerts
from include.ledger.completeness import Completeness, completeness
from include.ledger.connection import reading
from include.ledger.erasures.open import OpenErasure, open_erasures
from include.ledger.outputs.waiting import WaitingOutput, waiting_outputs
from include.ledger.streams import leases
from include.ledger.streams.event_gaps import EventGap, gaps_of
from include.monitor.missing import MissingSummary, summarize_missing
from include.monitor.text import quantity
from include.pipelines import declarations, has_stream
from include.services import airflow, supervisor
from include.setting_values import masked
from include.times import format_time

if TYPE_CHECKING:
    from include.doctor.finding import Finding
    from include.services.process import ServiceStatus
    from include.streams.stopping import UndeclaredStream

_EACH = "kafka, postgres, registry, spark, yarn, airflow"
Started = Annotated[list[str] | None, typer.Argument(help=f"{_EACH}, or all (but spark and yarn)")]
Stopped = Annotated[list[str] | None, typer.Argument(help=f"{_EACH}, or all")]


@dataclass(frozen=True)
class _LedgerAnswers:
    """What the ledger tells of all pipelines; None if it could not be asked."""

    missing: Sequence[MissingSummary] | None = None
    complete: Sequence[Completeness] | None = None
    gaps: Sequence[EventGap] | None = None
    waiting: Sequence[WaitingOutput] | None = None
    undeclared: Sequence[UndeclaredStream] | None = None
    erasing: Sequence[OpenErasure] | None = None
    alerts: Sequence[Alert] | None = None
    error: TidemarkError | None = None
    """Why a ledger cannot be read whose PostgreSQL answers."""


def up(names: Started = None, as_json: AsJson = False) -> None:
    """Start embedded services (default: kafka and postgres).

    Services that are already running are left as they are.
    """
    supervisor.up(names, progress)
    services = supervisor.status()
    if as_json:
        print_json({"services": _listed(services)})
        return
    print_table(["service", "address"], [[n, masked(s.address)] for n, s in services.items() if s.healthy])
    suggest("./tidemark produce PIPELINE --events 10000, or ./tidemark demo for all at once")


def down(names: Stopped = None, as_json: AsJson = False) -> None:
    """Stop embedded services (default: all); data and logs stay."""
    supervisor.down(names, progress)
    if as_json:
        print_json({"services": _listed(supervisor.status())})
        return
    suggest("./tidemark up starts them again")


def status(as_json: AsJson = False) -> None:
    """Show where each service listens and whether it answers, and which intervals were never built.

    Also until when the tables of each pipeline are complete, what is missing of a followed event stream, which
    outputs of rows wait, which streams outlive their declaration, which erasures have not ended, how many alerts are
    open, and which pipelines cannot run as they are declared.
    """
    with ThreadPoolExecutor(1) as beside:
        # Kafka takes as long to answer as the ledger does, with nothing to do for this process meanwhile.
        asked = beside.submit(supervisor.status)
        is_known = supervisor.SERVICES["postgres"].status().healthy
        answers = _ledger_answers() if is_known else _LedgerAnswers()
        services = asked.result()
    if as_json:
        alerts = None if answers.alerts is None else [{"key": each.key, **each.as_json()} for each in answers.alerts]
        print_json(
            {
                "services": _listed(services),
                "missing": _as_json(answers.missing),
                "complete": _as_json(answers.complete),
                "event_gaps": _as_json(answers.gaps),
                "waiting_outputs": _as_json(answers.waiting),
                "undeclared_streams": _as_json(answers.undeclared),
                "unfinished_erasures": _as_json(answers.erasing),
                "alerts": alerts,
                "refused_pipelines": _refused(),
                "ledger_error": str(answers.error or ""),
            }
        )
        return
    rows = []
    for name, each in services.items():
        state = "healthy" if each.healthy else "not started" if not each.address else "down"
        rows.append([name, state, each.pid or ("external" if each.external else ""), masked(each.address), each.detail])
    print_table(["service", "state", "pid", "address", ""], rows)
    suggest("./tidemark lag" if services["postgres"].healthy and services["kafka"].healthy else "./tidemark up")
    if answers.error:
        console.print(f"the ledger cannot be read: {clean(answers.error)}", highlight=False)
    for reason in declarations().reasons:
        console.print(clean(reason), highlight=False)
    for until in answers.complete or ():
        console.print(clean(until), highlight=False)
    for summary in answers.missing or ():
        console.print(f"{clean(summary)}; ./tidemark doctor names the command", highlight=False)
    for told_last in (*(answers.gaps or ()), *(answers.waiting or ())):
        console.print(clean(told_last), highlight=False)
    for stream in answers.undeclared or ():
        console.print(f"{clean(stream)}; {clean(stream.remedy)}", highlight=False)
    for erasure in answers.erasing or ():
        console.print(f"{clean(erasure)}; unless it still runs: {clean(erasure.remedy)}", highlight=False)
    if answers.alerts:
        first, count = answers.alerts[0], quantity(len(answers.alerts), "alert")
        said = f"{count} open, the first since {format_time(first.since)}: {first.what}"
        console.print(f"{clean(said)}; ./tidemark alerts list", highlight=False)


def run_airflow(context: typer.Context) -> None:
    """Run Airflow's own command with the settings of the embedded Airflow.

    Arguments go to `airflow`, `-h` among them, and the exit code is its own.
    """
    if context.args == ["--help"]:
        print(context.get_help())
        return
    airflow.run_command(context.args)


def _refused() -> list[dict[str, str]]:
    found = declarations()
    return [{"pipeline": name, "reason": why} for name, why in zip(found.refused, found.reasons, strict=True)]


def _ledger_answers() -> _LedgerAnswers:
    """Return what the ledger tells; nothing but the error when any of it cannot be read.

    PostgreSQL may have no ledger yet, or an older one; the services are listed anyway.
    """
    declared = declarations().loaded
    outputs = {(pipeline.name, output.name) for pipeline in declared for output in pipeline.outputs}
    try:
        with reading():
            complete = [completeness(pipeline.name) for pipeline in declared]
            return _LedgerAnswers(
                missing=[each for pipeline in declared if (each := summarize_missing(pipeline)).count],
                complete=[each for each in complete if each.complete_until or each.waits_for],
                gaps=[gap for pipeline in declared for gap in gaps_of(pipeline.name)],
                waiting=[each for each in waiting_outputs() if (each.pipeline, each.output) in outputs],
                undeclared=_undeclared_streams(),
                erasing=open_erasures(),
                alerts=open_alerts(),
            )
    except TidemarkError as error:
        return _LedgerAnswers(error=error)


def _undeclared_streams() -> list[UndeclaredStream]:
    """Return the running streams of pipelines that are not declared."""
    if all(map(has_stream, leases())):
        return []
    # It asks whether their drivers live, by means whose import takes longer than this command.
    from include.streams.stopping import undeclared_streams

    return undeclared_streams()


def _as_json(
    listed: Sequence[MissingSummary | Completeness | EventGap | WaitingOutput | UndeclaredStream | OpenErasure] | None,
) -> list[dict[str, object]] | None:
    return None if listed is None else [each.as_json() for each in listed]


def setup_database() -> None:
    """Create missing databases and tables on PostgreSQL.

    These are the databases, the ledger's tables and the catalog's schema.
    """
    from include.services.postgres import DATABASES, prepare_databases

    prepare_databases()
    *others, last = DATABASES
    progress(f"databases {', '.join(others)} and {last} are ready")
    suggest("./tidemark status")


def _listed(services: Mapping[Any, ServiceStatus]) -> dict[str, dict[str, Any]]:
    return {name: {**asdict(each), "address": _for_programs(each)} for name, each in services.items()}


def _for_programs(service: ServiceStatus) -> str:
    """Return the address by which a program of this user connects; a password from the settings is not repeated."""
    return masked(service.address) if service.external else service.address


def _mark(finding: Finding) -> str:
    if finding.notice:
        return "[yellow]note[/yellow]"
    return "[green]ok[/green]  " if finding.ok else "[red]bad[/red] "


def doctor(
    as_json: AsJson = False,
    repair: Annotated[bool, typer.Option("--repair", help="announce each repair, then make it")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="also read all files, and compare hashes and checksums")] = False,
) -> None:
    """Check machine, services, ledger, catalog and files.

    Print for each problem how to repair it.
    """
    from include.doctor import examine as examination
    from include.doctor.machine import effective_settings

    with working("looking at ledger, catalog and files", as_json=as_json):
        if repair:
            examination.repair_all(progress, deep=deep)
        findings = examination.examine(deep=deep)
    if as_json:
        print_json({"settings": effective_settings(), "findings": [asdict(f) for f in findings]})
    else:
        print_facts(effective_settings())
        console.print()
        for finding in findings:
            said = finding.what + (f" — {finding.remedy}" if finding.remedy else "")
            console.print(f"{_mark(finding)} {clean(said)}", highlight=False)
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)
