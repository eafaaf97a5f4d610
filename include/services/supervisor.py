"""Start, stop and check all embedded services together."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence, Set
from types import ModuleType
from typing import Literal, get_args

import psutil

from include.errors import ServiceUnreachable, TidemarkError, UsageError
from include.processes import wait_ended
from include.services import airflow, kafka, postgres, process, registry, yarn
from include.services.process import ServiceStatus, log_path, read_state, services_lock, write_state
from include.services.spark import jvm
from include.settings import REPOSITORY, Settings, settings
from include.waiting import wait_for

ServiceName = Literal["kafka", "postgres", "registry", "spark", "yarn", "airflow"]

SERVICES: dict[ServiceName, ModuleType] = {
    "kafka": kafka,
    "postgres": postgres,
    "registry": registry,
    "spark": jvm,
    "yarn": yarn,
    "airflow": airflow,
}
DEFAULT: tuple[ServiceName, ...] = ("kafka", "postgres")
ALL: tuple[ServiceName, ...] = ("kafka", "postgres", "registry", "airflow")
"""What `up all` starts; only when it is named: `spark`, a gigabyte of memory, and YARN, three Java processes."""

_ON_REQUEST: frozenset[ServiceName] = frozenset({"spark", "yarn"})

_STREAM_SECONDS = 90.0
"""How long `down` waits for streams to finish their micro-batch."""

_PATIENCE = 180.0
"""Seconds that `up` waits for a service that runs and does not answer."""


def service_names(
    names: Sequence[str] | None, default: Sequence[ServiceName] = DEFAULT, everything: Sequence[ServiceName] = ALL
) -> list[ServiceName]:
    """Return the named services in starting order; `all` means `everything`. Raise UsageError for an unknown name."""
    known = get_args(ServiceName)
    wanted = set(names or default)
    if "all" in wanted:
        wanted = wanted - {"all"} | set(everything)
    if unknown := wanted - set(known):
        raise UsageError(f"unknown service {', '.join(sorted(unknown))}", remedy=f"one of {', '.join(known)}, all")
    return [name for name in SERVICES if name in wanted]


def _with_dependencies(names: Sequence[str] | None) -> Sequence[str] | None:
    """Return the names with those of services they need: the registry keeps its schemas in PostgreSQL."""
    return [*names, "postgres"] if names and "registry" in names else names


def up(names: Sequence[str] | None = None, progress: Callable[[str], None] = lambda _: None) -> None:
    """Start the services that are not running and wait until each is healthy.

    Raises ServiceUnreachable if one fails, UsageError for options of an external Kafka that are refused.
    """
    with services_lock():
        _up(names, progress)


def up_dead(progress: Callable[[str], None]) -> None:
    """Start the services that have died, as `up` does; those that `down` has stopped stay so."""
    with services_lock():
        # Looked at only now: a `down` that this waited for has stopped some.
        if dead := [name for name, each in status().items() if _has_died(name, each)]:
            _up(dead, progress)


def _has_died(name: ServiceName, status: ServiceStatus) -> bool:
    # A state file without a pid means a stopped service, one with a pid a service that died.
    return not status.healthy and not status.external and bool(read_state(name).get("pid"))


def _up(names: Sequence[str] | None, progress: Callable[[str], None]) -> None:
    for name in service_names(_with_dependencies(names)):
        current = SERVICES[name].status()
        if current.external and not current.healthy:
            if name == "kafka":
                # Options that are refused are no broker that is away.
                settings().kafka_client_options()
            raise ServiceUnreachable(
                f"the {name} that the settings name does not answer", remedy="./tidemark status shows its address"
            )
        if not current.healthy:
            _check_room(name)
        if current.pid is not None and not current.healthy and not current.is_broken:
            progress(f"{name} is running but does not answer: waiting for it")
            current = _patient_status(name)
        if current.is_broken:
            progress(f"{name} has lost a part: restarting it")
            SERVICES[name].down()
        if not current.healthy:
            progress(f"starting {name}")
            SERVICES[name].up()
        elif name == "postgres":
            # An older version of the code, or somebody else, may have created its tables.
            postgres.prepare_databases()
        elif name == "airflow":
            # The start that should have made it may have been interrupted.
            airflow.ensure_pool(current.address)
            # With the DAGs of that one. Older versions did not note it.
            if (started_in := read_state(name).get("checkout", str(REPOSITORY))) != str(REPOSITORY):
                progress(
                    f"airflow runs from the checkout {started_in}; for this one: ./tidemark down airflow, then up again"
                )
            if others := unlike_airflow():
                progress(f"{others}; for those of this process: ./tidemark down airflow, then up again")


def unlike_airflow() -> str:
    """Return in words which settings the running embedded Airflow has otherwise than this process; empty for none."""
    started = process.running(read_state("airflow"))
    try:
        there = started.environ() if started else None
    except psutil.Error:
        # It has ended, or is another user's.
        there = None
    if there is None:
        return ""
    here = {"TIDEMARK_ARCHIVE_WAIT": airflow.ARCHIVE_WAIT, **{name: each for name, each in os.environ.items() if each}}
    declared = {f"TIDEMARK_{name.upper()}": each.metadata["of"] for name, each in Settings.declared().items()}
    del declared["TIDEMARK_HOME"]
    others = [n for n, of in declared.items() if _meant(of, there.get(n, "")) != _meant(of, here.get(n, ""))]
    return f"airflow was started with other settings: {', '.join(others)}" if others else ""


def _meant(of: Callable[[str], object], text: str) -> object:
    """Return the value of a setting's text, which processes of other code may have written otherwise."""
    try:
        return of(text) if text else ""
    except ValueError:
        return text


def _check_room(name: ServiceName) -> None:
    """Raise ServiceUnreachable when a service that does not answer has no space for its data or its log."""
    # Imported where it is needed: it comes with PyArrow.
    from include.lake.disks import Disk

    for folder in (settings().home / name, log_path(name).parent):
        if (disk := Disk.of(folder)).is_full:
            raise ServiceUnreachable(
                f"the embedded {name} does not run on a full disk: {disk}",
                remedy=f"make room there, then ./tidemark up {name}: it goes on with what it has acknowledged",
            )


def _patient_status(name: ServiceName) -> ServiceStatus:
    """Return the status of a service once it answers, or has ended, wholly or in part.

    It is not restarted: it may only be slow, with streams that need it, or recover, and would begin to do so again.
    Raises ServiceUnreachable after three minutes.
    """

    def is_known(status: ServiceStatus) -> bool:
        return status.pid is None or status.healthy or status.is_broken

    status: ServiceStatus = wait_for(SERVICES[name].status, is_known, seconds=_PATIENCE)
    if not is_known(status):
        raise ServiceUnreachable(
            f"the embedded {name} is running but does not answer",
            remedy=f"read {log_path(name)}; to restart it: ./tidemark down {name}; ./tidemark up {name}",
        )
    return status


def down(names: Sequence[str] | None = None, progress: Callable[[str], None] = lambda _: None) -> None:
    """Stop the running embedded services in reverse order.

    Before Kafka, PostgreSQL or YARN stops, its streams finish their micro-batch.
    """
    known = tuple(SERVICES)
    wanted = list(reversed(service_names(names, default=known, everything=known)))
    with services_lock():
        if "airflow" in wanted:
            # First, because Airflow relaunches a stream that ended.
            _stop("airflow", progress)
        if any(_is_running_here(name) for name in ("kafka", "postgres") if name in wanted):
            _stop_streams(progress)
        elif "yarn" in wanted:
            _stop_streams(progress, only=set(yarn.containers()))
        for name in wanted:
            _stop(name, progress)


def _is_running_here(name: ServiceName) -> bool:
    status: ServiceStatus = SERVICES[name].status()
    return status.pid is not None and not status.external


def _stop(name: ServiceName, progress: Callable[[str], None]) -> None:
    if SERVICES[name].status().pid is not None:
        progress(f"stopping {name}")
        SERVICES[name].down()
    elif read_state(name).get("pid"):
        # It was killed, and what it left is known by the pid, which is forgotten below.
        progress(f"ending what is left of {name}")
        SERVICES[name].down()
    # Without a pid, it counts as stopped (`_has_died`).
    if state := read_state(name):
        write_state(name, **{**state, "pid": None})


def _stop_streams(progress: Callable[[str], None], only: Set[psutil.Process] | None = None) -> None:
    """Ask the ledger's drivers on this host, or `only` some, to stop, and wait until they have ended."""
    if not postgres.status().healthy:
        return
    from include.ledger.streams import writers

    # A driver above this command waits for the command's end: waiting for the driver would be a deadlock.
    ancestors = psutil.Process().parents()
    try:
        drivers = {
            name: driver
            for name, driver in writers.live_drivers().items()
            if driver not in ancestors and (only is None or driver in only)
        }
    except TidemarkError:
        # A ledger that cannot be read, or of another version of the code, must not keep the services running.
        return
    for pipeline in drivers:
        progress(f"stopping the stream of {pipeline}")
        writers.request_stop(pipeline)
    for each in wait_ended(drivers.values(), _STREAM_SECONDS):
        progress(f"process {each.pid} is still running; it will end when it misses its services")


def status() -> dict[ServiceName, ServiceStatus]:
    """Return address and health of every service; of those that few need, only once they were started."""
    services = {name: module.status() for name, module in SERVICES.items()}
    return {name: each for name, each in services.items() if name not in _ON_REQUEST or each.address}
