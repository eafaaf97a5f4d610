"""How many runs a pipeline's intervals have at a time."""

from __future__ import annotations

from datetime import timedelta

from include.times import Schedule

MOST_RUNS = 672
"""Runs of a pipeline at most, a week of quarters of an hour: Airflow's scheduler looks at each again and again."""

RESERVE = 4
"""Runs that missing intervals leave to the schedule: with `catchup=False` Airflow never makes up for one that could not
begin in time."""

MISSING = "missing__"
"""Prefix of the ids of runs that build missing intervals."""


def most_runs(schedule: Schedule) -> int:
    """Return how many runs of a pipeline there may be at a time: a week of intervals, at least 24.

    One that waits for a person, or for its stream, must not keep later ones from beginning, for with `catchup=False`
    Airflow never makes up for a run that could not begin in time. How many drivers there are is up to the pool.
    """
    return min(max(24, timedelta(weeks=1) // schedule.every), MOST_RUNS)
