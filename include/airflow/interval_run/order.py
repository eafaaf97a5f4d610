"""How many runs a pipeline's intervals have at a time, and which of them go first."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.plugins_manager import get_priority_weight_strategy_plugins
from airflow.task.priority_strategy import PriorityWeightStrategy

from include.times import Schedule

MOST_RUNS = 672
"""Runs of a pipeline at most, a week of quarters of an hour: Airflow's scheduler looks at each again and again."""

RESERVE = 4
"""Runs that missing intervals leave to the schedule: with `catchup=False` Airflow never makes up for one that could not
begin in time."""

MISSING = "missing__"
"""Prefix of the ids of runs that build missing intervals."""

_HISTORY = "backfill__", MISSING
"""Prefixes of the ids of runs that build what nobody waits for."""

_AHEAD = 40
"""Weight of live runs: more than that of any task of a run without it, and with it less than a stream's."""


def most_runs(schedule: Schedule) -> int:
    """Return how many runs of a pipeline there may be at a time: a week of intervals, at least 24.

    One that waits for a person, or for its stream, must not keep later ones from beginning, for with `catchup=False`
    Airflow never makes up for a run that could not begin in time. How many drivers there are is up to the pool.
    """
    return min(max(24, timedelta(weeks=1) // schedule.every), MOST_RUNS)


class LiveFirst(PriorityWeightStrategy):
    """Lets live intervals and a person's runs go before cleared runs, and these before backfills and missing intervals.

    Airflow itself takes the oldest first, so that live ones would wait until a backfill is over. Among runs of the same
    kind, what has begun ends first: else each interval would wait until all others are built.
    """

    def get_weight(self, ti: Any) -> int:
        """Return the number of tasks that lead to this one, with it, and what its run is ahead of others."""
        begun = 1 + len(ti.task.get_flat_relative_ids(upstream=True))
        # A new task instance knows no more of its run than the id. One that is cleared knows its run, but not whether a
        # person does that, or a backfill that takes the run over.
        if ti.dag_run is not None:
            return begun + _AHEAD // 2
        return begun if ti.run_id.startswith(_HISTORY) else begun + _AHEAD


def weight_rule() -> str:
    """Return the rule by which tasks of intervals get their weights.

    Where Tidemark's plugins folder is not Airflow's, Airflow would refuse the DAG for a rule that it does not know.
    """
    path = f"{LiveFirst.__module__}.{LiveFirst.__qualname__}"
    return path if path in get_priority_weight_strategy_plugins() else "upstream"
