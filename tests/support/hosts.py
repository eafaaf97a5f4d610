"""Hosts on one machine, by Linux's namespaces: own processes, host name, temporary folder and home; shared is the lake.

What one host's processes are to another, these are to each other: their pids mean nothing there, and their disks cannot
be read. A host that vanishes takes all of its processes with it at once. The network is the machine's.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.conftest import REPOSITORY, homes, wait_for

_SPACES = ("--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")


@dataclass
class Host:
    """One host; `folder` is its disk, `lake` what it shares."""

    name: str
    folder: Path
    lake: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for path in (self.folder, self.lake):
            path.mkdir(parents=True, exist_ok=True)
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost {self.name}\n")
        # The first process of a host takes over whose parents are gone.
        forever = "while :; do sleep 3600 & wait; done"
        script = f"{self._file_system()}\nhostname {self.name}\ntouch {self.folder}/up\n{forever}"
        with (self.folder / "host.log").open("wb") as log:
            self._first = subprocess.Popen(
                ["unshare", *_SPACES, "bash", "-ec", script], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        is_up = self.folder / "up"
        wait_for(f"{self.name} to be up", lambda: is_up.exists() or self._first.poll() is not None, 60)
        assert self._first.poll() is None, (self.folder / "host.log").read_text()
        (self.first,) = psutil.Process(self._first.pid).children()
        self.space = _space_of(self.first.pid)

    def start(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start a command on this host, in the checkout, which it cannot write to."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                self._inside(command), env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.started.append(process)

    def sees(self, path: Path) -> bool:
        """Whether there is such a file or folder on this host."""
        return subprocess.run(self._inside(["test", "-e", str(path)]), check=False).returncode == 0

    def processes(self) -> list[psutil.Process]:
        """All processes of this host but the first one and its clock."""
        found = [each for each in psutil.process_iter() if _space_of(each.pid) == self.space]
        return [each for each in found if each.pid != self.first.pid and not self._is_clock(each)]

    def drivers(self) -> list[psutil.Process]:
        """The processes of the drivers that were launched on this host, executors of Python included."""
        return [each for each in self.processes() if "TIDEMARK_LAUNCH" in _environment_of(each)]

    def kill_all_but_drivers(self) -> None:
        """Kill the worker with its tasks; the drivers that these have launched live on."""
        spared = {each.pid for each in self.drivers()}
        for each in self.processes():
            if each.pid not in spared:
                with suppress(psutil.NoSuchProcess):
                    each.kill()

    def vanish(self) -> None:
        """End all processes of this host at once, as a machine that loses its power does."""
        if self._first.poll() is None:
            self.first.send_signal(signal.SIGKILL)
        for each in (self._first, *self.started):
            each.wait(60)

    def _is_clock(self, process: psutil.Process) -> bool:
        try:
            return process.ppid() == self.first.pid and process.name() == "sleep"
        except psutil.NoSuchProcess:
            return True

    def _inside(self, command: Sequence[str]) -> list[str]:
        enter = ["nsenter", "--target", str(self.first.pid), "--mount", "--uts", "--pid"]
        return [*enter, "bash", "-c", f'cd {shlex.quote(str(REPOSITORY))}; exec "$@"', "inside", *command]

    def _file_system(self) -> str:
        shared = {"/mnt/own": self.folder, "/mnt/lake": self.lake}
        code = shlex.quote(str(REPOSITORY))
        lines = ["mount -t tmpfs -o mode=755 tmpfs /mnt"]
        for stage, path in shared.items():
            lines.append(f"mkdir {stage}; mount --bind {shlex.quote(str(path))} {stage}")
        lines += [
            f"mount --bind {code} {code}",
            f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(homes()))}",
            "mount -t tmpfs -o mode=1777 tmpfs /tmp",
        ]
        for stage, path in shared.items():
            lines.append(f"mkdir -p {shlex.quote(str(path))}; mount --bind {stage} {shlex.quote(str(path))}")
        return "\n".join(
            [*lines, f"mount --bind {self.folder}/hosts /etc/hosts", f"mount -o remount,bind,ro {code}", f"cd {code}"]
        )


def _space_of(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def _environment_of(process: psutil.Process) -> Mapping[str, str]:
    try:
        return process.environ()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return {}
