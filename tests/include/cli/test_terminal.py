"""What a person at a terminal sees, and what a program or a log gets instead; the terminal is a real one (a pty)."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from include.cli import data
from include.cli.output import clean
from include.intervals.verdict import Verdict
from include.pipelines import Declarations, load_pipeline
from tests.conftest import REPOSITORY

COLUMNS = 100

WORK = """
from include.cli.output import suggest, working
with working("writing 10 messages", 10, as_json={as_json}) as done:
    for number in range(11):
        done(number)
suggest("./tidemark next")
"""

TELL = """
import sys
from include.cli.jobs import _conclude
from include.intervals.verdict import Verdict
_conclude(Verdict("p", {"from": "2026-11-20T05:00:00Z", "to": "2026-11-20T06:00:00Z"}, "v", report="page.html"), False)
"""


DOCTOR = """
import typer
from include.cli import services
from include.doctor import examine
from include.doctor.finding import Finding
examine.examine = lambda **_: [Finding(True, "a file [red]x[/red] and [/nothing]", "look at [b]")]
services.doctor()
"""

TABLE = """
from include.cli.output import print_table
print_table(["[red]column"], [["[/cell]"]], title="[bold]title")
"""


def at_terminal(home: Path, *command: str) -> str:
    """Return everything that a command writes to a terminal of 100 columns, which is its standard output and error."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    environment = {**os.environ, "TIDEMARK_HOME": str(home), "TERM": "xterm-256color"}
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "CI"):
        environment.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, *command], stdin=slave, stdout=slave, stderr=slave, env=environment, cwd=REPOSITORY
    )
    os.close(slave)
    written = b""
    # A terminal whose last program has ended raises an error instead of an end of file.
    with suppress(OSError):
        while part := os.read(master, 65536):
            written += part
    os.close(master)
    assert process.wait(60) == 0, written.decode()
    return written.decode()


def plain(text: str) -> str:
    """The text without the sequences that colour and move."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def piped(home: Path, *command: str, **extra: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TIDEMARK_HOME": str(home), **extra}
    return subprocess.run(
        [sys.executable, *command], env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=True
    )


def test_bar_moves_and_next_command_is_named_when_output_is_a_terminal(tmp_path: Path) -> None:
    shown = plain(at_terminal(tmp_path, "-c", WORK.format(as_json=False)))
    assert "writing 10 messages" in shown
    assert "━" in shown
    assert "next: ./tidemark next" in shown


def test_no_bar_and_no_suggestion_is_written_when_output_is_a_log(tmp_path: Path) -> None:
    result = piped(tmp_path, "-c", WORK.format(as_json=False))
    assert (result.stdout, result.stderr) == ("", "")


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_pipe_gets_json_and_no_bar_when_colour_is_forced(tmp_path: Path, variable: str) -> None:
    assert json.loads(piped(tmp_path, "-c", TELL, **{variable: "1"}).stdout)["report"] == "page.html"
    result = piped(tmp_path, "-c", WORK.format(as_json=False), **{variable: "1"})
    assert (result.stdout, result.stderr) == ("", "")


def test_terminal_gets_no_bar_when_json_is_asked_for(tmp_path: Path) -> None:
    assert "━" not in at_terminal(tmp_path, "-c", WORK.format(as_json=True))


def test_table_fits_100_columns_when_pipelines_are_listed(tmp_path: Path) -> None:
    shown = plain(at_terminal(tmp_path, "-m", "include.cli", "pipelines"))
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= COLUMNS
    for cell in ("nest_cameras_hourly_counts", "auction-category-hours", "next: ./tidemark demo"):
        assert cell in shown


def test_every_topic_and_dag_is_told_when_pipelines_are_listed_as_json(tmp_path: Path) -> None:
    listed = {
        each["name"]: each for each in json.loads(piped(tmp_path, "-m", "include.cli", "pipelines", "--json").stdout)
    }
    bids = listed["auction_bids"]
    assert bids["dags"] == ["stream__auction_bids", "interval__auction_bids", "daily__auction_bids"]
    assert bids["written_topics"]["auction-flags"] == "flags"
    places = bids["locations"]
    assert places["lake.auction_bids"].endswith("/tables/auction_bids")
    assert places["landing"].endswith("/landing/auction_bids")
    assert places["proofs"].endswith("/proofs/auction_bids")
    for pipeline in listed.values():
        assert {*pipeline["speed_views"].values()} <= pipeline["written_topics"].keys()


def test_places_are_told_when_a_declaration_has_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nest = load_pipeline("nest_cameras")
    in_iceberg = replace(nest, archive=replace(nest.archive, iceberg=True))
    declared = Declarations((load_pipeline("gps_positions"), load_pipeline("isp_hits"), in_iceberg), {})
    monkeypatch.setattr(data, "declarations", lambda: declared)
    data.pipelines(as_json=True)
    gps, hits, nest_cameras = json.loads(capsys.readouterr().out)
    lake = gps["locations"]["landing"].removesuffix("/landing/gps_positions")
    assert gps["locations"]["delta"] == f"{lake}/delta/gps_positions"
    assert gps["locations"]["checkpoints"] == f"{lake}/checkpoints/gps_positions"
    assert nest_cameras["locations"]["iceberg.nest_cameras"] == f"{lake}/iceberg/nest_cameras"
    assert nest_cameras["locations"]["references"] == f"{lake}/references/nest_cameras"
    assert not {"delta", "references"} & hits["locations"].keys()
    assert "isp_hits_by_zip" in hits["live_tables"]


def test_verdict_is_words_when_output_is_a_terminal_and_json_elsewhere(tmp_path: Path) -> None:
    words = Verdict(
        "p", {"from": "2026-11-20T05:00:00Z", "to": "2026-11-20T06:00:00Z"}, "v", report="page.html"
    ).in_words()
    assert words == (
        "p 2026-11-20T05:00:00Z to 2026-11-20T06:00:00Z: nothing of this run is registered; it was not validated; "
        "read page.html"
    )
    shown = plain(at_terminal(tmp_path, "-c", TELL)).split("\r\n")
    assert "".join(shown[-3:]).endswith(words)
    assert "{" not in "".join(shown)
    result = piped(tmp_path, "-c", TELL)
    assert result.stdout.startswith('{\n  "pipeline": "p"')
    assert result.stderr == f"tidemark: {words}\n"


def test_markup_is_printed_unchanged_when_names_or_data_have_it(tmp_path: Path) -> None:
    assert "a file [red]x[/red] and [/nothing] — look at [b]" in piped(tmp_path, "-c", DOCTOR).stdout
    table = piped(tmp_path, "-c", TABLE).stdout
    assert [line.strip() for line in table.splitlines()] == ["[bold]title", "[red]column", "[/cell]"]


def test_text_cannot_hide_or_turn_what_is_printed_when_data_has_invisible_characters() -> None:
    said = "a\tb\nc\x1b[31m \u202eevil\u2066 \u200b\ufeff \x85 \ud800 नि\u200dत [red]"
    assert clean(said) == "a\tb\nc�[31m �evil� �� � � नि\u200dत \\[red]"


def test_set_up_counts_its_seconds_only_when_output_is_a_terminal(tmp_path: Path) -> None:
    launcher = (REPOSITORY / "tidemark").read_text()
    ticking = re.search(r"^ticking\(\) \{$.*?^\}$", launcher, re.MULTILINE | re.DOTALL)
    assert ticking
    step = f"{ticking[0]}\nticking bash -c 'sleep 1.5; exit 7'; echo ended with $?"
    ask = f"import subprocess; subprocess.run(['bash', '-c', {step!r}], check=True)"
    shown = plain(at_terminal(tmp_path, "-c", ask))
    assert "tidemark: 1 s" in shown
    assert shown.rstrip().endswith("ended with 7")
    logged = subprocess.run(["bash", "-c", step], capture_output=True, text=True, check=True)
    assert (logged.stdout, logged.stderr) == ("ended with 7\n", "")
