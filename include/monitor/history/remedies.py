"""What to do about an interval that is not registered, by the exit code of its last attempt."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from include.errors import (
    AnotherWriter,
    ArchiveBehind,
    OffsetsLost,
    ReconciliationFailed,
    ServiceUnreachable,
    ValidationFailed,
    error_class,
)
from include.times import Interval, format_time


@dataclass(frozen=True)
class Advice:
    """What a state means, what to do, and the command for it."""

    meaning: str
    remedy: str
    command: str


_REMEDIES = {
    ValidationFailed.exit_code: "read which expectation failed on the interval's page; correct the source or the suite",
    ReconciliationFailed.exit_code: "read the unexplained differences in the interval's report, and what doctor finds",
    OffsetsLost.exit_code: "read what was archived of its offsets; accept the loss or adopt the new topic, with a "
    "reason, only if the stream's error asks for that",
    AnotherWriter.exit_code: "wait until the other writer has ended, then run the interval again",
    ServiceUnreachable.exit_code: "see which service does not answer and start it, then run the interval again",
    ArchiveBehind.exit_code: "check that the stream runs and catches up, then run the interval again",
}


def run_command(pipeline: str, interval: Interval) -> str:
    """Return the command that runs an interval."""
    times = f"--from {format_time(interval.from_time)} --to {format_time(interval.to_time)}"
    return f"./tidemark interval {shlex.quote(pipeline)} {times}"


def approve_command(pipeline: str, interval: Interval, question: int | None = None) -> str:
    """Return the command that approves an interval's open question, or the given one."""
    times = f"--from {format_time(interval.from_time)} --to {format_time(interval.to_time)}"
    asked = "" if question is None else f" --question {question}"
    return f'./tidemark approve {shlex.quote(pipeline)} {times}{asked} --reason "…"'


def of_failure(pipeline: str, interval: Interval, exit_code: int) -> Advice:
    """Return what the exit code of an attempt means, what to do, and the first command for it."""
    first = {
        ReconciliationFailed.exit_code: "./tidemark doctor",
        # The only way on for an interval that is run again after retention: the stream has lost nothing.
        OffsetsLost.exit_code: f"{run_command(pipeline, interval)} --source archive",
        ServiceUnreachable.exit_code: "./tidemark status",
        ArchiveBehind.exit_code: f"./tidemark lag {shlex.quote(pipeline)}",
    }
    remedy = _REMEDIES.get(exit_code, "read the log of its task, then run the interval again")
    command = first.get(exit_code, run_command(pipeline, interval))
    return Advice(f"exit code {exit_code}: {error_class(exit_code).meaning}", remedy, command)


def of_silence(pipeline: str, interval: Interval) -> Advice:
    """Return what to do about an interval whose last attempt ended and nobody knows how: its job or its host died."""
    remedy = "read its task's log: was it killed, or out of memory? Then run the interval again"
    return Advice("its last attempt ended without a verdict", remedy, run_command(pipeline, interval))


def of_repinned(pipeline: str, interval: Interval) -> Advice:
    """Return what to do about an interval that was registered, pinned again, and not run since."""
    meaning = "pinned again, and not run since: its tables have what was registered before"
    return Advice(meaning, "build it", run_command(pipeline, interval))


def of_waiting(pipeline: str, interval: Interval, question: int) -> Advice:
    """Return what to do about an interval that waits for a person."""
    remedy = "look at the warnings in its report, then approve it, or refuse it with --refuse, here or in Airflow"
    return Advice(
        "it failed only by warnings, and waits for somebody's approval",
        remedy,
        approve_command(pipeline, interval, question),
    )


def of_missing(pipeline: str, interval: Interval) -> Advice:
    """Return what to do about a pinned interval that was never built."""
    return Advice(
        "never built: its records are in the archive, and in no table", "build it", run_command(pipeline, interval)
    )


def of_unpinned(pipeline: str, interval: Interval) -> Advice:
    """Return what to do about time before a pinned interval with records, of which nobody knows where they lie."""
    meaning = "never pinned: the archive has records from before the pinned interval after it, and no table has them"
    return Advice(meaning, "build it", run_command(pipeline, interval))


def of_due(pipeline: str, interval: Interval) -> Advice:
    """Return what to do about an interval that has passed and is not pinned yet."""
    meaning = "it has passed, and nothing has pinned it yet: its DAG is paused, waits or has not run"
    return Advice(meaning, f"see the DAG interval__{pipeline} in Airflow, or build it", run_command(pipeline, interval))
