"""What tests of Airflow's operators share."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.conftest import Home

DRIVER = """#!/bin/sh
echo "10:11:12 WARN HiveConf: HiveConf of name hive.stats.jdbc.timeout does not exist"
echo "tidemark: isp_hits: validating"
exit $(cat {code})
"""


@pytest.fixture
def driver(postgres: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the exit code of the program that stands for `spark-submit`."""
    code = tmp_path / "code"
    program = tmp_path / "spark-submit"
    program.write_text(DRIVER.format(code=code))
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    connection = {"conn_type": "spark", "host": "local[1]", "extra": {"spark-binary": "spark-submit"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    return code
