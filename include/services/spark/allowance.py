"""How much of the machine this process may use: a container, or a slice of systemd, may have less than its host.

Source: https://docs.kernel.org/admin-guide/cgroup-v2.html.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from math import ceil
from pathlib import Path

import psutil

from include.processes import PROC

CGROUPS = Path("/sys/fs/cgroup")
"""Where the kernel shows control groups; older ones, of version 1, are not read."""


def cores() -> int:
    """Return how many cores this process may use, rounded up, as Java counts them for `local[*]`."""
    known = [len(os.sched_getaffinity(0))]
    for group in _groups():
        quota, _, period = _read(group / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit():
            known.append(ceil(int(quota) / int(period)))
    return max(1, min(known))


def available_memory() -> int:
    """Return how many bytes this process and what it starts may still take, without what only caches files."""
    left = [psutil.virtual_memory().available]
    for group in _groups():
        limit, used = _read(group / "memory.max"), _read(group / "memory.current")
        if limit.isdigit() and used.isdigit():
            left.append(int(limit) - int(used) + _cached(group))
    return max(0, min(left))


def _cached(group: Path) -> int:
    """Return the bytes of files in memory, which the kernel gives up before it ends a process."""
    counts = dict(line.split() for line in _read(group / "memory.stat").splitlines())
    return sum(int(counts.get(name, 0)) for name in ("active_file", "inactive_file"))


def _groups() -> Iterator[Path]:
    """Yield the control group of this process and those around it, as far as they are visible here."""
    for line in _read(PROC / "self" / "cgroup").splitlines():
        if line.startswith("0::/"):
            own = CGROUPS / line.removeprefix("0::/")
            yield from (each for each in (own, *own.parents) if each.is_relative_to(CGROUPS))


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip()
    return ""
