"""Airflow's pool of Spark drivers: whether it is there, and has slots enough for one driver of each pipeline."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx

from include.errors import ServiceUnreachable
from include.pipelines import declarations
from include.services.spark.allowance import cores
from include.settings import PAST_PROXY
from include.spark.submission import SPARK_POOL


def ensure(address: str, login: Mapping[str, str]) -> None:
    """Create the pool with a slot per core, or as many as the largest driver takes.

    An existing pool keeps its slots; a line says when they are too few. Raises ServiceUnreachable.
    """
    pool = {
        "name": SPARK_POOL,
        "slots": max([cores(), *_taken().values()]),
        "description": "Spark drivers of intervals at once: one per core",
        "include_deferred": False,
    }
    with logged_in(address, login, "accept") as client:
        answer = client.post("/api/v2/pools", json=pool)
        if answer.status_code != httpx.codes.CONFLICT:
            answer.raise_for_status()
            return
    if lack := lack_of_slots(address, login):
        print(f"tidemark: {' — '.join(lack)}", file=sys.stderr, flush=True)


def lack_of_slots(address: str, login: Mapping[str, str]) -> tuple[str, str] | None:
    """Return whose drivers would wait for ever, and what to do; None when nobody's. Raises ServiceUnreachable."""
    with logged_in(address, login, "show") as client:
        answer = client.get(f"/api/v2/pools/{SPARK_POOL}")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return f"Airflow has no pool {SPARK_POOL}: every interval waits for it", "./tidemark up airflow makes it"
        slots = answer.raise_for_status().json()["slots"]
    # A pool of -1 slots has no limit.
    larger = {name: taken for name, taken in _taken().items() if -1 < slots < taken}
    if not larger:
        return None
    drivers = ", ".join(f"{name} {taken}" for name, taken in larger.items())
    return (
        f"Airflow's pool {SPARK_POOL} has {slots} slots, and intervals wait for ever for more: {drivers}",
        f"give it {max(larger.values())} slots in Airflow, below Admin, Pools, or declare a lower spark_slots",
    )


def _taken() -> dict[str, int]:
    """Return how many slots a driver of each pipeline takes."""
    return {each.name: each.spark_slots for each in declarations().loaded}


@contextmanager
def logged_in(address: str, login: Mapping[str, str], verb: str) -> Iterator[httpx.Client]:
    """Yield a client of Airflow's API. Raises ServiceUnreachable when Airflow does not answer, or refuses."""
    try:
        with httpx.Client(base_url=address, timeout=30, mounts=PAST_PROXY) as client:
            token = client.post("/auth/token", json=login).raise_for_status().json()["access_token"]
            client.headers["Authorization"] = f"Bearer {token}"
            yield client
    except httpx.HTTPError as error:
        raise ServiceUnreachable(
            f"Airflow at {address} did not {verb} the pool {SPARK_POOL}: {type(error).__name__}",
            remedy=f"./tidemark airflow pools set {SPARK_POOL} 2 'Spark drivers at once'",
        ) from None
