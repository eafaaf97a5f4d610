"""No DAG: it shows in Airflow, as an import error, which pipelines cannot run, while the DAGs of all others go on."""

from __future__ import annotations

# Reading them here makes no DAG of this file: theirs have `auto_register=False`.
from dags import daily, intervals, streams
from include.errors import UsageError
from include.pipelines import declarations

_not_made = (*daily.made.reasons, *intervals.made.reasons, *streams.made.reasons)
if _reasons := [*declarations().reasons, *_not_made]:
    raise UsageError(f"these pipelines have no DAGs, or not all: {'; '.join(_reasons)}")
