"""What `doctor` learns of DAGs that cannot be made, without Airflow running."""

from __future__ import annotations

import pytest

from include.services import dag_files
from include.services.dag_files import unmade_dags

UNMADE = """
from include.pipelines import declarations
loaded = {each.name: each for each in declarations().loaded}
# As if the declaration had been accepted: Airflow has no such pool slots, and cron no such schedule.
object.__setattr__(loaded["isp_hits"], "spark_slots", 0)
object.__setattr__(loaded["gps_positions"], "schedule", "15m")
"""


def test_dags_that_cannot_be_made_are_named_with_their_pipeline_when_airflow_does_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert unmade_dags() == []
    monkeypatch.setattr(dag_files, "_READ", UNMADE + dag_files._READ)
    told = "\n".join(unmade_dags())
    assert "include/pipelines/isp_hits.py: interval_dag: ValueError: pool slots" in told
    assert "include/pipelines/gps_positions.py: interval_dag: AttributeError: 'str' object" in told


def test_error_is_told_in_one_line_when_the_files_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dag_files, "_READ", "raise ImportError('no module named airflow')")
    assert unmade_dags() == [
        "dags/ cannot be read, so no pipeline has DAGs: ImportError: no module named airflow",
    ]
    monkeypatch.setattr(dag_files, "_READ", "import time; time.sleep(60)")
    monkeypatch.setattr(dag_files, "_PATIENCE", 0.1)
    assert unmade_dags() == ["dags/ was not read within 0.1 s"]
