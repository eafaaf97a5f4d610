"""Fetching jars: several who need the same at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from include.settings import REPOSITORY
from include.spark import jars

FETCH = """
import sys
from pathlib import Path
from include.spark import jars
jars.folder = lambda: Path(sys.argv[1])
print(jars.registry_application(print))
"""


def test_registry_is_fetched_once_when_two_start_it_for_the_first_time_at_once(tmp_path: Path) -> None:
    (tmp_path / "ivy-cache").symlink_to(REPOSITORY / ".tidemark" / "jars" / "ivy-cache")
    target = tmp_path / jars.folder().name
    command = [sys.executable, "-c", FETCH, str(target)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [each.communicate(timeout=600) for each in both]
    assert [each.returncode for each in both] == [0, 0], told
    assert sorted(out.count("fetching, once") for out, _ in told) == [0, 1]
    assert {out.splitlines()[-1] for out, _ in told} == {str(target / "registry" / "application")}
    assert not list(tmp_path.rglob("*.partial"))
    assert len(list((target / "registry" / "application").glob("*-runner.jar"))) == 1
