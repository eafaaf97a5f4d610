"""Which code built what registered intervals hold of a view, on a real PostgreSQL, without Spark."""

from __future__ import annotations

from dataclasses import replace

import pytest

from include.erasure.keys import Keys
from include.ledger.completeness.partials import Partial, registered_partials
from include.ledger.erasures import intent
from include.ledger.erasures.intent import Found, Request
from include.ledger.intervals import attempts, builds, pins
from include.ledger.intervals.builds import Changes
from include.ledger.intervals.findings import Validation
from include.ledger.lineage import BuiltRevision
from include.ledger.quarantine import RecordKey
from include.ledger.streams import writers
from tests.support.attempts import TOPIC, begin_attempt, hour, note_build, register

pytestmark = pytest.mark.services


def parts(pipeline: str) -> tuple[Partial, ...]:
    """What registered intervals hold of the table; a speed view has read all of it."""
    return registered_partials(pipeline, pipeline, (), read={}, closed=("id",)).parts


def part(pipeline: str) -> Partial:
    """What the only interval holds of the table."""
    (only,) = parts(pipeline)
    return only


def build_by(pipeline: str, code: str) -> tuple[int, BuiltRevision]:
    """Build the interval with this code, and return the attempt and its revision, whose rows are always the same."""
    pinned = pins.find_interval(pipeline, hour().from_time)
    assert pinned is not None
    attempt = attempts.begin_attempt(pinned, run_by="test", code_version=code, source="kafka")
    return attempt, note_build(attempt)


def publish(pipeline: str, attempt: int, changes: Changes) -> None:
    spec = attempts.load_attempt(attempt)
    builds.finish_registration(builds.begin_registration(spec, Validation(True, pipeline), changes))


def test_part_is_of_the_code_that_last_built_the_same_rows_when_its_files_stayed(pipeline: str) -> None:
    first = begin_attempt(pipeline)
    register(first, note_build(first))
    before = part(pipeline)
    assert before.code_version == "1a2b3c"

    attempt, same = build_by(pipeline, "4d5e6f")
    assert part(pipeline) == before, "a build proves nothing before it is published"
    publish(pipeline, attempt, Changes(kept=(same,)))
    assert part(pipeline) == replace(before, code_version="4d5e6f")

    build_by(pipeline, "7a8b9c")
    assert part(pipeline) == replace(before, code_version="4d5e6f")


def test_part_is_of_the_code_that_built_it_when_its_rows_are_others(pipeline: str) -> None:
    first = begin_attempt(pipeline)
    register(first, note_build(first))
    attempt = build_by(pipeline, "4d5e6f")[0]
    spec = attempts.load_attempt(attempt)
    built = note_build(attempt)
    other = replace(built, revision="r-other", content_hash="f" * 64)
    assert spec.findings.build is not None
    builds.note_build(spec, [other], spec.findings.build)
    publish(pipeline, attempt, Changes(points=(other,)))
    assert (part(pipeline).revision, part(pipeline).code_version) == ("r-other", "4d5e6f")


def test_part_is_one_again_when_a_build_after_an_erasure_gives_the_same_rows(pipeline: str) -> None:
    first = begin_attempt(pipeline)
    register(first, note_build(first))
    before = part(pipeline)
    lease = writers.acquire(pipeline)
    # A record without a row of the view.
    found = Found({RecordKey(TOPIC, "id", 0, 1)}, set(), set(), 1)
    intent.begin(lease, Request(pipeline, ["device_id"], "asked", "me@here", "00" * 16, [], False), found, Keys(["x"]))
    writers.release(lease)
    assert parts(pipeline) == (), "it may count what was erased"

    attempt, same = build_by(pipeline, "1a2b3c")
    assert parts(pipeline) == ()
    publish(pipeline, attempt, Changes(kept=(same,)))
    assert part(pipeline) == before
