"""The assets that interval DAGs update, and the two kinds of event that announce an update.

Airflow queues a keyed event to partition-aware DAGs only, and an event without a key to the others only. So a task
emits both for an asset: the keyed one through the asset itself, the other through the alias `UNKEYED`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import Asset, AssetAlias

from include.times import Interval, parse_time

UNKEYED = AssetAlias("tidemark")
"""Outlet of every task that emits: the events without a key pass through it."""

_PARTITIONS = ("registered", "dropped")


def table_asset(table: str) -> Asset:
    """Return the asset of a registered table; consumers name it alike: `Asset("lake.nest_cameras")`."""
    # Without a URI of its own: a consumer that gives the name alone would mean another asset.
    return Asset(f"lake.{table}")


def interval_asset(pipeline: str) -> Asset:
    """Return the asset of a pipeline's complete intervals, those without a row included."""
    return Asset(f"intervals.{pipeline}")


def partition_key(interval: Interval) -> str:
    """Return an interval's start in the form that Airflow's `StartOf…Mapper` classes read."""
    return interval.from_time.strftime("%Y-%m-%dT%H:%M:%S")


def partitions_of(told: Mapping[str, Any], table: str) -> dict[str, Any]:
    """Return of what an interval announces the part that concerns a table."""
    of_table = {name: [each for each in told.get(name, ()) if each["table"] == table] for name in _PARTITIONS}
    return {**told, **of_table}


def emit(outlet_events: Any, asset: Asset, told: Mapping[str, Any]) -> None:
    """Emit the keyed event of an interval and the one without a key.

    Both name the partitions of `told` that are registered, those that were and are not any more, the interval's report,
    and until when the pipeline's tables were complete then.
    """
    interval = told["interval"]
    extra = {
        "interval": dict(interval),
        "partitions": [dict(each) for each in told["registered"]],
        # Missing, as below, in a run of earlier code whose last tasks are cleared.
        "dropped": [dict(each) for each in told.get("dropped", ())],
        "report": told["report"],
        "complete_until": told.get("complete_until"),
    }
    bounds = Interval(parse_time(interval["from"]), parse_time(interval["to"]))
    outlet_events[asset].extra = extra
    outlet_events[asset].add_partitions(partition_key(bounds))
    outlet_events[UNKEYED].add(asset, extra)
