"""No DAG: it shows in Airflow, as an import error, which pipelines cannot run, while the DAGs of all others go on."""

from __future__ import annotations

from include.errors import UsageError
from include.pipelines import declarations

if _reasons := declarations().reasons:
    raise UsageError(f"these pipelines have no DAGs: {'; '.join(_reasons)}")
