"""The command line's edge: one clear line and the exit code of the contract."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY


def run(home: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "include.cli", *arguments],
        env={**os.environ, "TIDEMARK_HOME": str(home), **extra},
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["stream", "no_such"], "unknown pipeline 'no_such'"),
        (["interval", "nest_cameras", "--from", "noon", "--to", "2026-01-01T01:00:00Z"], "not a time"),
        (
            ["interval", "nest_cameras", "--from", "2026-01-01T00:30:00Z", "--to", "2026-01-01T01:30:00Z"],
            "not a boundary",
        ),
        (["interval", "nest_cameras", "--from", "2999-01-01T00:00:00Z", "--to", "2999-01-01T01:00:00Z"], "not passed"),
        (["produce", "nest_cameras", "--events", "0"], "--events"),
        (["produce", "nest_cameras"], "--events"),
        (["produce", "nest_cameras", "--events", "1", "--start", "9999-12-31T23:00:00Z"], "after the year 9999"),
        (["top", "wiki_changes", "--since", "99999999999h"], "too long a duration"),
        (["no-such-verb"], "no-such-verb"),
        (["up", "no_such"], "unknown service"),
        (["explain", "no_such", "x"], "unknown table"),
    ],
)
def test_error_is_one_line_with_exit_code_64_when_usage_is_wrong(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    result = run(tmp_path, *arguments)
    assert result.returncode == 64, result.stderr
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""


def test_error_is_one_line_with_exit_code_6_when_a_service_is_missing(tmp_path: Path) -> None:
    result = run(tmp_path, "produce", "nest_cameras", "--events", "1")
    assert result.returncode == 6
    assert "tidemark up kafka" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_error_is_one_line_when_the_home_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run(tmp_path / "file" / "home", "up")
    assert result.returncode == 1
    assert "Not a directory" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_broker_is_named_with_exit_code_6_when_it_is_unreachable(tmp_path: Path) -> None:
    result = run(tmp_path, "produce", "nest_cameras", "--events", "1", TIDEMARK_KAFKA_BOOTSTRAP="127.0.0.1:1")
    assert result.returncode == 6
    assert "127.0.0.1:1" in result.stderr


def test_exit_code_is_64_when_a_setting_is_wrong(tmp_path: Path) -> None:
    result = run(tmp_path, "status", TIDEMARK_LEASE_SECONDS="soon")
    assert result.returncode == 64
    assert "TIDEMARK_LEASE_SECONDS" in result.stderr


def test_help_documents_a_verb_when_it_exists(tmp_path: Path) -> None:
    listing = run(tmp_path, "--help").stdout
    for verb in ("demo", "test", "up", "down", "status", "pipelines", "produce", "stream", "interval", "ranges"):
        assert f" {verb} " in listing
    assert "--json" in run(tmp_path, "status", "--help").stdout
