"""The examination: machine, set-up, services, lake and tables, each as it is and as it should be."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import product

from include import lake
from include.catalog.declared import long_paths
from include.doctor import repair as repairing
from include.doctor.compare import disagreements_of
from include.doctor.finding import Finding
from include.doctor.machine import examine_machine, repair_machine
from include.erasure import accounts
from include.errors import LogTruncated, ServiceUnreachable, TidemarkError, TopicRecreated, UsageError
from include.housekeeping.leftovers import left_folders
from include.housekeeping.renaming import left_to_rename
from include.intervals.lake_of_ledger import kept_checkpoints, lake_error
from include.ledger import proofs
from include.ledger.archive import row_outputs
from include.ledger.erasures import unfinished
from include.ledger.lineage import registered_outside, registered_partitions
from include.ledger.streams import writers
from include.ledger.streams.event_gaps import gaps_of
from include.monitor.history.unregistered import find_unregistered
from include.monitor.missing import building_commands, summarize_missing
from include.pipelines import declarations
from include.pipelines.spec import EventTimeWithin, Pipeline
from include.proof.lost import copy_to_use, lost_files
from include.services import airflow, supervisor
from include.services.dag_files import unmade_dags
from include.services.process import ServiceStatus, open_addresses, read_state
from include.services.supervisor import ServiceName
from include.streams.new_code import check_fit
from include.streams.start import check_log
from include.streams.stopping import undeclared_streams
from include.streams.written_topics import check_compacted_topics
from include.times import parse_duration

_MOST = 5
"""How many intervals of a pipeline that are not registered are named one by one."""

_OF_ALL = {
    "watch": "nobody is told of overdue intervals, nor that a stream works again",
    "housekeeping": "replaced files are kept",
}
"""The DAGs that serve all pipelines by a schedule, and what it means that one is paused."""


def repair_all(progress: Callable[[str], None], *, deep: bool) -> None:
    """Fetch damaged jars, close open files and start dead services; then tell what the tables need, and do it."""
    repair_machine(progress)
    supervisor.up_dead(progress)
    if all(each.ok for each in _lake()):
        _repair_tables(progress, deep=deep)


def examine(*, deep: bool) -> list[Finding]:
    """Look at everything and return what was found; `deep` also reads every file whole."""
    services = supervisor.status()
    around = [*examine_machine(), *_services(services), *_ports(services), *_declarations(), *_dags(services)]
    place = list(_lake())
    if not all(each.ok for each in place):
        return [*around, *place]
    # A broker that is away has its finding; each pipeline's log would wait for it again.
    return [*around, *place, *_tables(deep=deep, logs=services["kafka"].healthy)]


def _declarations() -> Iterator[Finding]:
    for reason in declarations().reasons:
        yield Finding(False, reason)
    for pipeline in declarations().loaded:
        yield from closed_early(pipeline)
        if note := long_paths(pipeline):
            yield Finding(True, note, notice=True)


def closed_early(pipeline: Pipeline) -> Iterator[Finding]:
    """Yield a note for each view in which one event far ahead closes windows that are not over yet."""
    rules = [rule for rule in pipeline.archive.rules if isinstance(rule, EventTimeWithin)]
    for rule, view in product(rules, pipeline.views):
        waits = view.speed.watermark
        if waits and view.mode == "update" and rule.bounds[1] > parse_duration(waits):
            what = f"{pipeline.name}: an event may lie {rule.ahead} ahead, and the view {view.name} waits {waits}"
            remedy = "declare a watermark at least as long, or less `ahead` (declaring.md, “Views”)"
            yield Finding(True, f"{what}: it closes windows that are not over yet", remedy, notice=True)


def _dags(states: Mapping[ServiceName, ServiceStatus]) -> Iterator[Finding]:
    # Where Airflow was never started and none is installed for this process, nobody waits for DAGs.
    if states["airflow"].address or "AIRFLOW_HOME" in os.environ:
        for reason in unmade_dags():
            yield Finding(
                False, reason, "correct the declaration, or what that DAG is made of in dags/; the others go on"
            )


def _services(states: Mapping[ServiceName, ServiceStatus]) -> Iterator[Finding]:
    for name, state in states.items():
        # Without any, its first start was interrupted.
        if state.address and not state.external and not read_state(name).get("pid", True):
            yield Finding(True, f"{name}: stopped by ./tidemark down")
        elif state.address:
            where = "" if name == "postgres" else f" at {state.address}"
            refused = state.detail if state.external else ""
            yield Finding(state.healthy, f"{name}{where}", "" if state.healthy else refused or f"./tidemark up {name}")
            if name == "airflow" and state.healthy:
                yield from _airflow(state.address)


def _airflow(address: str) -> Iterator[Finding]:
    """Yield what keeps intervals from their drivers, and a note of each paused DAG that serves all pipelines."""
    if lack := airflow.lack_of_slots(address):
        yield Finding(False, *lack)
    for name in airflow.paused_of(address, _OF_ALL):
        what = f"Airflow's DAG {name} is paused: {_OF_ALL[name]}"
        yield Finding(True, what, f"./tidemark airflow dags unpause {name}", notice=True)


def _ports(states: Mapping[ServiceName, ServiceStatus]) -> Iterator[Finding]:
    """Yield whether other machines reach the embedded services that run."""
    running = [name for name, state in states.items() if not state.external and state.pid is not None]
    reached = [f"{name} at {address}" for name in running for address in open_addresses(name)]
    if reached:
        remedy = "take back the option that opens it, or close the port by a firewall"
        yield Finding(False, f"other machines reach {', '.join(reached)}", remedy)
    elif running:
        yield Finding(True, f"only this machine reaches the ports of {', '.join(running)}")


def _lake() -> Iterator[Finding]:
    try:
        is_there = lake.root_is_available()
    except TidemarkError as error:
        yield Finding(False, error.message, error.remedy)
    else:
        yield Finding(is_there, f"the lake at {lake.root()}", "" if is_there else "make the bucket")
        yield from _another_lake()


def _another_lake() -> Iterator[Finding]:
    try:
        errors = [lake_error(pipeline) for pipeline in declarations().loaded]
    except TidemarkError:
        # A ledger that cannot be read is told when the tables are looked at.
        return
    for error in filter(None, errors):
        yield Finding(False, error.message, error.remedy)


def _repair_tables(progress: Callable[[str], None], *, deep: bool) -> None:
    try:
        disagreements = [each for pipeline in declarations().loaded for each in disagreements_of(pipeline, deep=deep)]
        for line in repairing.plan(disagreements):
            progress(f"plan: {line}")
        repairing.repair(disagreements, progress)
    except TidemarkError as error:
        # The look that follows finds again what could not be repaired.
        progress(f"not repaired: {error}")


def _tables(*, deep: bool, logs: bool) -> Iterator[Finding]:
    try:
        yield from _elsewhere()
        yield from undeclared()
        yield from left_behind(deep=deep)
        for pipeline in declarations().loaded:
            for each in disagreements_of(pipeline, deep=deep):
                yield Finding(False, each.what, each.remedy, each.kind)
            for checkpoint, why in kept_checkpoints(pipeline).items():
                yield Finding(True, f"{pipeline.name}: {lake.below_lake(checkpoint)}", why, notice=True)
            for table in pipeline.tables:
                yield Finding(True, f"{table}: {len(registered_partitions(table))} registered partitions looked at")
            if logs:
                yield from cut_back(pipeline)
            yield from refused_start(pipeline)
            yield from _missing(pipeline)
            yield from unregistered(pipeline)
            yield from unproved(pipeline)
            yield from lost_proofs(pipeline)
            yield from unrenamed(pipeline)
            yield from unfinished_and_unknown_erasures(pipeline)
            yield from _event_gaps(pipeline)
            yield from outputs_behind(pipeline)
    except TidemarkError as error:
        yield Finding(False, f"ledger and catalog cannot be read: {error.message}", error.remedy)


def _elsewhere() -> Iterator[Finding]:
    # Whoever has moved the lake may leave them where they are; whoever has not, sees all other files missing below.
    if outside := registered_outside(lake.root()):
        what = f"{len(outside)} registered revisions lie outside of the lake {lake.root()}, such as {outside[0]}"
        yield Finding(True, what, "set TIDEMARK_LAKE to the lake in which they were built", notice=True)


def undeclared() -> Iterator[Finding]:
    """Yield a finding for each running stream of a pipeline that is no longer declared."""
    for each in undeclared_streams():
        yield Finding(False, str(each), each.remedy)


def left_behind(*, deep: bool) -> Iterator[Finding]:
    """Yield a note for each pipeline of which the lake has folders that no declaration names; `deep` with sizes."""
    for each in left_folders(sizes=deep):
        remedy = "nothing removes them: include/docs/runbook.md, “A pipeline that is removed”"
        yield Finding(True, str(each), remedy, notice=True)


def unproved(pipeline: Pipeline) -> Iterator[Finding]:
    """Yield a note when registered intervals have no proof yet."""
    if count := len(proofs.unproved(pipeline.name)):
        what = f"{pipeline.name}: registered intervals without a proof: {count}"
        yield Finding(True, what, "they are written when the pipeline's next intervals are registered", notice=True)


def lost_proofs(pipeline: Pipeline) -> Iterator[Finding]:
    """Yield a finding when the last proof's file is gone, a note for earlier ones, of which no copy may be left."""
    if lost := lost_files(pipeline):
        what = f"{pipeline.name}: proofs whose files are gone: {len(lost)}, such as {lost[0]}"
        remedy = f"put them back from {copy_to_use(pipeline)}, if it has them: later ones do not verify until then"
        are_earlier = lost[-1] != proofs.paths(pipeline.name)[-1]
        yield Finding(are_earlier, what, remedy, notice=are_earlier)


def unrenamed(pipeline: Pipeline) -> Iterator[Finding]:
    """Yield a note when tables still show a renamed column by its former name."""
    if count := len(left_to_rename(pipeline)):
        what = f"{pipeline.name}: intervals whose files lack the new name of a renamed column: {count}"
        yield Finding(True, what, f"./tidemark rename {pipeline.name}", notice=True)


def _event_gaps(pipeline: Pipeline) -> Iterator[Finding]:
    for gap in gaps_of(pipeline.name):
        command = f"./tidemark produce {pipeline.name} --from-stream URL --accept-gap present|TIME"
        yield Finding(True, str(gap), "" if gap.until_at else command, notice=True)


def outputs_behind(pipeline: Pipeline) -> Iterator[Finding]:
    """Yield a note for each output of rows that waits, or has refused rows."""
    for each in row_outputs.states(pipeline.name, [output.name for output in pipeline.outputs]):
        named = f"{pipeline.name}: the output {each.output}"
        if each.waits_for:
            yield Finding(True, f"{named} is {each.behind} micro-batches behind: {each.waits_for}", notice=True)
        if each.refused:
            what = f"{named} has refused {each.refused} rows"
            yield Finding(True, what, f"./tidemark outputs {pipeline.name} --json", notice=True)


def cut_back(pipeline: Pipeline) -> Iterator[Finding]:
    """Yield a finding when topics, also of speed views, are gone, other ones, or end before what was read of them."""
    for check, found in (check_log, (LogTruncated, TopicRecreated)), (check_compacted_topics, UsageError):
        try:
            check(pipeline)
        except found as error:
            yield Finding(False, f"{pipeline.name}: {error.message}", error.remedy)
        except TidemarkError:
            # A service that is away has a finding of its own, and the stream names a source that does not fit.
            return


def refused_start(pipeline: Pipeline) -> Iterator[Finding]:
    """Yield a finding when no driver runs and the stream would not start, since its code or declaration is another."""
    if writers.live_writer(pipeline.name) is not None:
        # It goes on with its own code; its page says whether this code fits.
        return
    try:
        check_fit(pipeline)
    except ServiceUnreachable:
        raise
    except TidemarkError as error:
        yield Finding(False, f"{pipeline.name}: its stream will not start: {error.message}", error.remedy)


def _missing(pipeline: Pipeline) -> Iterator[Finding]:
    # Nobody has to build them: an operator may want the last hours only.
    if (summary := summarize_missing(pipeline)).count:
        yield Finding(True, str(summary), building_commands(pipeline), notice=True)


def unregistered(pipeline: Pipeline) -> Iterator[Finding]:
    """Yield a note for each pinned interval that its last run has built and not registered, the latest ones first."""
    found = [*find_unregistered(pipeline)]
    for each in found[: -_MOST - 1 : -1]:
        remedy = f"{each.advice.remedy}: {each.advice.command}"
        yield Finding(True, f"{pipeline.name}: {each}", remedy, notice=True)
    if len(found) > _MOST:
        what = f"{pipeline.name}: {len(found) - _MOST} earlier intervals are not registered by their last run either"
        yield Finding(True, what, "the page of intervals has them", notice=True)


def unfinished_and_unknown_erasures(pipeline: Pipeline) -> Iterator[Finding]:
    """Yield a finding for each erasure that is not finished, or that this ledger, an older copy, does not know."""
    for each in accounts.unknown(pipeline.name):
        yield Finding(False, str(each), each.remedy)
    if (begun := unfinished.unfinished(pipeline.name)) is not None:
        what = f"{pipeline.name}: erasure {begun.id} is unfinished: files still hold records that nobody reads any more"
        yield Finding(False, what, f"./tidemark erase {pipeline.name} --resume")
