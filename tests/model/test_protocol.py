"""The protocol, model-checked: its promises hold whatever crashes, and each guard is needed for what it guards."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).with_name("protocol.pml")

MISSING = "Spin and a C compiler are not installed (Debian: spin, gcc, libc6-dev)"

CONTROLS = [
    ("STREAM", "NO_FENCING", ["one_writer"]),
    ("STREAM", "NO_CONTINUITY", ["archived_once"]),
    # The intent keeps drop and pointer together, and the files that the pointer needs.
    ("INTERVAL", "NO_INTENT", ["visible_once", "stays_registered", "visible_files_exist"]),
    ("INTERVAL", "NO_DISCARD", ["right_build_passes"]),
]


def check(folder: Path, *definitions: str) -> tuple[int, str]:
    """Explore every state; return their number, and the text of a broken promise, or an empty text."""
    if not (shutil.which("spin") and shutil.which("gcc")):
        pytest.fail(MISSING) if os.environ.get("CI") else pytest.skip(MISSING)
    flags = [f"-D{definition}" for definition in definitions]
    subprocess.run(["spin", *flags, "-a", str(MODEL)], cwd=folder, check=True, capture_output=True)
    subprocess.run(["gcc", "-O1", "-w", "-DSAFETY", "-o", "pan", "pan.c"], cwd=folder, check=True)
    # Waiting end states are valid here: a process may wait for ever for an action that another one never takes.
    run = subprocess.run(["./pan", "-m1000000", "-E", "-w24"], cwd=folder, check=True, capture_output=True, text=True)
    assert "max search depth too small" not in run.stdout
    states = re.search(r"(\d+) states, stored", run.stdout)
    violated = re.search(r"assertion violated (.*) \(at depth", run.stdout)
    assert states is not None
    return int(states[1]), violated[1] if violated else ""


@pytest.mark.parametrize(("part", "least"), [("STREAM", 50_000), ("INTERVAL", 1_000_000)])
def test_every_promise_holds_when_every_state_is_reached(tmp_path: Path, part: str, least: int) -> None:
    states, violated = check(tmp_path, part)
    assert violated == ""
    # A model that got stuck early would keep every promise.
    assert states > least


@pytest.mark.parametrize(("part", "control", "guarded"), CONTROLS)
def test_only_what_a_guard_protects_breaks_when_it_is_off(
    tmp_path: Path, part: str, control: str, guarded: list[str]
) -> None:
    for promise in guarded:
        others = "+".join(each.upper() for each in guarded if each != promise) or "0"
        assert check(tmp_path, part, control, f"WITHOUT={others}")[1] != "", f"{control} breaks no {promise}"
    every = "+".join(each.upper() for each in guarded)
    assert check(tmp_path, part, control, f"WITHOUT={every}")[1] == ""
