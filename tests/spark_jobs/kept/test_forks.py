"""The process that forks drivers: what it makes is as `python` would have made it, and ends with whoever asked."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from socket import AF_UNIX, SOCK_SEQPACKET
from socket import socket as connection

import psutil
import pytest

from spark_jobs.kept import forks, keeper
from tests.conftest import REPOSITORY, wait_for


@pytest.fixture
def made(tmp_path: Path) -> Iterator[forks.Forks]:
    """A process without libraries, in a folder whose path is longer than a socket's may be."""
    socket(tmp_path).parent.mkdir(mode=0o700)
    with (tmp_path / "log").open("ab") as log:
        process = forks.Forks(socket(tmp_path), ("json.tool",), log)
        process.await_ready()
        yield process
        process.end()


def socket(folder: Path) -> Path:
    return folder / ("long" * 30) / "forks"


def run(
    folder: Path, program: str, *arguments: str, files: tuple[int, ...] = (), **environment: str
) -> tuple[int, str]:
    """Exit code and output of a Python program."""
    file = folder / "program.py"
    file.write_text(program)
    with (folder / "out").open("w+") as out:
        descriptors = (out.fileno(), out.fileno(), *files)
        code = forks.ask(socket(folder), [str(file), *arguments], environment, folder, descriptors, timeout=60)
        out.seek(0)
        return code, out.read()


@pytest.mark.usefixtures("made")
def test_process_is_as_python_would_have_made_it(tmp_path: Path) -> None:
    program = """
import os, sys, tempfile, time
print(sys.argv[1:], sorted(os.environ), os.getcwd(), time.tzname[0], tempfile.gettempdir(), sys.stdin.read(), end="|")
print(__name__, sys.path[:2], oct(os.umask(0)), os.getsid(0) == os.getpid(), file=sys.stderr)
sys.exit(7)
"""
    mask = os.umask(0o027)
    try:
        told = run(tmp_path, program, "a b", "ü", TZ="Asia/Tokyo", TMPDIR=str(tmp_path), PYTHONPATH="/one:/two")
    finally:
        os.umask(mask)
    assert told == (
        7,
        f"['a b', 'ü'] ['PYTHONPATH', 'TMPDIR', 'TZ'] {tmp_path} JST {tmp_path} |"
        f"__main__ ['{tmp_path}', '/one'] 0o27 True\n",
    )


@pytest.mark.usefixtures("made")
def test_process_has_the_code_that_lies_there_now(tmp_path: Path) -> None:
    for version in ("1", "22"):
        (tmp_path / "deployed.py").write_text(f"VERSION = {version}")
        assert run(tmp_path, "import deployed; print(deployed.VERSION)") == (0, f"{version}\n")


@pytest.mark.usefixtures("made")
def test_libraries_are_imported_before(tmp_path: Path) -> None:
    assert run(tmp_path, "import sys; print('json.tool' in sys.modules)") == (0, "True\n")


@pytest.mark.usefixtures("made")
def test_code_is_negative_when_a_signal_ends_it(tmp_path: Path) -> None:
    assert run(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGTERM)") == (-signal.SIGTERM, "")


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(
    "program",
    [
        pytest.param("import sys; sys.exit()", id="nothing"),
        pytest.param("import sys; sys.exit(300)", id="a large number"),
        pytest.param("import sys; sys.exit('a text')", id="a text"),
        pytest.param("1 / 0", id="an error"),
        pytest.param("import signal; signal.raise_signal(signal.SIGINT)", id="an interrupt"),
        pytest.param("import atexit; atexit.register(print, 'last'); print('first')", id="a function for its end"),
        pytest.param(
            "import threading, time; threading.Thread(target=lambda: time.sleep(0.2) or print('late')).start()",
            id="a thread",
        ),
        pytest.param("import os; print('lost'); os.dup2(os.open('/dev/full', os.O_WRONLY), 1)", id="a full disk"),
        pytest.param("import sys; print('said'); sys.stdout.close(); sys.exit(3)", id="a closed output"),
    ],
)
def test_it_ends_as_python_would_have_ended(tmp_path: Path, program: str) -> None:
    code, told = run(tmp_path, program)
    file = tmp_path / "program.py"
    known = subprocess.run(
        [sys.executable, str(file)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path
    )
    assert (code, told.splitlines()[-1:]) == (known.returncode, known.stdout.splitlines()[-1:])


@pytest.mark.usefixtures("made")
def test_nothing_is_taken_apart_when_it_ends(tmp_path: Path) -> None:
    program = "class Large:\n    def __del__(self): print('taken apart')\nkept = Large()\nprint('used')"
    assert run(tmp_path, program) == (0, "used\n")


@pytest.mark.usefixtures("made")
def test_caller_can_signal_it(tmp_path: Path) -> None:
    file, began = tmp_path / "program.py", tmp_path / "began"
    file.write_text(f"import signal; open({str(began)!r}, 'w'); signal.pause()")

    def end(process: int) -> None:
        wait_for("it to begin", began.exists, 30)
        signal.pidfd_send_signal(process, signal.SIGINT)
        os.close(process)

    with (tmp_path / "out").open("w") as out:
        files = (out.fileno(), out.fileno())
        assert forks.ask(socket(tmp_path), [str(file)], {}, tmp_path, files, 60, begun=end) == -signal.SIGINT


@pytest.mark.usefixtures("made")
def test_lock_that_it_was_given_is_held_until_it_ends(tmp_path: Path) -> None:
    program = """
import os
inherited = sorted(int(each) for each in os.listdir("/proc/self/fd"))[:-1]
print(inherited, os.path.basename(os.readlink("/proc/self/fd/3")))
"""
    with (tmp_path / "lock").open("w") as lock, (tmp_path / "lock").open("w") as other:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (tmp_path / "waits.py").write_text("import signal; signal.pause()")
        assert run(tmp_path, program, files=(lock.fileno(),)) == (0, "[0, 1, 2, 3] lock\n")

        def release_and_try(process: int) -> None:
            # This process's descriptor is closed: the other one's is left.
            lock.close()
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            signal.pidfd_send_signal(process, signal.SIGKILL)
            os.close(process)

        descriptors = (2, 2, lock.fileno())
        waits = [str(tmp_path / "waits.py")]
        assert forks.ask(socket(tmp_path), waits, {}, tmp_path, descriptors, 60, release_and_try) == -signal.SIGKILL
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_it_ends_when_its_caller_is_killed(made: forks.Forks, tmp_path: Path) -> None:
    caller, pid = started(tmp_path)
    caller.kill()
    caller.wait()
    wait_for("it to end", lambda: not psutil.pid_exists(pid), 30)
    assert made.is_running()
    assert run(tmp_path, "print(1)") == (0, "1\n")


def test_it_goes_on_when_a_process_and_its_caller_end_at_the_same_time(made: forks.Forks, tmp_path: Path) -> None:
    caller, pid = started(tmp_path)
    # Until this one says what it wants, nothing else is looked at.
    with connection(AF_UNIX, SOCK_SEQPACKET) as other:
        folder = os.open(socket(tmp_path).parent, os.O_PATH)
        other.connect(f"/proc/self/fd/{folder}/{socket(tmp_path).name}")
        os.kill(pid, signal.SIGKILL)
        wait_for("it to end", lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, 30)
        caller.kill()
        caller.wait()
    os.close(folder)
    assert run(tmp_path, "print(1)") == (0, "1\n")
    assert made.is_running()


def test_caller_is_told_that_it_was_killed_when_what_forks_ends(made: forks.Forks, tmp_path: Path) -> None:
    caller, pid = started(tmp_path)
    made.end()
    assert caller.wait(30) == -signal.SIGKILL
    wait_for("it to end", lambda: not psutil.pid_exists(pid), 30)
    with pytest.raises(OSError, match="refused"):
        run(tmp_path, "print(1)")


def started(folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    """A process that asks for another one, and the pid of that, which waits."""
    file, note = folder / "waits.py", folder / "pid"
    file.write_text(f"import os, signal; open({str(note)!r}, 'w').write(f'{{os.getpid()}} '); signal.pause()")
    caller = subprocess.Popen([sys.executable, "-S", "-I", forks.__file__, "ask", str(socket(folder)), str(file)])
    wait_for("it to begin", lambda: note.exists() and note.read_text().endswith(" "), 30)
    return caller, int(note.read_text())


@pytest.mark.usefixtures("made")
def test_nothing_is_begun_when_the_environment_is_too_large(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="environment have"):
        run(tmp_path, "open('begun', 'w')", LARGE="x" * 200_000)
    assert not (tmp_path / "begun").exists()


def test_reason_is_told_when_a_library_is_missing(tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab") as log:
        process = forks.Forks(tmp_path / "forks", ("no_such_library",), log)
        with pytest.raises(RuntimeError, match=f"ended with 1: {tmp_path / 'log'} says why"):
            process.await_ready()
    assert "No module named 'no_such_library'" in (tmp_path / "log").read_text()


def test_driver_of_an_interval_imports_no_other_library(tmp_path: Path) -> None:
    program = """
import sys, sysconfig
site, before = sysconfig.get_path("purelib"), set(sys.modules)
import spark_jobs.build_interval, spark_jobs.run_sql
new = {name: getattr(sys.modules[name], "__file__", "") or "" for name in set(sys.modules) - before}
print(sorted({name.partition(".")[0] for name, file in new.items() if file.startswith(site)}))
"""
    socket(tmp_path).parent.mkdir(mode=0o700)
    with (tmp_path / "log").open("ab") as log:
        process = forks.Forks(socket(tmp_path), keeper.LIBRARIES, log)
        process.await_ready()
        assert run(tmp_path, program, PYTHONPATH=str(REPOSITORY)) == (0, "[]\n")
        process.end()
