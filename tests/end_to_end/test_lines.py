"""isp_hits from files and from a socket instead of Kafka: the same archive and views, and no offsets claimed."""

from __future__ import annotations

import re
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, Home, iso, last_hours
from tests.support import hits
from tests.support.hits import check_archive, fates, move_in

pytestmark = [pytest.mark.services, pytest.mark.slow]

START = last_hours(3)
GOOD = [*hits.good(START, 1500, seed=3), *hits.naughty(START)]
BAD = hits.bad(START)


@pytest.fixture(scope="module")
def from_files(home: Home, tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Path]:
    """Three files, good and hostile lines mixed, read until there are no more."""
    folder = tmp_path_factory.mktemp("in coming")
    move_in(folder, "one.jsonl", GOOD[:900] + BAD[:10])
    move_in(folder, "two ü%20.jsonl", BAD[10:] + GOOD[900:], end=b"")
    move_in(folder, "windows.jsonl", [line + b"\r" for line in hits.good(START, 30, seed=4)])
    (folder / "empty.jsonl").touch()
    (folder / "_SUCCESS").write_text("left alone")
    (folder / "older").mkdir()
    (folder / "older" / "x.jsonl").write_bytes(GOOD[0])
    done = home.run("stream", "isp_hits", "--from", folder.as_uri(), "--until-caught-up")
    assert "no Kafka offsets" in done.stderr
    return home, folder


def test_every_line_of_every_file_has_one_fate_and_the_views_count_it(from_files: tuple[Home, Path]) -> None:
    home, _ = from_files
    check_archive(home, "isp_hits_files", GOOD + hits.good(START, 30, seed=4), BAD)
    found = {source.rpartition("/")[2]: fate for source, fate in fates(home, "isp_hits_files").items()}
    assert found == {
        "one.jsonl": (1, 911, 900, 10),
        "two%20%C3%BC%2520.jsonl": (1, len(GOOD) + len(BAD) - 909, len(GOOD) - 900, len(BAD) - 10),
        "windows.jsonl": (1, 31, 30, 0),
    }


def test_ledger_says_that_there_are_no_offsets(from_files: tuple[Home, Path]) -> None:
    home, _ = from_files
    ((pipeline, declared, kind, guarantee),) = home.ledger(
        "SELECT pipeline, declared_as, kind, guarantee FROM line_sources"
    )
    assert (pipeline, declared, kind) == ("isp_hits_files", "isp_hits", "files")
    assert "each line of a file once" in guarantee
    assert "no Kafka offsets" in guarantee
    for table in ("micro_batch_ranges", "positions", "topics", "interval_ranges", "intervals"):
        assert home.ledger(f"SELECT count(*) FROM {table}") == [(0,)], table
    # The views' queries also record how far they have read.
    spans = "SELECT query, max(until_file), min(after_file) FROM line_spans s JOIN micro_batches b"
    found = home.ledger(f"{spans} ON b.id = s.micro_batch_id GROUP BY query ORDER BY query")
    last = home.ledger("SELECT max(id) FROM line_files")[0][0]
    assert found == [(query, last, 0) for query in ("archive", "by_isp", "by_zip", "isp_totals", "zip_totals")]
    assert home.ledger("SELECT count(*) FROM line_files") == [(4,)]


@pytest.mark.parametrize("verb", ["interval", "ranges", "explain"])
def test_nothing_is_pinned_over_lines_and_the_way_on_is_named(from_files: tuple[Home, Path], verb: str) -> None:
    home, _ = from_files
    bounds = ["--from", iso(START), "--to", iso(START + timedelta(hours=1))]
    arguments = {"interval": bounds, "ranges": []}.get(verb, ["date=2026-11-20/interval=2026-11-20T05"])
    for name in ("isp_hits_files", "isp_hits") if verb == "interval" else ("isp_hits_files",):
        refused = home.run(verb, name, *arguments, expect=64)
        assert "its records have no offsets, so no interval can be pinned over them" in refused.stderr
        assert "produce the lines into Kafka" in refused.stderr


@pytest.mark.slow
def test_shell_shows_archive_quarantine_and_views_of_lines(from_files: tuple[Home, Path]) -> None:
    home, _ = from_files
    statements = (
        "SELECT count(*) AS n FROM isp_hits_files_live; SELECT count(*) AS n FROM isp_hits_files_quarantine; "
        "SELECT sum(hits) AS n FROM by_zip; SELECT sum(hits) AS n FROM by_isp"
    )
    done = subprocess.run(
        home.command("shell", "isp_hits_files", "--json"), input=statements, env=home.environment(),
        capture_output=True, text=True, cwd=REPOSITORY, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    live = len(GOOD) + 30
    assert [int(n) for n in re.findall(r'"n": (\d+)', done.stdout)] == [live, len(BAD), 2 * live, live]


def test_stream_stops_when_a_file_that_was_noted_is_changed(from_files: tuple[Home, Path]) -> None:
    home, folder = from_files
    with (folder / "one.jsonl").open("ab") as file:
        file.write(GOOD[0] + b"\n")
    stopped = home.run("stream", "isp_hits", "--from", folder.as_uri(), "--until-caught-up", expect=1)
    assert "one.jsonl was changed after it was noted" in stopped.stderr
    assert "a file of its own" in stopped.stderr
    assert fates(home, "isp_hits_files")[f"{folder.as_uri()}/one.jsonl"] == (1, 911, 900, 10)
