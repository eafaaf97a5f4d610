"""Two DAGs that follow a registered table: one runs for each interval, one for each day that has something new.

Copy it into your DAGs. It needs nothing of Tidemark but the name of the table's asset.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Asset, PartitionedAssetTimetable, StartOfDayMapper, task

TABLE = Asset("lake.nest_cameras")


def each_interval_dag() -> DAG:
    """The DAG `each_interval_of_nest_cameras`: started by the events without a key, one or more at a time."""
    with DAG("each_interval_of_nest_cameras", schedule=[TABLE], catchup=False, tags=["example"]) as dag:

        @task
        def read_new_partitions(*, triggering_asset_events: Any = None) -> list[str]:
            """Return where the files of the newly registered table partitions lie."""
            events = triggering_asset_events[TABLE]
            return [partition["location"] for event in events for partition in event.extra["partitions"]]

        read_new_partitions()
    return dag


def each_day_dag() -> DAG:
    """The DAG `each_day_of_nest_cameras`: started by the events with a key; its partition key is the day."""
    by_day = PartitionedAssetTimetable(assets=TABLE, default_partition_mapper=StartOfDayMapper())
    with DAG("each_day_of_nest_cameras", schedule=by_day, catchup=False, tags=["example"]) as dag:

        @task
        def read_day(*, dag_run: Any = None) -> str:
            """Return the day whose table partitions are to be read again: `date=<day>`."""
            return f"date={dag_run.partition_key}"

        read_day()
    return dag


each_interval = each_interval_dag()
each_day = each_day_dag()
