"""The files of `dags/`, read as Airflow reads them, whether it runs or not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from tempfile import TemporaryDirectory

from include.errors import one_line
from include.settings import REPOSITORY

_READ = """
import json
from dags import daily, decide, housekeeping, intervals, streams, watch
print("\\n" + json.dumps([*daily.made.reasons, *intervals.made.reasons, *streams.made.reasons]))
"""

_PATIENCE = 180
"""Seconds, as Airflow has for a file."""


def unmade_dags() -> list[str]:
    """Return why DAGs of accepted declarations cannot be made, a line for each; one line when a file cannot be read.

    Airflow's own import errors say it, too, but only where Airflow runs, and minutes later. It takes seconds: the files
    are read by another process, since Airflow is slow to import.
    """
    with TemporaryDirectory(prefix="airflow-") as folder:
        # Airflow writes its default configuration into the home that it is not told.
        environment = {"AIRFLOW_HOME": folder, **os.environ, "PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, "-c", _READ]
        try:
            read = subprocess.run(
                command,
                env=environment,
                cwd=REPOSITORY,
                capture_output=True,
                text=True,
                check=False,
                timeout=_PATIENCE,
            )
        except subprocess.TimeoutExpired:
            return [f"dags/ was not read within {_PATIENCE} s"]
    if read.returncode:
        last = (read.stderr.strip().splitlines() or [f"exit code {read.returncode}"])[-1]
        return [f"dags/ cannot be read, so no pipeline has DAGs: {one_line(last)}"]
    reasons: list[str] = json.loads(read.stdout.splitlines()[-1])
    return reasons
