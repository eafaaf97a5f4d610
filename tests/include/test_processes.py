"""Identity of processes: it outlives clock steps, and is no other process's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest

from include import processes
from include.processes import ProcessIdentity
from tests.conftest import REPOSITORY

SAME_PID_TWICE = """
import subprocess, sys, time
from pathlib import Path
from include.processes import ProcessIdentity

def start():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    return child, ProcessIdentity.of(child.pid)

first, identity = start()
assert identity.is_running()
first.kill()
first.wait()
# Start ticks are hundredths of a second: the other process begins in a later one, as it does wherever pids go round.
while int(time.clock_gettime(time.CLOCK_BOOTTIME) * 100) <= identity.start_ticks + 1:
    pass
Path("/proc/sys/kernel/ns_last_pid").write_text(str(first.pid - 1))
second, other = start()
assert other.pid == identity.pid, "the pid was not used again"
assert other.is_running()
assert not identity.is_running()
second.kill()
second.wait()
print(identity)
"""

HIDDEN = """
import os, subprocess, sys
from include.processes import ProcessIdentity, ProcessOnHost
subprocess.run(["mount", "-t", "proc", "-o", f"hidepid={sys.argv[1]}", "proc", "/proc"], check=True)

child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
identity = ProcessIdentity.of(child.pid)
theirs = ProcessOnHost.parse(f"{os.uname().nodename}:{identity}")
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
print(theirs.is_dead)
child.communicate(b"\\n")
print(theirs.is_dead)
"""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def test_living_process_stays_itself_when_the_clock_steps(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = ProcessIdentity.of(child.pid)
    before = psutil.Process(child.pid).create_time()
    boot_time = psutil._pslinux.boot_time()
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: boot_time + 3600)
    assert psutil.Process(child.pid).create_time() == pytest.approx(before + 3600)
    assert identity.is_running()
    assert ProcessIdentity.of(child.pid) == identity


def test_process_is_not_running_when_it_ended_or_is_a_zombie(child: subprocess.Popen[bytes]) -> None:
    identity = ProcessIdentity.of(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
    assert not identity.is_running()
    child.wait()
    assert not identity.is_running()
    with pytest.raises(ProcessLookupError):
        ProcessIdentity.of(child.pid)


def test_process_is_another_when_it_has_a_reused_pid(child: subprocess.Popen[bytes]) -> None:
    identity = ProcessIdentity.of(child.pid)
    assert not replace(identity, start_ticks=identity.start_ticks - 1).is_running()
    assert not ProcessIdentity(child.pid, start_time=psutil.Process(child.pid).create_time() - 60).is_running()


def said(*command: str) -> str:
    """What a program that imports ours prints."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    result = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_process_is_another_when_its_pid_is_really_used_again_in_a_namespace() -> None:
    in_namespace = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*in_namespace, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no new pid namespace is allowed here")
    theirs = ProcessIdentity.parse(said(*in_namespace, sys.executable, "-c", SAME_PID_TWICE).strip())
    assert not theirs.is_visible()


@pytest.mark.parametrize("hidepid", [1, 2])
def test_process_of_another_user_is_not_dead_when_it_is_hidden(hidepid: int) -> None:
    if os.geteuid() or subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no file system may be mounted here")
    assert said("unshare", "--mount", sys.executable, "-c", HIDDEN, str(hidepid)).splitlines() == ["False", "True"]


def test_process_cannot_be_seen_when_it_is_of_another_boot_or_namespace() -> None:
    here = ProcessIdentity.of(os.getpid())
    assert here.is_visible()
    for elsewhere in (replace(here, boot_id="another boot"), replace(here, pid_namespace="1")):
        assert not elsewhere.is_visible()
        assert not elsewhere.is_running()


def test_identity_is_the_same_when_it_was_written_and_read() -> None:
    here = ProcessIdentity.of(os.getpid())
    assert ProcessIdentity.parse(str(here)) == here
    assert str(here).count(":") == 1


def test_identity_by_the_clock_is_understood_when_an_older_version_wrote_it() -> None:
    own = psutil.Process()
    assert ProcessIdentity.parse(f"{own.pid}:{int(own.create_time())}").is_running()
    assert not ProcessIdentity.parse(f"{own.pid}:{int(own.create_time()) - 3600}").is_running()
    with pytest.raises(ValueError, match="invalid literal"):
        ProcessIdentity.parse("nobody")


def test_identity_goes_by_the_clock_when_there_is_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PROC", REPOSITORY / "no-such-folder")
    here = ProcessIdentity.of(os.getpid())
    assert here.start_time == psutil.Process().create_time()
    assert ProcessIdentity.parse(str(here)).is_running()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_user_is_told_by_its_id_when_that_has_no_name() -> None:
    """As containers are given one."""
    without_name = {
        name: each for name, each in os.environ.items() if name not in ("LOGNAME", "USER", "LNAME", "USERNAME")
    }
    program = "import os; from include import processes as p; os.setuid(2147471303); print(p.user_at_host())"
    told = subprocess.run(
        [sys.executable, "-c", program], env=without_name, cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert told.stdout == f"2147471303@{socket.gethostname()}\n", told.stderr
