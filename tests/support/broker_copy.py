"""A copy of the embedded broker's disk: putting it back cuts every log to what it was, as a restored volume does."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.conftest import Home


@dataclass(frozen=True)
class BrokerCopy:
    """What the broker's disk held at some time."""

    home: Home
    path: Path

    @classmethod
    def of(cls, home: Home, path: Path) -> BrokerCopy:
        """Take a copy; the broker is stopped meanwhile."""
        home.run("down", "kafka")
        shutil.copytree(home.path / "kafka", path)
        home.run("up", "kafka")
        return cls(home, path)

    def put_back(self) -> None:
        """Let the broker start from the copy."""
        # Not stopped, since that would stop streams first.
        broker = psutil.Process(self.home.process_id("kafka"))
        broker.kill()
        psutil.wait_procs([broker], timeout=30)
        shutil.rmtree(self.home.path / "kafka")
        shutil.copytree(self.path, self.home.path / "kafka")
        self.home.run("up", "kafka")
