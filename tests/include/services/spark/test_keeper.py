"""The keeper of the JVM that stays starts another one when that has served its time or was killed; no application."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from include.settings import settings
from include.spark import driver_folders
from include.spark.kept import as_note, gateway_file, read_note
from spark_jobs.kept import keeper
from spark_jobs.kept.forks import Forks
from tests.conftest import JVM_OPTIONS, SetSettings, wait_for


class Keeper(keeper.Keeper):
    """One whose last JVM is known, and how it has ended."""

    gateway: Any = None
    ended = ""

    def _start(self, forks: Forks) -> Any:
        self.gateway = super()._start(forks)
        return self.gateway

    def keep(self) -> None:
        try:
            self.run()
        except SystemExit as end:
            self.ended = str(end.code)


@pytest.fixture
def kept(
    tmp_path: Path, short_folder: str, monkeypatch: pytest.MonkeyPatch, set_settings: SetSettings
) -> Iterator[Keeper]:
    arguments = f"--driver-memory 256m --driver-java-options '-XX:+UseSerialGC {JVM_OPTIONS}' pyspark-shell"
    folder = {driver_folders.VARIABLE: short_folder}
    set_settings(TIDEMARK_HOME=str(tmp_path), PYSPARK_SUBMIT_ARGS=arguments, **folder)
    # Nothing is forked.
    monkeypatch.setattr(keeper, "LIBRARIES", ())
    gateway_file(settings()).parent.mkdir()
    made = Keeper(tmp_path / "keeper.log")
    thread = Thread(target=made.keep)
    thread.start()
    yield made
    thread.join(60)


def note(**told: int) -> None:
    """Write to the gateway file, as an application does."""
    with gateway_file(settings()).open("r+") as file:
        os.pwrite(file.fileno(), as_note({**read_note(file.fileno()), **told}).encode(), 0)


def ready(kept: Keeper, but: Any = None) -> dict[str, Any]:
    """Return what the gateway file tells of a JVM, once there is another one than that."""

    def told() -> dict[str, Any] | None:
        if kept.gateway in (None, but) or not gateway_file(settings()).exists():
            return None
        with gateway_file(settings()).open() as file:
            return read_note(file.fileno())

    found: dict[str, Any] = wait_for("a JVM", told, 60)
    assert found["port"] == kept.gateway.gateway_parameters.port
    assert (found["served"], found["by"]) == (0, 0)
    assert kept.gateway.jvm.java.lang.Math.abs(-1) == 1
    return found


def test_another_jvm_is_started_when_one_has_served_its_time_or_was_killed(kept: Keeper) -> None:
    ready(kept)
    first = kept.gateway
    note(served=keeper.MOST_SERVED)
    ready(kept, but=first)
    assert first.proc.poll() is not None

    second = kept.gateway
    note(served=1)
    second.proc.kill()
    ready(kept, but=second)
    # One that has served nothing would not live longer the next time.
    kept.gateway.proc.kill()
    wait_for("the keeper to end", lambda: kept.ended, 60)
    assert kept.ended == "the JVM ended by itself"
    assert not gateway_file(settings()).exists()
