"""The commands in cluster deploy mode: a driver's lines and exit codes come back from YARN, and signals reach it."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from include.spark import yarn
from tests.conftest import Home, last_hours, wait_for
from tests.support.on_yarn import (
    ON_YARN,
    PATIENCE,
    check,
    committed,
    drivers_of,
    leases,
    lose_node,
    node_of,
    produce,
    up,
)

pytestmark = [pytest.mark.services, pytest.mark.own_drivers, pytest.mark.slow]

START = last_hours(3)
EVENTS = 1000


@dataclass
class Command:
    """A stream's command that runs, and what it has said."""

    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)

    @property
    def text(self) -> str:
        """All that it said."""
        return "".join(self.said)


@pytest.fixture(scope="module")
def manager(home: Home) -> str:
    """Address of the resource manager."""
    return up(home)


@pytest.fixture
def stream(home: Home, manager: str) -> Iterator[Command]:
    """A stream's command, whose driver has archived what there is."""
    before = committed(home, "isp_hits")
    produce(home, "isp_hits", EVENTS, seed=before + 1, start=START)
    started = Command(home.start("stream", "isp_hits", **ON_YARN))

    def archived() -> bool:
        assert started.process.poll() is None, started.text
        return committed(home, "isp_hits") == before + EVENTS

    wait_for("the stream on YARN", archived, PATIENCE)
    yield started
    if started.process.poll() is None:
        started.process.send_signal(signal.SIGTERM)
        started.process.wait(PATIENCE)


def test_lines_and_exit_codes_come_back_and_a_signal_stops_when_drivers_run_on_the_cluster(
    home: Home, manager: str, stream: Command
) -> None:
    wait_for("the driver's lines", lambda: re.search(r"micro-batch \d+ committed: \d+ records", stream.text), 60)
    second = home.run("stream", "isp_hits", expect=5, **ON_YARN)
    (reason,) = [line for line in second.stderr.splitlines() if "another" in line and line.startswith("tidemark: ")]
    assert "isp_hits" in reason
    verdict = home.interval("isp_hits", START, **ON_YARN)
    assert verdict["records"]["in_ranges"] == EVENTS
    assert verdict["reconciliation"]["unexplained"] == 0
    assert verdict["registered"]
    rows = home.json("sql", "SELECT count(*) AS many FROM lake.isp_hits", "--json", **ON_YARN)
    assert rows == [{"many": verdict["records"]["archived"]}]
    assert stream.process.poll() is None
    stream.process.send_signal(signal.SIGTERM)
    assert stream.process.wait(PATIENCE) == 0, stream.text
    assert "isp_hits" not in leases(home)
    check(home, "isp_hits", EVENTS)


def test_command_says_what_became_of_its_driver_when_its_node_is_lost(
    home: Home, manager: str, stream: Command
) -> None:
    (driver,) = drivers_of(home, "stream.py")
    application = yarn.own_application(driver.environ())
    lose_node(home, node_of(home, driver))
    assert stream.process.wait(PATIENCE) == 1, stream.text
    assert "tidemark: the driver's log cannot be read: its node" in stream.text
    assert re.search(rf"tidemark: {application}: (failed|killed), .*: its node was lost", stream.text), stream.text
    home.run("stream", "isp_hits", "--until-caught-up", **ON_YARN)
    check(home, "isp_hits", committed(home, "isp_hits"))
