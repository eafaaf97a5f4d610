"""The notebook runs from its first cell to its last on a home with data, draws, and shows no secret."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from include import kafka
from include.pipelines import load_pipeline
from include.times import format_time
from tests.conftest import REPOSITORY, Home, last_hours
from tests.support.pages_world import World
from tests.support.tool_environment import tool_environment

NOTEBOOK = REPOSITORY / "include" / "docs" / "explore.ipynb"
NAME = "isp_hits"
START = last_hours(4)

EXECUTE = """
import sys
import nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""


def cells(path: Path) -> list[dict[str, Any]]:
    return [each for each in json.loads(path.read_text())["cells"] if each["cell_type"] == "code"]


def test_no_outputs_are_kept_when_the_notebook_is_committed() -> None:
    assert cells(NOTEBOOK)
    assert not [each for each in cells(NOTEBOOK) if each["outputs"] or each["execution_count"]]


@pytest.mark.services
@pytest.mark.slow
def test_notebook_reads_ledger_tables_and_live_view_and_draws_each(in_process: Home, tmp_path: Path) -> None:
    world = World(load_pipeline(NAME), START)
    for _ in range(3):
        world.run(world.stream())
    kafka.create_topic("isp-hits-by-zip", 2, compacted=True)
    kafka.send("isp-hits-by-zip", [message(zipcode, hits) for zipcode, hits in (("10001", 7), ("20002", 9))])
    done = tmp_path / "done.ipynb"
    # The project's libraries come first, then those of the group; both are from one lock file.
    packages = next((REPOSITORY / ".venv" / "lib").glob("python*/site-packages"))
    secrets = {
        "TIDEMARK_ALERT_SMTP": "smtp://eve:c4nary-of-mail@127.0.0.1:1",
        "TIDEMARK_ALERT_WEBHOOK": "http://127.0.0.1:1/c4nary-of-webhook",
        "TIDEMARK_OPENLINEAGE_URL": "http://:c4nary-of-lineage@127.0.0.1:1",
        "TIDEMARK_REGISTRY_URL": "http://eve:c4nary-of-registry@127.0.0.1:1",
        "AWS_SECRET_ACCESS_KEY": "c4nary-of-bucket",
    }
    environment = in_process.environment(PYTHONPATH=f"{REPOSITORY}{os.pathsep}{packages}", **secrets)
    command = [str(tool_environment("notebook") / "python"), "-c", EXECUTE, str(NOTEBOOK), str(done)]
    ran = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    outputs = [output for cell in cells(done) for output in cell["outputs"]]
    assert len([each for each in outputs if "image/png" in each.get("data", {})]) == 3
    assert not [each for each in outputs if each["output_type"] == "error"]
    text = done.read_text()
    assert "2 values, read" in text
    password = urlsplit(in_process.database).password
    assert password
    assert password not in text
    assert "c4nary" not in text + ran.stdout + ran.stderr


def message(zipcode: str, hits: int) -> tuple[bytes, bytes]:
    window = {"end": format_time(START + timedelta(minutes=12)), "start": format_time(START + timedelta(minutes=2))}
    key = json.dumps({"window": window, "zipcode": zipcode}).encode()
    return key, json.dumps({"hits": hits, "version": 1}).encode()
