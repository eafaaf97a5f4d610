"""The image's layers: each step finds the code that it runs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY


def test_jars_can_be_fetched_when_only_the_files_of_their_layer_are_there(tmp_path: Path) -> None:
    dockerfile = (REPOSITORY / "include" / "deploy" / "Dockerfile").read_text()
    before, _ = dockerfile.split("RUN python -m include.spark.jars")
    for files, target in re.findall(r"^COPY --chown=\S+ (.+) (\S+/)$", before, re.MULTILINE):
        (tmp_path / target).mkdir(parents=True, exist_ok=True)
        for file in files.split():
            shutil.copy(REPOSITORY / file, tmp_path / target)
    command = [sys.executable, "-c", "from include.spark import jars; print(len(jars.checksums()))"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50
