"""The CPU seconds of a test are those of all that it begins, whoever its parent is in the end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import wait_for
from tests.support.cpu_seconds import CpuClock

BUSY = "import time\nwhile time.process_time() < 0.3: pass\n"
"""A program that takes that long, and a bit for its start."""


@pytest.fixture
def clock() -> Iterator[CpuClock]:
    with pytest.MonkeyPatch.context() as patch:
        # The clock writes it for what begins from now on.
        patch.setenv("PYTEST_CPU_SECONDS_OF", "nobody")
        yield CpuClock()


def test_seconds_of_a_process_count_when_it_was_waited_for(clock: CpuClock) -> None:
    before = clock.seconds()
    subprocess.run([sys.executable, "-S", "-c", BUSY], check=True)
    assert 0.25 <= clock.seconds() - before < 2


def test_seconds_of_a_service_count_when_its_parent_has_ended(clock: CpuClock, tmp_path: Path) -> None:
    pid_file, program = tmp_path / "pid", tmp_path / "busy.py"
    program.write_text(f"{BUSY}while True: time.sleep(60)\n")
    before = clock.seconds()
    begin = (
        "import pathlib, subprocess, sys\n"
        "started = subprocess.Popen([sys.executable, '-S', sys.argv[1]], start_new_session=True)\n"
        "pathlib.Path(sys.argv[2]).write_text(str(started.pid))\n"
    )
    subprocess.run([sys.executable, "-c", begin, str(program), str(pid_file)], check=True)
    service = psutil.Process(int(pid_file.read_text()))
    wait_for("the service to have worked", lambda: sum(service.cpu_times()[:2]) >= 0.25)
    running = clock.seconds()
    assert running - before >= 0.25
    service.kill()
    wait_for("nothing to be left of it", lambda: not psutil.pid_exists(service.pid), 30)
    # What it took does not vanish with it.
    assert clock.seconds() >= running
