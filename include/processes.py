"""Identities of processes that stay unique: a pid is reused, and a wall-clock start time moves when the clock is set.

The kernel counts a process's start in ticks since boot. Together with the boot's id and the namespace in which the
pid is counted, it names one process for ever. Without `/proc`, the wall-clock start time has to do.
"""

from __future__ import annotations

import getpass
import os
import pwd
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

from include.errors import UsageError
from include.waiting import wait_for

PROC = Path("/proc")

_CLOCK_TOLERANCE = 2.0
"""Seconds by which two readings of one wall-clock start time may differ."""

_STATE, _START_TICKS = 0, 19
"""Indexes of fields 3 and 22 in /proc/PID/stat, counted after the name: field 2, which may contain spaces."""


class _Kernel(NamedTuple):
    boot_id: str
    pid_namespace: str


@dataclass(frozen=True)
class ProcessIdentity:
    """One process, as other processes can recognise it later, even after its end.

    As text: `pid:boot id/start ticks/pid namespace`, or `pid:start time` in seconds since 1970 (where there is no
    `/proc`, and in what older versions wrote). The text has one colon and at most 90 characters.
    """

    pid: int
    boot_id: str = ""
    start_ticks: int = 0
    """Clock ticks from boot to the start of the process."""
    pid_namespace: str = ""
    """Inode of the namespace in which `pid` is counted."""
    start_time: float = 0.0
    """Seconds since 1970; only where the kernel's facts are not known."""

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """Return the identity of an existing process or zombie. Raise ProcessLookupError when there is none."""
        kernel = _this_kernel()
        if kernel is None:
            try:
                return cls(pid, start_time=psutil.Process(pid).create_time())
            except psutil.NoSuchProcess:
                raise ProcessLookupError(f"no process {pid}") from None
        return cls(pid, kernel.boot_id, int(_stat(pid)[_START_TICKS]), kernel.pid_namespace)

    @classmethod
    def parse(cls, text: str) -> ProcessIdentity:
        """Return the identity that `str` wrote. Raise ValueError for any other text."""
        pid, _, start = text.partition(":")
        if "/" not in start:
            return cls(int(pid), start_time=float(start))
        boot_id, ticks, pid_namespace = start.split("/")
        return cls(int(pid), boot_id, int(ticks), pid_namespace)

    def __str__(self) -> str:
        if not self.boot_id:
            return f"{self.pid}:{self.start_time}"
        return f"{self.pid}:{self.boot_id}/{self.start_ticks}/{self.pid_namespace}"

    def is_visible(self) -> bool:
        """Return whether this process could see that one: same boot of one machine, same pid namespace.

        True for a wall-clock identity, which cannot tell: compare host names first.
        """
        return not self.boot_id or (self.boot_id, self.pid_namespace) == _this_kernel()

    def is_running(self) -> bool:
        """Return whether this very process runs here: not ended, not a zombie, its pid not reused.

        False for a process that is hidden from this user.
        """
        try:
            if not self.boot_id:
                process = psutil.Process(self.pid)
                same = abs(process.create_time() - self.start_time) < _CLOCK_TOLERANCE
                return same and process.status() != psutil.STATUS_ZOMBIE
            stat = _stat(self.pid)
            return self.is_visible() and int(stat[_START_TICKS]) == self.start_ticks and stat[_STATE] not in "ZX"
        except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            return False

    def is_hidden(self) -> bool:
        """Return whether a process has its pid of which this user can see no more, so that it may be this one."""
        try:
            _stat(self.pid)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return False


@dataclass(frozen=True)
class ProcessOnHost:
    """A process with the name of its host. As text: `host:pid:…`, with the text of its identity."""

    host: str
    process: ProcessIdentity

    @classmethod
    def this(cls) -> ProcessOnHost:
        """Return this process."""
        return cls(socket.gethostname(), ProcessIdentity.of(os.getpid()))

    @classmethod
    def parse(cls, text: str) -> ProcessOnHost:
        """Return the process that `str` wrote. Raise ValueError for any other text."""
        host, pid, start = text.rsplit(":", 2)
        return cls(host, ProcessIdentity.parse(f"{pid}:{start}"))

    def __str__(self) -> str:
        return f"{self.host}:{self.process}"

    @property
    def short(self) -> str:
        """Its host and pid."""
        return f"{self.host}:{self.process.pid}"

    @property
    def place(self) -> str:
        """Where its pid means the same process: host name, boot and pid namespace.

        Containers may share a host's name, and a pid means another process in each.
        """
        return f"{self.host}/{self.process.boot_id}/{self.process.pid_namespace}"

    @property
    def is_here(self) -> bool:
        """Whether this process could see it: by its host's name alone if no more is known of it."""
        return self.host == socket.gethostname() and self.process.is_visible()

    @property
    def is_dead(self) -> bool:
        """Whether it has certainly ended; False for one that this process could not see if it ran."""
        return self.is_here and not self.process.is_running() and not self.process.is_hidden()


def _this_kernel() -> _Kernel | None:
    """Return what identifies this boot and this pid namespace; None without a usable `/proc`."""
    try:
        boot_id = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        # The observer's namespace, not the observed process's own: it is where the pid is counted.
        namespace = (PROC / "self/ns/pid").readlink().name
    except OSError:
        return None
    return _Kernel(boot_id, namespace.removeprefix("pid:[").removesuffix("]"))


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the process's name.

    Raise ProcessLookupError for no process, PermissionError for one that is hidden: mounted with `hidepid`, `/proc`
    shows a user no process of another one.
    """
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except FileNotFoundError:
        # This is ProcessLookupError where there is none, and PermissionError where it is another user's.
        os.kill(pid, 0)
        raise PermissionError(f"process {pid} is hidden") from None
    return text.rpartition(")")[2].split()


def runs(process: psutil.Process) -> bool:
    """Return whether a process runs; a zombie has ended, even if its parent never asks for it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_ended(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait until processes have ended, whether or not anybody asks for them; return those that still run."""
    every = list(processes)
    return wait_for(lambda: [each for each in every if runs(each)], lambda left: not left, seconds=seconds, every=0.1)


def user_at_host() -> str:
    """Return this process's user and host, as the ledger records who runs it, e.g. `airflow@worker-1`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # An id without a name, as containers may be given.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def check_user_has_name(needed_by: str) -> None:
    """Raise UsageError when this process's user id has no name, without which Hadoop and PostgreSQL do not start."""
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        raise UsageError(
            f"the user id {os.geteuid()} has no entry in /etc/passwd, without which {needed_by} does not start",
            remedy="add one, or start it as a user that has one",
        ) from None
