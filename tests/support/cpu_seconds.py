"""What a test run costs: CPU seconds of each test, told with `--cpu-seconds` at its end.

Wall time depends on what else the machine does; CPU seconds hardly do. Those of a test are the ones of this worker and
of every process that it has begun, services and JVMs included, during set-up, call and teardown of the test; what a
module sets up for all its tests is its first test's.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

PHASES = ("setup", "call", "teardown")

_MARK = "PYTEST_CPU_SECONDS_OF"
"""Environment variable that identifies the processes of a worker, even after their parent has changed."""

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class _Seen:
    """A process, as it was when it was last looked at, with its CPU time in ticks."""

    parent: int
    own: int
    children: int
    """Of those that it has waited for."""

    @property
    def ticks(self) -> int:
        return self.own + self.children


@dataclass
class CpuClock:
    """Counts the CPU seconds of this process and of all processes that it has started since."""

    _mark: str = field(default_factory=lambda: f"{_MARK}={os.getpid()}")
    _ours: dict[tuple[int, int], bool] = field(default_factory=dict)
    """By pid and start: whether the process is one of ours."""
    _seen: dict[int, _Seen] = field(default_factory=dict)
    _ended: int = 0
    """CPU ticks of ended processes that none of ours has waited for, mostly services, as last seen."""
    _most: int = 0

    def __post_init__(self) -> None:
        os.environ[_MARK] = str(os.getpid())

    def seconds(self) -> float:
        """The CPU seconds so far; never less than before."""
        now = self._look()
        ended: dict[int, int] = defaultdict(int)
        for pid in self._seen.keys() - now.keys():
            ended[self._who_is_left_of(pid, now)] += self._seen[pid].ticks
        for parent, ticks in ended.items():
            # Processes that it has waited for now count as its own; the rest is lost.
            waited = now[parent].children - self._seen[parent].children if parent in now else 0
            self._ended += max(0, ticks - waited)
        self._seen = now
        # A process that was waited for while all were read, one after the other, counted twice in this look. In whole
        # ticks, because a sum of floats depends on its order, and could be a trifle less than the last one.
        self._most = max(self._most, self._ended + sum(each.ticks for each in now.values()))
        return self._most / _TICKS

    def _who_is_left_of(self, pid: int, now: dict[int, _Seen]) -> int:
        """Return the nearest ancestor of an ended process that has not ended, or is not ours."""
        parent = self._seen[pid].parent
        return self._who_is_left_of(parent, now) if parent in self._seen.keys() - now.keys() else parent

    def _look(self) -> dict[int, _Seen]:
        every = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                # It may end meanwhile.
                with suppress(OSError):
                    # The part after the name, which may contain anything.
                    fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
                    user, system, user_of_children, system_of_children = map(int, fields[11:15])
                    own, children = user + system, user_of_children + system_of_children
                    every[int(folder.name)] = (int(fields[19]), _Seen(int(fields[1]), own, children))
        return {pid: seen for pid, (_, seen) in every.items() if self._is_ours(pid, every)}

    def _is_ours(self, pid: int, every: dict[int, tuple[int, _Seen]]) -> bool:
        if pid == os.getpid():
            return True
        if pid not in every:
            return False
        start, seen = every[pid]
        if (pid, start) not in self._ours:
            # PostgreSQL's processes write their titles over their environment.
            self._ours[pid, start] = self._is_marked(pid) or self._is_ours(seen.parent, every)
        return self._ours[pid, start]

    def _is_marked(self, pid: int) -> bool:
        try:
            return self._mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False


class CpuSeconds:
    """Plug-in of pytest, in the workers and in the process that reports."""

    def __init__(self, longest: int, file: Path | None) -> None:
        self._longest = longest
        self._file = file
        self._clock: CpuClock | None = None
        self._counted = 0.0
        self._phase = 0.0
        self._tests: dict[str, dict[str, float]] = defaultdict(dict)

    def _timed(self) -> Iterator[None]:
        # A process that only reports runs no test, so its workers' seconds are counted once.
        if self._clock is None:
            self._clock = CpuClock()
            self._counted = self._clock.seconds()
        try:
            return (yield)
        finally:
            # Each look takes a millisecond or more, so what happens between two phases counts as the second's.
            begun, self._counted = self._counted, self._clock.seconds()
            self._phase = self._counted - begun

    pytest_runtest_setup = pytest.hookimpl(wrapper=True, tryfirst=True)(_timed)
    pytest_runtest_call = pytest.hookimpl(wrapper=True, tryfirst=True)(_timed)
    pytest_runtest_teardown = pytest.hookimpl(wrapper=True, tryfirst=True)(_timed)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[Any]:
        report = yield
        report.cpu_seconds = round(self._phase, 2)
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._tests[report.nodeid][report.when] = report.cpu_seconds

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self._tests:
            return
        if self._file:
            self._file.write_text(json.dumps(self._tests, indent=1) + "\n")
        phases = {phase: sum(each.get(phase, 0) for each in self._tests.values()) for phase in PHASES}
        terminalreporter.section("CPU seconds")
        told = ", ".join(f"{phase} {seconds:.0f}" for phase, seconds in phases.items())
        terminalreporter.write_line(f"{sum(phases.values()):.0f} in {len(self._tests)} tests: {told}")
        modules: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(PHASES, 0.0))
        for test, spent in self._tests.items():
            for phase, seconds in spent.items():
                modules[test.partition("::")[0]][phase] += seconds
        for what, costs in (("modules", modules), ("tests", self._tests)):
            terminalreporter.write_line(f"{what} that cost most: all, setup, call, teardown")
            most = sorted(costs.items(), key=lambda cost: -sum(cost[1].values()))
            for name, spent in most[: self._longest]:
                parts = " ".join(f"{spent.get(phase, 0):7.2f}" for phase in PHASES)
                terminalreporter.write_line(f"{sum(spent.values()):7.2f} {parts}  {name}")
