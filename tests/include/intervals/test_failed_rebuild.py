"""How a rebuild ends whose driver failed: with its exit code, and no line after the driver's own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from include.cli import __main__ as command
from include.errors import TidemarkError
from include.intervals import rebuild
from include.lake.revision_files import DamagedFile
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.intervals.revisions import RegisteredRevision
from include.ledger.intervals.states import Source
from tests.support.topic_log import hour

PARTITION = "date=2026-11-20/interval=2026-11-20T05"
REVISION = RegisteredRevision("isp_hits", PARTITION, "r1", "file:///lake/r1", 1, "v2:1", {}, 1)
DAMAGED = DamagedFile("changed content", "part-0.parquet")


@pytest.fixture
def without_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that notes nothing, and a build that noted no revisions."""
    monkeypatch.setattr(rebuild, "code_version", lambda _: "1")
    monkeypatch.setattr(rebuild, "submit", lambda *_: None)
    monkeypatch.setattr(rebuild.attempts, "begin_attempt", lambda *_, **__: 7)
    monkeypatch.setattr(rebuild.attempts, "load_attempt", lambda _: SimpleNamespace(build=None))
    monkeypatch.setattr(rebuild.attempts, "close_attempt", lambda *_: None)
    monkeypatch.setattr(rebuild.revisions, "set_state", lambda *_: None)
    monkeypatch.setattr(rebuild.revisions, "registered", lambda *_: [REVISION])


def build_again(damaged: list[DamagedFile]) -> None:
    pinned = PinnedInterval(1, "isp_hits", hour(0), (), {})
    rebuild._build_again(pinned, Source.KAFKA, lambda _: 6, REVISION, damaged)


def test_nothing_is_said_after_the_driver_s_line_when_a_rebuild_failed(
    without_ledger: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "app", lambda *_, **__: build_again([]))
    assert command.main() == 6
    assert capsys.readouterr() == ("", "")


def test_damage_is_named_with_what_to_do_when_a_rebuild_failed(without_ledger: None) -> None:
    with pytest.raises(TidemarkError, match=r"changed content: part-0\.parquet in file:///lake/r1") as raised:
        build_again([DAMAGED])
    assert not raised.value.is_reported
    assert raised.value.exit_code == 6
    assert "run the interval again" in raised.value.remedy
