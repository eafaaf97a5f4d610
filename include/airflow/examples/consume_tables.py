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
        def read_new_partitions(*, triggering_asset_events: Any = None) -> dict[str, Any]:
            """Return by interval where its files lie now, and which table partitions have no rows of it any more."""
            events = sorted(triggering_asset_events[TABLE], key=lambda event: event.timestamp)
            # A later event of an interval replaces an earlier one.
            return {
                event.extra["interval"]["from"]: {
                    "read": [each["location"] for each in event.extra["partitions"]],
                    "drop": [each["partition"] for each in event.extra["dropped"]],
                }
                for event in events
            }

        read_new_partitions()
    return dag


def each_day_dag() -> DAG:
    """The DAG `each_day_of_nest_cameras`: started by the events with a key; its partition key is the day."""
    by_day = PartitionedAssetTimetable(assets=TABLE, default_partition_mapper=StartOfDayMapper())
    with DAG("each_day_of_nest_cameras", schedule=by_day, catchup=False, tags=["example"]) as dag:

        @task
        def read_day(*, dag_run: Any = None) -> str:
            """Return a condition of SQL: which rows of the table to read again, in place of those read before by it.

            The key is the day on which intervals begin, not the rows' `date`: a record of 23:59:58 that arrives at
            00:00:05 has the date of one day, and lies in the first interval of the next.
            """
            return f"interval LIKE '{dag_run.partition_key}T%'"

        read_day()
    return dag


each_interval = each_interval_dag()
each_day = each_day_dag()
