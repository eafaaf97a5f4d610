"""`up`, `down` and `status` over all embedded services."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Literal, get_args

import psutil
from sqlalchemy.exc import SQLAlchemyError

from include.errors import ServiceUnreachable, UsageError
from include.ledger.streams import writers
from include.services import airflow, kafka, postgres, registry
from include.services.process import ServiceStatus, read_state, services_lock, write_state

ServiceName = Literal["kafka", "postgres", "registry", "airflow"]

SERVICES: dict[ServiceName, ModuleType] = {
    "kafka": kafka,
    "postgres": postgres,
    "registry": registry,
    "airflow": airflow,
}
DEFAULT: tuple[ServiceName, ...] = ("kafka", "postgres")
ALL: tuple[ServiceName, ...] = tuple(SERVICES)

_PATIENCE = 90.0
"""Seconds that streams may take to finish their micro-batch."""


def service_names(names: Sequence[str] | None, default: Sequence[ServiceName] = DEFAULT) -> list[ServiceName]:
    """Names as users write them (`all` included) in starting order. Raises UsageError for an unknown one."""
    known = get_args(ServiceName)
    wanted = set(names or default)
    if "all" in wanted:
        wanted = wanted - {"all"} | set(ALL)
    if unknown := wanted - set(known):
        raise UsageError(f"unknown service {', '.join(sorted(unknown))}", remedy=f"one of {', '.join(known)}, all")
    return [name for name in SERVICES if name in wanted]


def _with_needed(names: Sequence[str] | None) -> Sequence[str] | None:
    """The registry keeps its schemas in PostgreSQL."""
    return [*names, "postgres"] if names and "registry" in names else names


def up(names: Sequence[str] | None = None, progress: Callable[[str], None] = lambda _: None) -> None:
    """Start those services that do not run; each is healthy when this returns. Raises ServiceUnreachable."""
    with services_lock():
        for name in service_names(_with_needed(names)):
            current = SERVICES[name].status()
            if current.external and not current.healthy:
                raise ServiceUnreachable(
                    f"the {name} that the settings name does not answer", remedy="./tidemark status tells its address"
                )
            if current.healthy:
                if name == "postgres":
                    # Another version of the code may have started it, or it is not ours: its tables may be older.
                    postgres.prepare_databases()
                continue
            if current.pid is not None:
                progress(f"{name} runs but does not answer: starting it again")
                SERVICES[name].down()
            progress(f"starting {name}")
            SERVICES[name].up()


def down(names: Sequence[str] | None = None, progress: Callable[[str], None] = lambda _: None) -> None:
    """Stop the embedded services that run, in reverse order.

    Streams that need one of them finish their micro-batch first.
    """
    wanted = list(reversed(service_names(names, default=tuple(SERVICES))))
    with services_lock():
        if "airflow" in wanted:
            # It would launch a stream that ended anew.
            _stop("airflow", progress)
        if {"kafka", "postgres"} & set(wanted):
            _stop_streams(progress)
        for name in wanted:
            _stop(name, progress)


def _stop(name: ServiceName, progress: Callable[[str], None]) -> None:
    if SERVICES[name].status().pid is not None:
        progress(f"stopping {name}")
        SERVICES[name].down()
    # Ended on purpose: not a service that died.
    if state := read_state(name):
        write_state(name, **{**state, "pid": None})


def _stop_streams(progress: Callable[[str], None]) -> None:
    """Ask this host's drivers of the embedded ledger to stop, and wait for their end."""
    if not (ledger := postgres.status()).healthy or ledger.external:
        return
    # Who runs this command waits for its end, and cannot be waited for.
    above = psutil.Process().parents()
    try:
        drivers = {name: driver for name, driver in writers.live_drivers().items() if driver not in above}
    except SQLAlchemyError:
        # Of another version of the code: not a reason to leave the services running.
        return
    for pipeline in drivers:
        progress(f"stopping the stream of {pipeline}")
        writers.request_stop(pipeline)
    _, left = psutil.wait_procs(drivers.values(), _PATIENCE)
    for process in left:
        progress(f"process {process.pid} has not ended; it will, without its services")


def status() -> dict[ServiceName, ServiceStatus]:
    """Every service as it is now."""
    return {name: module.status() for name, module in SERVICES.items()}
