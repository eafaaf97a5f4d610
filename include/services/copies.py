"""Homes that were copied, put back in part, or share a database: what must hold before their servers start."""

from __future__ import annotations

import socket
from contextlib import closing, suppress
from pathlib import Path

import psycopg2
from psycopg2.errors import UndefinedTable

from include.errors import UsageError
from include.ledger.connection import does_not_answer, driver_options
from include.services.process import read_state
from include.settings import settings

_SHARED = ("lake", "kafka_bootstrap", "jdbc_properties")
"""Settings of what a ledger writes outside of its home."""

_SCHEDULERS = """
SELECT DISTINCT hostname FROM job
WHERE job_type = 'SchedulerJob' AND state = 'running' AND latest_heartbeat > clock_timestamp() - interval '1 min'
"""
"""The hosts of Airflow's schedulers, which give a sign of life every 5 seconds."""


def check_password_kept(name: str, data: Path) -> None:
    """Raise UsageError when the service has data, and its state file is gone: a new password does not open them."""
    if data.exists() and not read_state(name):
        raise UsageError(
            f"{data.parent} has data, and {settings().home / 'services' / name}.json "
            "is gone, which alone has their password",
            remedy="put a copy of it there",
        )


def check_shares_nothing() -> None:
    """Raise UsageError when this home's ledger is a copy, and its settings name what the original may use, too.

    Both ledgers would have the same state of one lake, and each would delete there what only the other one knows.
    """
    shared = [f"TIDEMARK_{name.upper()}" for name in _SHARED if getattr(settings(), name)]
    if not shared or not settings().service_state("postgres"):
        return
    try:
        settings().check_not_copied("postgres")
    except UsageError as error:
        state = settings().home / "services" / "postgres.json"
        raise UsageError(
            f"{error.message}: both would use {', '.join(shared)}",
            remedy="name a lake, a cluster and connections that the original does not use, or move its folder away; "
            f'then write this home as "home" into {state}',
        ) from None


def check_no_other_airflow() -> None:
    """Raise UsageError when the Airflow of another host works on the database that the settings name.

    Each would run tasks of the other, by its own checkout. Raises ServiceUnreachable.
    """
    if settings().database_url is None:
        return
    try:
        connected = psycopg2.connect(settings().database_uri("airflow"), **driver_options())
        with closing(connected), connected.cursor() as asked:
            asked.execute(_SCHEDULERS)
            others = {host for (host,) in asked.fetchall()} - _own_names()
    except UndefinedTable:
        # No Airflow has worked there yet.
        return
    except psycopg2.OperationalError as error:
        raise does_not_answer(error) from error
    if others:
        raise UsageError(
            f"Airflow runs on {', '.join(sorted(others))} with the database at {settings().database_host()}: this one "
            "would run its tasks, and each rewrite the other's DAGs",
            remedy="end that one there by ./tidemark down airflow, start only the services that you need here, or name "
            "a PostgreSQL server of this installation's own; if that Airflow was killed just now, repeat this in a "
            "minute",
        )


def _own_names() -> set[str]:
    """Return what this host may be called; Airflow takes the canonical name."""
    names = {socket.gethostname(), socket.getfqdn()}
    with suppress(OSError):
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_DGRAM, flags=socket.AI_CANONNAME)
        names |= {canonical for *_, canonical, _ in found}
    return names
