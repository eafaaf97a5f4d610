"""A driver that starts its JVM itself, as `tail` and `shell` do to keep the terminal."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from include.spark.submission import SparkSubmission, submission

pytestmark = pytest.mark.usefixtures("empty_home")

CANARY = "c4nary-of-the-catalog-7a1f"
JOB = f"""
from contextlib import suppress

import psutil
from spark_jobs.spark.session import build_session

spark = build_session("own", metastore={{"javax.jdo.option.ConnectionPassword": {CANARY!r}}})
print(spark.conf.get("spark.hadoop.javax.jdo.option.ConnectionPassword"))
for each in psutil.Process().children(recursive=True):
    # A program that looked for Java may end just now.
    with suppress(psutil.Error):
        print(each.name(), *each.cmdline())
spark._jvm.java.lang.System.err.println("WARNING: of another kind")
spark.stop()
"""


def test_no_user_reads_a_password_and_own_lines_come_first_when_a_driver_keeps_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tmp_path / "job.py"
    job.write_text(JOB)
    monkeypatch.setattr(SparkSubmission, "application", str(job))
    command, environment = submission("open_shell", name="own", short=True).attached()
    for name in [each for each in os.environ if each.startswith("PYSPARK_GATEWAY")]:
        monkeypatch.delenv(name)
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    password, *processes = done.stdout.splitlines() or [""]
    assert password == CANARY, done.stderr
    assert {each.split()[0] for each in processes} >= {"java"}
    assert not [each for each in processes if CANARY in each]
    # Java's own first line is left out, and no other one.
    assert done.stderr.splitlines() == ["WARNING: of another kind"]
