"""A topic that a pipeline has stopped reading: where its rest goes, and how it comes back. Real broker and ledger."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace

import pytest
from confluent_kafka import TopicPartition

from include.errors import TopicRecreated, UsageError
from include.intervals import boundaries
from include.intervals.pinning import pin_interval
from include.ledger.archive import micro_batches
from include.ledger.archive.micro_batches import ARCHIVE
from include.ledger.archive.positions import position_rows
from include.ledger.database import session
from include.ledger.intervals.attempts import readable_source
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.intervals.states import Source
from include.ledger.models import Position
from include.offsets import TopicPartition as Tp
from include.pipelines import load_pipeline
from include.pipelines.spec import KafkaTopics, Pipeline
from include.streams import generations, start
from tests.support.topic_log import Log, by_partition, hour

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("impatient")]


@dataclass
class Two:
    """A pipeline that has read two topics with a topic partition each, and its declaration without the second one."""

    both: Pipeline
    one: Pipeline
    kept: Log
    former: Log

    def archive(self, *logs: Log) -> None:
        for log in logs:
            log.batches = self.kept.batches = max(self.kept.batches, self.former.batches) + 1
            log.archive()

    def ranges(self, pipeline: Pipeline, number: int) -> tuple[tuple[int, int], ...]:
        """Pin an hour and return its offsets: of the topic that is kept, and of the former one."""
        return spans(pin_interval(pipeline, hour(number), pinned_by="test"), self)

    def leave(self) -> dict[str, object]:
        return generations.unsubscribe(self.one, self.former.topic, reason="over", left_by="test@host")


def by_partition_of(pinned: PinnedInterval, topic: str) -> dict[int, tuple[int, int]]:
    return by_partition(replace(pinned, ranges=tuple(r for r in pinned.ranges if r.topic_partition.topic == topic)))


def spans(pinned: PinnedInterval, two: Two) -> tuple[tuple[int, int], ...]:
    by_topic = {r.topic_partition.topic: (r.from_offset, r.until_offset) for r in pinned.ranges}
    return by_topic[two.kept.topic], by_topic[two.former.topic]


@pytest.fixture
def two(request: pytest.FixtureRequest) -> Two:
    name = f"p{abs(hash(request.node.name)) % 10**10}_{os.getpid()}"
    topics = (f"{name}-kept", f"{name}-former")
    nest = replace(load_pipeline("nest_cameras"), name=name, views=(), reports=())
    kept, former, both = (
        replace(nest, source=KafkaTopics(subscribe=named)) for named in ((topics[0],), (topics[1],), topics)
    )
    made = Two(both, kept, Log(kept), Log(former))
    for log in (made.kept, made.former):
        log.create(1)
        log.send(0, 0.2, 0.8, 1.5)
    made.former.send(0, 5.5)
    made.archive(made.kept, made.former)
    assert made.ranges(both, 0) == ((0, 2), (0, 2))
    return made


def test_remedy_writes_no_events_when_a_topic_of_the_source_is_missing(two: Two) -> None:
    # Events that are made up have no place in a topic that others read.
    new, kept, missing = f"{two.one.name}_new", two.kept.topic, f"{two.kept.topic}-b"
    cases = [
        (KafkaTopics(subscribe=(kept, missing)), f"topic {missing} does not exist", f"./tidemark stream {new}"),
        (KafkaTopics(assign={kept: (0,), missing: (0,)}), f"topic {missing} does not exist", "create it"),
        (KafkaTopics(pattern=f"{missing}.*"), f"no topic matches '{missing}.*'", "create one"),
    ]
    for source, error, remedy in cases:
        with pytest.raises(UsageError, match=re.escape(error)) as raised:
            pin_interval(replace(two.one, name=new, source=source), hour(1), pinned_by="test")
        assert remedy in raised.value.remedy
        assert "produce" not in raised.value.remedy


def test_rest_of_a_topic_is_in_the_next_interval_when_it_left_and_was_deleted(two: Two) -> None:
    with pytest.raises(UsageError, match="was read before") as raised:
        two.ranges(two.one, 1)
    assert f"./tidemark unsubscribe {two.one.name} {two.former.topic}" in raised.value.remedy
    left = two.leave()
    assert left["left_at"] == {f"{two.former.topic}-0": 4}
    assert left["unread"] == 0
    two.former.delete()
    start.check_retention(two.one, None)
    assert start.begin(two.one).generation.number == left["generation"]
    two.kept.send(0, 2.5, 3.5)
    two.archive(two.kept)
    # Whatever its times: nothing would come after it.
    assert two.ranges(two.one, 1) == ((2, 3), (2, 4))
    assert two.ranges(two.one, 2) == ((3, 4), (4, 4))
    intervals = two.kept.pinned()
    assert [readable_source(each, Source.KAFKA) for each in intervals] == [Source.ARCHIVE, Source.ARCHIVE, Source.KAFKA]


def test_rest_of_topics_is_in_the_next_interval_when_a_pattern_matches_none_any_more(two: Two) -> None:
    by_pattern = replace(two.one, source=KafkaTopics(pattern=f"{two.one.name}-.*"))
    for log in (two.kept, two.former):
        log.delete()
        generations.unsubscribe(by_pattern, log.topic, reason="over", left_by="test@host")
    assert two.ranges(by_pattern, 1) == ((2, 3), (2, 4))
    assert two.ranges(by_pattern, 2) == ((3, 3), (4, 4))


def test_topic_goes_on_where_it_was_left_when_it_is_declared_again(two: Two) -> None:
    two.former.send(0, 5.6)
    assert two.leave()["unread"] == 1
    two.kept.send(0, 2.5, 3.5)
    two.archive(two.kept)
    assert two.ranges(two.one, 1) == ((2, 3), (2, 4))
    with pytest.raises(UsageError, match="is declared again") as raised:
        start.begin(two.both)
    assert f"./tidemark new-generation {two.both.name}" in raised.value.remedy
    # Until then its intervals end where it was left.
    assert two.ranges(two.both, 2) == ((3, 4), (4, 4))
    generations.new_generation(two.both, reason="it is back", started_by="test@host")
    start.begin(two.both)
    assert start.archive_positions(two.both, [Tp(two.former.topic, 0)]) == {Tp(two.former.topic, 0): 4}
    two.kept.send(0, 5.7)
    two.archive(two.kept, two.former)
    assert two.ranges(two.both, 3) == ((4, 5), (4, 4))
    assert two.ranges(two.both, 5) == ((5, 6), (4, 5))


def test_position_of_a_topic_that_left_stays_when_a_loss_is_accepted(two: Two) -> None:
    two.leave()
    two.kept.send(0, *[1.6] * 3)
    futures = two.kept.admin.delete_records([TopicPartition(two.kept.topic, 0, 5)])
    next(iter(futures.values())).result(30)
    lost = generations.accept_loss(two.one, reason="expired", accepted_by="test@host")
    assert [(each.from_offset, each.until_offset) for each in lost] == [(3, 5)]
    known = micro_batches.positions(two.one.name)
    assert known == {Tp(two.kept.topic, 0): 5, Tp(two.former.topic, 0): 4}


def test_topic_that_left_is_adopted_when_it_was_created_again(two: Two) -> None:
    two.leave()
    two.former.delete()
    two.former.create(1)
    two.former.send(0, 2.1)
    assert two.ranges(two.one, 1) == ((2, 3), (2, 4))
    # A new generation passes over it: where another ledger has taken the topics over, it comes first.
    generations.new_generation(two.both, reason="back", started_by="test@host")
    with pytest.raises(TopicRecreated, match="was deleted and created again"):
        start.begin(two.both)
    adopted = generations.adopt(two.both, two.former.topic, reason="a new one", adopted_by="test@host")
    assert adopted["pinned"] is None
    start.begin(two.both)
    two.archive(two.kept, two.former)
    assert two.ranges(two.both, 2) == ((3, 3), (0, 1))


def test_generation_opens_when_a_topic_has_left_and_another_one_is_gone(two: Two) -> None:
    """`adopt` and `unsubscribe` send here where another ledger has taken the topics over."""
    two.leave()
    two.kept.delete()
    assert generations.new_generation(two.one, reason="taken over", started_by="test@host") == 2
    with pytest.raises(TopicRecreated, match="no longer exists"):
        start.begin(two.one)


def test_only_a_topic_that_was_read_and_is_declared_no_more_can_leave(two: Two) -> None:
    for pipeline, topic, words in (
        (two.both, two.former.topic, "the source still reads"),
        (two.one, two.kept.topic, "the source still reads"),
        (two.one, "never-read", "is not a topic that is read"),
    ):
        with pytest.raises(UsageError, match=words):
            generations.unsubscribe(pipeline, topic, reason="over", left_by="test@host")
    by_pattern = replace(two.one, source=KafkaTopics(pattern=f"{two.one.name}-.*"))
    with pytest.raises(UsageError, match="the source still reads"):
        generations.unsubscribe(by_pattern, two.former.topic, reason="over", left_by="test@host")
    two.former.delete()
    with pytest.raises(TopicRecreated, match="no longer exists") as raised:
        start.begin(by_pattern)
    assert f"./tidemark unsubscribe {two.one.name} {two.former.topic}" in raised.value.remedy
    generations.unsubscribe(by_pattern, two.former.topic, reason="over", left_by="test@host")
    start.begin(by_pattern)
    with pytest.raises(UsageError, match="is not a topic that is read"):
        two.leave()


def test_stream_and_intervals_are_refused_when_a_topic_partition_that_was_read_is_assigned_no_more(two: Two) -> None:
    name = f"{two.one.name}-halves"
    nest = replace(two.one, name=name.replace("-", "_"))
    all_of_it, both, one, none = (
        replace(nest, source=source)
        for source in (
            KafkaTopics(subscribe=(name,)),
            KafkaTopics(assign={name: (0, 1)}),
            KafkaTopics(assign={name: (0,)}),
            KafkaTopics(assign={two.kept.topic: (0,)}),
        )
    )
    log = Log(all_of_it)
    log.create(2)
    log.send(0, 0.2, 1.2, 5.5)
    log.send(1, 0.3, 1.3, 5.5)
    log.archive()
    assert by_partition(pin_interval(both, hour(0), pinned_by="test")) == {0: (0, 1), 1: (0, 1)}
    for refused in (
        start.begin,
        lambda each: pin_interval(each, hour(1), pinned_by="test"),
        lambda each: generations.accept_loss(each, reason="over", accepted_by="test@host"),
    ):
        with pytest.raises(UsageError, match=f"^{nest.name}: {name}-1 was read before, and the source does not") as no:
            refused(one)
        assert "assign it again" in no.value.remedy
        assert f"./tidemark unsubscribe {nest.name} {name} --reason" in no.value.remedy
    assert micro_batches.positions(nest.name) == {Tp(name, 0): 3, Tp(name, 1): 3}
    assert by_partition(pin_interval(both, hour(1), pinned_by="test")) == {0: (1, 2), 1: (1, 2)}
    generations.unsubscribe(none, name, reason="over", left_by="test@host")
    Log(replace(nest, source=KafkaTopics(subscribe=(two.kept.topic,))), log.batches).archive()
    assert by_partition_of(pin_interval(none, hour(2), pinned_by="test"), name) == {0: (2, 3), 1: (2, 3)}


def test_adopted_topic_is_read_where_it_is_assigned_and_nowhere_else(two: Two) -> None:
    one = replace(two.both, source=KafkaTopics(assign={two.kept.topic: (0,), two.former.topic: (0,)}))
    two.former.delete()
    two.former.create(2)
    adopted = generations.adopt(one, two.former.topic, reason="a new one", adopted_by="test@host")
    assert adopted["begins"] == {f"{two.former.topic}-0": 0}
    assert micro_batches.positions(one.name) == {Tp(two.kept.topic, 0): 3, Tp(two.former.topic, 0): 0}
    start.begin(one)


def test_stream_begins_when_earlier_code_gave_a_position_to_what_was_never_assigned(two: Two) -> None:
    one = replace(two.both, source=KafkaTopics(assign={two.kept.topic: (0,), two.former.topic: (0,)}))
    two.former.delete()
    two.former.create(2)
    generations.adopt(one, two.former.topic, reason="a new one", adopted_by="test@host")
    with session() as ledger:
        [row] = [each for each in position_rows(ledger, one.name, ARCHIVE) if each.topic == two.former.topic]
        ledger.add(
            Position(
                pipeline=one.name,
                query=ARCHIVE,
                topic=row.topic,
                topic_partition=1,
                next_offset=0,
                micro_batch_id=row.micro_batch_id,
            )
        )
    start.begin(one)
    assert boundaries.check_sources(one).keys() == {two.kept.topic, two.former.topic}
