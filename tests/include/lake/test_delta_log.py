"""What a Delta table's log repeats of rows leaves it; files, transactions and what Tidemark said of them stay."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from include import lake
from include.erasure.names import Names
from include.lake.delta_log import forget_values, is_own

MARK = "Zq7 Person"
STATS = json.dumps({"numRecords": 2, "minValues": {"user": f"{MARK} 0001"}, "maxValues": {"user": f"{MARK} é"}})
SAID = '{"tidemark.interval":"2026-11-20T05"}'


@pytest.fixture
def log(own_lake: Path) -> Path:
    made = own_lake / "delta" / "somebody" / "_delta_log"
    made.mkdir(parents=True)
    return made


def write(log: Path, version: int, *actions: dict[str, Any]) -> Path:
    """A commit, older than it is, with Hadoop's checksum beside it."""
    path = log / f"{version:020}.json"
    path.write_text("".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in actions), encoding="utf-8")
    (log / f".{path.name}.crc").write_bytes(b"crc")
    os.utime(path, (1000 + version, 1000 + version))
    return path


def read(log: Path, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (log / f"{version:020}.json").read_text(encoding="utf-8").split("\n") if line]


def commit(kind: str, said: str, **more: Any) -> list[dict[str, Any]]:
    info = {"operation": "WRITE", "operationParameters": {"predicate": f"user = '{MARK}'"}, "userMetadata": said}
    return [{"commitInfo": info}, {kind: {"path": "a.parquet", "stats": STATS, **more}}]


def test_values_leave_commits_up_to_the_version_when_the_log_is_cleaned(log: Path) -> None:
    write(log, 0, *commit("add", "tidemark"), {"txn": {"appId": "q1", "version": 7}})
    write(log, 1, *commit("remove", SAID, size=3))
    write(log, 2, *commit("add", "by hand"))
    later = write(log, 3, *commit("add", "tidemark"))
    older = [log / f"{1:020}.checkpoint.parquet", log / f"{1:020}.crc", log / f"{0:020}.{1:020}.compacted.json"]
    newer = [log / f"{2:020}.checkpoint.parquet", log / f"{2:020}.crc", log / "_last_checkpoint"]
    for each in (*older, *newer):
        each.write_text(MARK)
    for _ in range(2):
        forget_values(lake.uri("delta", "somebody"), 2)
        assert not any(each.exists() for each in older)
        assert all(each.exists() for each in (*newer, later, log / f".{later.name}.crc"))
        assert read(log, 0)[1:] == [{"add": {"path": "a.parquet"}}, {"txn": {"appId": "q1", "version": 7}}]
        assert read(log, 1)[0]["commitInfo"]["userMetadata"] == SAID
        assert read(log, 1)[1] == {"remove": {"path": "a.parquet", "size": 3}}
        assert read(log, 2)[0] == {"commitInfo": {"operation": "WRITE", "operationParameters": {}}}
        assert MARK in later.read_text(encoding="utf-8")
        for version in (0, 1, 2):
            path = log / f"{version:020}.json"
            assert not (log / f".{path.name}.crc").exists()
            assert path.stat().st_mtime == 1000 + version


def test_names_leave_own_commits_when_an_erasure_takes_them_and_commits_of_others_lose_all(log: Path) -> None:
    said = '{"tidemark.content-hashes":"{\\"date=2026-11-20/zip=10001/interval=2026-11-20T05\\":\\"v2:1\\"}"}'
    write(log, 0, *commit("add", said))
    write(log, 1, *commit("add", "zip=10001 by hand"))
    for _ in range(2):
        forget_values(lake.uri("delta", "somebody"), 1, Names({"zip=10001"}).text)
        kept = read(log, 0)[0]["commitInfo"]["userMetadata"]
        assert kept == said.replace("10001", "(erased)")
        assert json.loads(json.loads(kept)["tidemark.content-hashes"])
        assert "10001" not in "".join(each.read_text() for each in log.glob("*.json"))


def test_temporary_files_of_killed_drivers_go_when_the_log_is_cleaned(log: Path) -> None:
    committed = write(log, 1, *commit("add", "tidemark"))
    names = [f".{committed.name}.8f9c-11.tmp", f"..{committed.name}.8f9c-11.tmp.crc", f".{0:020}.crc.8f9c-12.tmp"]
    left = [log / name for name in names]
    later = log / f".{2:020}.json.8f9c-13.tmp"
    # The disk has a commit by both names when its driver is killed.
    left[0].hardlink_to(committed)
    for each in (*left[1:], later):
        each.write_text(MARK)
    for _ in range(2):
        forget_values(lake.uri("delta", "somebody"), 1)
        assert sorted(log.iterdir()) == [later, committed]


@pytest.mark.parametrize("character", ["\x85", "\u2028", "\u2029"])
def test_values_leave_a_commit_when_they_hold_a_character_that_python_takes_for_the_end_of_a_line(
    log: Path, character: str
) -> None:
    bounds = json.dumps({"maxValues": {"user": f"{MARK}{character}"}}, ensure_ascii=False)
    written = write(log, 0, {"add": {"path": "a.parquet", "stats": bounds, "tags": {"by": f"a{character}b"}}})
    assert character in written.read_text(encoding="utf-8")
    forget_values(lake.uri("delta", "somebody"), 0)
    assert read(log, 0) == [{"add": {"path": "a.parquet", "tags": {"by": f"a{character}b"}}}]


def test_commit_is_left_unchanged_when_it_has_no_values(log: Path) -> None:
    path = log / f"{0:020}.json"
    path.write_text('{"txn":{"appId":"q1","version":7}}\n')
    before = path.stat()
    forget_values(lake.uri("delta", "somebody"), 0)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_own_commit_is_recognised_when_others_commit_too() -> None:
    assert is_own("tidemark")
    assert is_own(SAID)
    assert not is_own("tidemark?")
    assert not is_own(None)
