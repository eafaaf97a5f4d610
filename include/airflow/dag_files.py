"""What the files in `dags/` that make a DAG for each pipeline share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from airflow.sdk import DAG

from include.errors import one_line
from include.pipelines.spec import Pipeline


@dataclass(frozen=True)
class Made:
    """The DAGs of a file, and why pipelines have none there."""

    dags: dict[str, DAG] = field(default_factory=dict)
    """By their names."""
    reasons: list[str] = field(default_factory=list)
    """What Airflow said of each pipeline whose DAG could not be made; `dags/declarations.py` shows it."""


def make_dags(make: Callable[[Pipeline], DAG | None], pipelines: Iterable[Pipeline]) -> Made:
    """Return the DAGs that pipelines have of one kind; one that cannot be made does not take those of the others away.

    The DAGs have `auto_register=False`, else Airflow would also take one that was begun and not completed.
    """
    made = Made()
    for pipeline in pipelines:
        try:
            dag = make(pipeline)
        # Whatever is raised while a pipeline's DAG is made concerns this pipeline alone.
        except Exception as error:
            said = f"{make.__name__}: {type(error).__name__}: {one_line(str(error))}"
            made.reasons.append(f"include/pipelines/{pipeline.code}.py: {said}")
        else:
            if dag:
                made.dags[dag.dag_id] = dag
    return made


def rows_of(row: Callable[[Pipeline], str], pipelines: Iterable[Pipeline]) -> str:
    """Return the rows of a table in a DAG's text, one for each pipeline; one that cannot be made says why.

    The DAG is of all pipelines: what is wrong with one keeps it from none of the others.
    """
    rows = []
    for pipeline in pipelines:
        try:
            rows.append(row(pipeline))
        # As above.
        except Exception as error:
            rows.append(f"| {pipeline.name} | {type(error).__name__}: {one_line(str(error))} |")
    return "\n".join(rows)
