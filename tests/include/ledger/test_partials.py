"""Which code built what registered intervals hold of a view, on a real PostgreSQL, without Spark."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import select

from include.erasure.keys import Keys
from include.ledger.completeness.partials import Partial, Partials, of_other_code, read_otherwise, registered_partials
from include.ledger.database import session
from include.ledger.erasures import intent
from include.ledger.erasures.intent import Found, Request
from include.ledger.intervals import attempts, builds, pins
from include.ledger.intervals.builds import Changes, TableColumns
from include.ledger.intervals.findings import Validation
from include.ledger.lineage import BuiltRevision
from include.ledger.models import DeclaredTables, IntervalRow
from include.ledger.quarantine import RecordKey
from include.offsets import OffsetRange, TopicPartition
from tests.support.attempts import TOPIC, begin_attempt, build_and_register, hour, note_build
from tests.support.leases import held_lease

pytestmark = pytest.mark.services


VIEW = "view"
"""Table of a view of which no interval has a row."""


def parts(pipeline: str, table: str = "") -> tuple[Partial, ...]:
    """What registered intervals hold of the table; a speed view has read all of it."""
    return registered_partials(pipeline, table or pipeline, (), read={}, closed=("id",)).parts


def part(pipeline: str) -> Partial:
    """What the only interval holds of the table."""
    (only,) = parts(pipeline)
    return only


def build_by(pipeline: str, code: str, columns: TableColumns | None = None) -> tuple[int, BuiltRevision]:
    """Build the interval with this code, and return the attempt and its revision, whose rows are always the same."""
    pinned = pins.find_interval(pipeline, hour().from_time)
    assert pinned is not None
    attempt = attempts.begin_attempt(pinned, run_by="test", code_version=code, source="kafka")
    return attempt, note_build(attempt, columns=columns)


def publish(pipeline: str, attempt: int, changes: Changes) -> None:
    spec = attempts.load_attempt(attempt)
    builds.finish_registration(builds.begin_registration(spec, Validation(True, pipeline), changes))


def test_part_is_of_the_code_that_last_built_the_same_rows_when_its_files_stayed(pipeline: str) -> None:
    build_and_register(pipeline)
    before = part(pipeline)
    assert before.code_version == "1a2b3c"

    attempt, same = build_by(pipeline, "4d5e6f")
    assert part(pipeline) == before, "a build proves nothing before it is published"
    publish(pipeline, attempt, Changes(kept=(same,)))
    after = part(pipeline)
    assert after.build_id > before.build_id
    assert after == replace(before, code_version="4d5e6f", build_id=after.build_id)

    build_by(pipeline, "7a8b9c")
    assert part(pipeline) == after


def test_part_is_of_the_same_code_when_another_version_of_it_differs_in_what_decides_no_row_of_the_view(
    pipeline: str,
) -> None:
    views = ({pipeline: "v1"}, {pipeline: "v2"}, {"another": "v1"}, {})
    for number, noted in enumerate(views):
        build_and_register(pipeline, hour(number), view_versions=noted)
    held = parts(pipeline)
    others = of_other_code(pipeline, held, code="4d5e6f", view="v1")
    assert others == {each.interval_id for each in held[1:]}
    assert of_other_code(pipeline, held, code="1a2b3c", view="v1") == frozenset()


def test_part_is_of_the_code_that_built_it_when_its_rows_are_others(pipeline: str) -> None:
    build_and_register(pipeline)
    attempt = build_by(pipeline, "4d5e6f")[0]
    spec = attempts.load_attempt(attempt)
    built = note_build(attempt)
    other = replace(built, revision="r-other", content_hash="f" * 64)
    assert spec.findings.build is not None
    builds.note_build(spec, [other], spec.findings.build)
    publish(pipeline, attempt, Changes(points=(other,)))
    assert (part(pipeline).revision, part(pipeline).code_version) == ("r-other", "4d5e6f")


def erase_a_record(pipeline: str) -> None:
    """Erase a record of the first interval that has no row of a view."""
    with held_lease(pipeline) as lease:
        found = Found({RecordKey(TOPIC, "id", 0, 1)}, set(), set(), 1)
        intent.begin(
            lease, Request(pipeline, ["device_id"], "asked", "me@here", "00" * 16, [], False), found, Keys(["x"])
        )


def test_part_is_one_again_when_a_build_after_an_erasure_gives_the_same_rows(pipeline: str) -> None:
    build_and_register(pipeline)
    before = part(pipeline)
    erase_a_record(pipeline)
    assert parts(pipeline) == (), "it may count what was erased"

    attempt, same = build_by(pipeline, "1a2b3c")
    assert parts(pipeline) == ()
    publish(pipeline, attempt, Changes(kept=(same,)))
    assert part(pipeline) == replace(before, build_id=part(pipeline).build_id)


def test_interval_holds_its_offsets_when_its_code_declared_the_view_and_gave_no_row_of_it(pipeline: str) -> None:
    for number, columns in enumerate(({pipeline: {}}, {pipeline: {}, VIEW: {}}, None)):
        build_and_register(pipeline, hour(number), columns=columns)
    tps = [TopicPartition(TOPIC, partition) for partition in (0, 1)]
    second = tuple(OffsetRange(tp, 100, 200, "id") for tp in tps)

    def held(until: int, *but: int) -> Partials:
        return registered_partials(pipeline, VIEW, but, read=dict.fromkeys(tps, until), closed=())

    (only,) = held(200).parts
    assert held(200) == Partials((Partial(only.interval_id, "", "", {}, "1a2b3c", only.build_id),), second)
    assert held(199) == held(200, only.interval_id) == Partials((), ())
    with session() as ledger:
        ledger.get_one(IntervalRow, only.interval_id).state = "pinned"
    assert held(200) == Partials((), ())


def test_interval_without_a_row_is_a_part_again_when_it_is_built_after_an_erasure(pipeline: str) -> None:
    declared = {pipeline: {}, VIEW: {}}
    build_and_register(pipeline, columns=declared)
    assert [each.code_version for each in parts(pipeline, VIEW)] == ["1a2b3c"]
    erase_a_record(pipeline)
    assert parts(pipeline, VIEW) == ()

    attempt, same = build_by(pipeline, "4d5e6f", declared)
    assert parts(pipeline, VIEW) == ()
    publish(pipeline, attempt, Changes(kept=(same,)))
    assert [each.code_version for each in parts(pipeline, VIEW)] == ["4d5e6f"]


def test_interval_is_no_part_when_its_rows_of_the_view_were_not_registered(pipeline: str) -> None:
    first = begin_attempt(pipeline)
    built = note_build(first)
    spec = attempts.load_attempt(first)
    assert spec.findings.build is not None
    built, rows = replace(built, revision="r-again"), replace(built, revision="r-again", table=VIEW)
    builds.note_build(spec, [built, rows], spec.findings.build, columns={pipeline: {}, VIEW: {}})
    begun = builds.begin_registration(
        attempts.load_attempt(first), Validation(True, pipeline), Changes(points=(built, rows))
    )
    # The view was no longer declared when the build was published, and is declared again now.
    builds.finish_registration(replace(begun, changes=Changes(points=(built,), undeclared=(rows,))))
    assert parts(pipeline, VIEW) == ()
    # Nor is it complete there, or covered in what is served.
    of_interval = select(DeclaredTables.tables).join(IntervalRow, IntervalRow.declared == DeclaredTables.id)
    with session() as ledger:
        assert ledger.scalars(of_interval.where(IntervalRow.pipeline == pipeline)).one() == [pipeline]


def test_part_was_read_otherwise_when_its_build_from_kafka_gave_other_rows_than_were_landed(pipeline: str) -> None:
    for number, changes in enumerate([{}, {"added": 0, "removed": 0}, {"added": 0, "removed": 2}]):
        attempt = begin_attempt(pipeline, hour(number))
        built, spec = note_build(attempt), attempts.load_attempt(attempt)
        assert spec.findings.build is not None
        again = replace(built, revision=f"{built.revision}-again")
        builds.note_build(spec, [again], replace(spec.findings.build, code_changes=changes))
        publish(pipeline, attempt, Changes(points=(again,)))
    found = parts(pipeline, pipeline)
    assert len(found) == 3
    assert read_otherwise(found) == {found[2].interval_id}
