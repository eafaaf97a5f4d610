"""The protocol, model-checked: its promises hold whatever crashes, and each guard is needed for what it guards."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
MODEL = Path(__file__).with_name("protocol.pml")

MISSING = "Spin and a C compiler are not installed (Debian: spin, gcc, libc6-dev)"

LOST_LOCKS = "INTERVAL LOST_LOCKS CRASHES=1"
"""One loss of a lock, or one crash: with two there are four times as many states."""

ONE_CRASH = "INTERVAL CRASHES=1"
"""With one crash each control breaks what it does with two, in half as many states."""

CONTROLS = [
    ("STREAM", "NO_FENCING", ["one_writer"]),
    # A record that is committed again is archived twice, or archived and quarantined if other code decoded it.
    ("STREAM", "NO_CONTINUITY", ["archived_once", "one_fate"]),
    # By the intent three others know what is half done, and a promise rests on each: who publishes next finishes it
    # (stays_registered), repair waits for it (visible_once), and a build leaves its files alone (visible_files_exist).
    ("INTERVAL", "NO_INTENT", ["visible_once", "stays_registered", "visible_files_exist"]),
    ("INTERVAL", "NO_WAITING", ["visible_once"]),
    ("INTERVAL", "NO_DISCARD", ["right_build_passes"]),
    # Who has lost the lock changes the catalog after another who has it, in any way.
    (LOST_LOCKS, "NO_CHECK", ["visible_once", "stays_registered", "visible_files_exist"]),
]

INVARIANTS: dict[str, tuple[str, ...]] = {
    "Every offset has one fate": ("one_fate", "archived_once", "nothing_skipped", "rows_are_somewhere"),
    "Any reader sees each row once": ("visible_once", "visible_files_exist"),
    # An attempt whose rows are there twice is refused, although each of its builds was right.
    "Nothing is visible before it is validated": ("nothing_unvalidated", "stays_registered", "right_build_passes"),
    "Two drivers of one pipeline never both commit": ("one_writer",),
}
"""Invariants of the model by the promise of the README that they are part of."""

OUTSIDE = {
    # The model has no values, and a topic that stays.
    "The same ranges and the same code give the same content hash": (
        "tests/end_to_end/test_doctor.py",
        "test_content_hashes_are_those_of_earlier_code",
    ),
    "A recreated topic stops the pipeline": (
        "tests/end_to_end/test_main_job.py",
        "test_stream_ends_with_exit_code_4_when_the_topic_was_recreated",
    ),
}
"""Promises that the model cannot break, and which test holds instead."""


def check(folder: Path, *definitions: str, compiled: str = "-O1") -> tuple[int, str]:
    """Explore states until a promise is broken; return their number, and the promise's text, or an empty text.

    `compiled`: the compiler's option. To optimize takes longer than to find what breaks after some thousand states.
    """
    if not (shutil.which("spin") and shutil.which("gcc")):
        pytest.fail(MISSING) if os.environ.get("CI") else pytest.skip(MISSING)
    flags = [f"-D{definition}" for definition in definitions]
    subprocess.run(["spin", *flags, "-a", str(MODEL)], cwd=folder, check=True, capture_output=True)
    subprocess.run(["gcc", compiled, "-w", "-DSAFETY", "-o", "pan", "pan.c"], cwd=folder, check=True)
    # Waiting end states are valid here: a process may wait for ever for an action that another one never takes.
    run = subprocess.run(["./pan", "-m1000000", "-E", "-w24"], cwd=folder, check=True, capture_output=True, text=True)
    assert "max search depth too small" not in run.stdout
    states = re.search(r"(\d+) states, stored", run.stdout)
    violated = re.search(r"assertion violated (.*) \(at depth", run.stdout)
    assert states is not None
    return int(states[1]), violated[1] if violated else ""


@pytest.mark.parametrize(("part", "least"), [("STREAM", 50_000), ("INTERVAL", 1_000_000), (LOST_LOCKS, 1_000_000)])
def test_every_promise_holds_when_every_state_is_reached(tmp_path: Path, part: str, least: int) -> None:
    states, violated = check(tmp_path, *part.split())
    assert violated == ""
    # A model that got stuck early would keep every promise.
    assert states > least


@pytest.mark.parametrize(("part", "control", "guarded"), CONTROLS)
def test_promise_is_broken_when_what_guards_it_is_off(
    tmp_path: Path, part: str, control: str, guarded: list[str]
) -> None:
    for promise in guarded:
        others = "+".join(each.upper() for each in guarded if each != promise) or "0"
        _, broken = check(tmp_path, *part.split(), control, f"WITHOUT={others}", compiled="-O0")
        assert broken != "", f"{control} breaks no {promise}"


@pytest.mark.parametrize(
    ("part", "control", "guarded"),
    [
        # Every state of an interval is reached: millions.
        *(pytest.param(*each, marks=[pytest.mark.slow] * (each[0] != "STREAM")) for each in CONTROLS),
        *((ONE_CRASH, *each) for part, *each in CONTROLS if part == "INTERVAL"),
    ],
)
def test_no_other_promise_is_broken_when_a_guard_is_off(
    tmp_path: Path, part: str, control: str, guarded: list[str]
) -> None:
    every = "+".join(each.upper() for each in guarded)
    assert check(tmp_path, *part.split(), control, f"WITHOUT={every}")[1] == ""


def test_readme_promises_what_the_model_or_a_named_test_holds() -> None:
    promises = re.findall(r"^- \*\*(.+?)\.?\*\*", (REPOSITORY / "README.md").read_text(), re.MULTILINE)
    assert sorted(promises) == sorted([*INVARIANTS, *OUTSIDE])
    checked = re.findall(r"assert\((\w+)\)", MODEL.read_text())
    assert sorted(checked) == sorted(name for names in INVARIANTS.values() for name in names)
    for file, test in OUTSIDE.values():
        assert f"\ndef {test}(" in (REPOSITORY / file).read_text(), f"{file} has no {test}"
