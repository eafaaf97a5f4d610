"""What a container may use of its host, with the kernel's files written by the tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from include.doctor import machine
from include.services.spark import allowance
from include.services.spark.allowance import available_memory, cores

GIB = 2**30

Write = Callable[[str, dict[str, str]], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Put this process into a control group, and write files of it or of one around it."""
    monkeypatch.setattr(allowance, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(allowance, "PROC", tmp_path / "proc")
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("4:memory:/older\n0::/work.slice/spark.scope\n")

    def written(group: str, files: dict[str, str]) -> None:
        for name, content in files.items():
            path = tmp_path / "cgroup" / group / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{content}\n")

    return written


def host() -> int:
    return len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("own", "around", "expected"),
    [
        ("max 100000", "max 100000", None),
        ("50000 100000", "max 100000", 1),
        ("max 100000", "100000 100000", 1),
        ("1000000000 100000", "", None),
        ("1000 100000", "", 1),
    ],
)
def test_cores_are_those_of_the_narrowest_control_group_when_it_has_fewer_than_the_host(
    write: Write, own: str, around: str, expected: int | None
) -> None:
    write("work.slice/spark.scope", {"cpu.max": own})
    write("", {"cpu.max": around})
    assert cores() == (expected or host())


def test_half_a_core_more_counts_as_one_when_a_container_has_it(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    write("work.slice/spark.scope", {"cpu.max": "250000 100000"})
    assert cores() == 3


def test_memory_is_that_of_the_narrowest_control_group_when_it_has_less_than_the_host(write: Write) -> None:
    # The rest of it only caches files.
    stat = f"anon {GIB // 8}\nactive_file {GIB // 8}\ninactive_file {GIB // 4}"
    files = {"memory.max": str(GIB), "memory.current": str(3 * GIB // 4), "memory.stat": stat}
    write("work.slice", files)
    write("work.slice/spark.scope", {"memory.max": "max", "memory.current": str(GIB // 8)})
    assert available_memory() == 5 * GIB // 8
    found = next(each for each in machine._machine() if "of memory available" in each.what)
    assert (found.ok, found.what) == (False, "0.6 GiB of memory available")


def test_memory_and_cores_are_the_host_s_when_no_control_group_is_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allowance, "PROC", tmp_path)
    assert cores() == host()
    assert 0 < available_memory() <= psutil.virtual_memory().total
