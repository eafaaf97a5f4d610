"""Which limits were in force where: what an interval recomputes flags by."""

from __future__ import annotations

from datetime import timedelta

import pytest

from include.offsets import OffsetRange, TopicPartition
from tests.conftest import Home
from tests.support.leases import held_lease

pytestmark = pytest.mark.services

TP = TopicPartition("auction-bids", 0)
IDS = {"auction-bids": "id-1"}


def offsets(begin: int, until: int, topic_id: str = "id-1") -> OffsetRange:
    return OffsetRange(TP, begin, until, topic_id)


def parts(pipeline: str, begin: int, until: int, topic_id: str = "id-1") -> list[tuple[int, int, int]]:
    from include.ledger.streams.flags import in_force

    found = in_force(pipeline, [offsets(begin, until, topic_id)])
    return [(each.range.from_offset, each.range.until_offset, each.version) for each in found]


def test_last_run_is_in_force_when_several_begin_at_one_offset(in_process: Home) -> None:
    from include.ledger.streams import flags
    from include.pipelines.spec import Limit

    with held_lease("in_force") as lease:
        first, second, third = (flags.note_limits(lease, [], [Limit("burst", name)]) for name in ("a", "b", "c"))
        for version, at in ((first, 10), (second, 20), (third, 20), (second, 50)):
            flags.note_run(lease, version, "code", {TP: at}, IDS)
        assert parts("in_force", 0, 100) == [(10, 20, first), (20, 50, third), (50, 100, second)]
        assert parts("in_force", 12, 15) == [(12, 15, first)]
        assert parts("in_force", 20, 50) == [(20, 50, third)]
        assert parts("in_force", 50, 50) == []
        assert parts("in_force", 0, 10) == []
        assert parts("in_force", 0, 100, "id-2") == [], "a topic that was created again has other records"
        assert parts("another", 0, 100) == []
        starts = flags.first_starts("in_force", [second, third], IDS)
        assert starts == {second: {TP: 20}, third: {TP: 20}}


def test_no_limits_are_in_force_when_nothing_could_be_flagged(in_process: Home) -> None:
    from include.ledger.streams import flags

    with held_lease("passed_over") as lease:
        version = flags.note_limits(lease, [], [])
        assert not flags.has_read("passed_over", "id-1")
        for limits, at in ((version, 0), (None, 30), (version, 40)):
            flags.note_run(lease, limits, "code", {TP: at}, IDS)
        assert parts("passed_over", 0, 100) == [(0, 30, version), (40, 100, version)]
        assert flags.has_read("passed_over", "id-1")
        assert not flags.has_read("passed_over", "id-2")


def test_former_limits_may_have_raised_flags_in_an_added_topic_partition_when_their_run_did_not_commit(
    in_process: Home,
) -> None:
    from include.ledger.streams import flags
    from include.pipelines.spec import Limit

    added = TopicPartition("auction-bids", 1)
    with held_lease("added") as lease:
        first, second = (flags.note_limits(lease, [], [Limit("burst", name)]) for name in ("a", "b"))
        assert flags.last_run("added") == 0
        former = flags.note_run(lease, first, "code", {TP: 10}, IDS)
        flags.note_run(lease, None, "code", {TP: 20}, IDS)
        assert flags.last_run("added") == former
        flags.note_run(lease, second, "code", {TP: 50, added: 0}, IDS)
        assert flags.first_starts("added", [first, second], IDS) == {
            first: {TP: 10, added: 0},
            second: {TP: 50, added: 0},
        }
        in_added = flags.in_force("added", [OffsetRange(added, 0, 9, "id-1")])
        assert [(len(each.range), each.version) for each in in_added] == [(9, second)]
        flags.note_added(former, "id-1", TP.partition)
        assert parts("added", 0, 30) == [(10, 20, first)], "it is known where the run begins"


def test_other_code_began_last_where_its_last_run_before_the_one_in_force_did(in_process: Home) -> None:
    from include.ledger.streams import flags

    with held_lease("other_code") as lease:
        version = flags.note_limits(lease, [], [])
        for code, at in (("a", 0), ("b", 10), ("c", 20), ("a", 30), ("b", 40)):
            flags.note_run(lease, version, code, {TP: at}, IDS)
        forces = flags.in_force("other_code", [offsets(0, 100)])
        assert [flags.other_code_began("other_code", force, "a") for force in forces] == [None, None, 10, 20, 20]
        assert [flags.other_code_began("another", force, "a") for force in forces] == [None] * 5


def test_version_stays_when_limits_are_equal_and_unknown_ones_are_left_out(in_process: Home) -> None:
    from include.ledger.streams import flags
    from include.pipelines.spec import Limit

    with held_lease("versions") as lease:
        limits = [Limit("far_above", '["toys","EUR"]', "12.50"), Limit("burst", "b")]
        version = flags.note_limits(lease, [], limits)
        assert flags.note_limits(lease, [], limits) == version
        assert flags.note_limits(lease, [], limits[:1]) > version
        assert flags.limits_of("versions", [version, 10**9]) == {version: limits}
        assert flags.limits_of("another", [version]) == {}


def test_no_limits_are_learned_when_no_interval_is_registered(in_process: Home) -> None:
    from include.ledger.streams.flags import registered_within

    assert registered_within("auction_bids", ["auction_bids_pair_hours"], timedelta(days=7)) == []


def test_no_limits_come_into_force_when_a_driver_lacks_the_lease(in_process: Home) -> None:
    from include.errors import AnotherWriter
    from include.ledger.streams import flags

    with held_lease("fenced") as lease:
        version = flags.note_limits(lease, [], [])
    for late in (
        lambda: flags.note_limits(lease, [], []),
        lambda: flags.note_run(lease, version, "code", {TP: 1}, IDS),
    ):
        with pytest.raises(AnotherWriter):
            late()
    assert parts("fenced", 0, 10) == []
