"""The start of a stream: what holds queries that have started, and where each begins. Real Kafka and PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pytest
from confluent_kafka.admin import NewPartitions

from include import kafka, lake
from include.doctor.examine import cut_back
from include.errors import UsageError
from include.kafka.consumer_group import ConsumerGroup
from include.ledger.archive import micro_batches
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit
from include.ledger.streams import generations, lines
from include.ledger.streams.flags import FLAGS
from include.offsets import TopicPartition
from include.pipelines import load_pipeline
from include.pipelines.spec import JdbcTable, KafkaTopics, Pipeline
from include.pipelines.spec.lines import TextFiles
from include.quarantine import Selection
from include.serving.live_rows import merge
from include.serving.shape import shape_of
from include.streams.event_time import check_event_time
from include.streams.fingerprint import TABLE
from include.streams.generations import adopt, new_generation
from include.streams.new_code import fit_now
from include.streams.start import StreamStart, begin
from include.streams.written_topics import owner_of
from spark_jobs.sinks.speed_view import targets_of
from spark_jobs.streaming.speed_base import load_base
from tests.conftest import Home, settings_of, wait_for
from tests.support import audit
from tests.support.checkpoints import begin_checkpoint
from tests.support.leases import held_lease
from tests.support.topic_log import Log

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("in_process")]

VIEW = "hourly_counts"
OTHER_TIME = "last_is_online_change"
CONTENT = "content of reference device_locations"


@pytest.fixture
def pipeline(in_process: Home, tmp_path: Path) -> Pipeline:
    """nest_cameras with a reference of its own."""
    nest = load_pipeline("nest_cameras")
    reference = nest.references["device_locations"]
    own = tmp_path / "locations.csv"
    own.write_bytes(reference.path.read_bytes())
    return replace(nest, references={"device_locations": replace(reference, path=own)})


def add(pipeline: Pipeline, row: str) -> None:
    path = pipeline.references["device_locations"].path
    path.write_text(f"{path.read_text()}{row}\n")


def noted(pipeline: Pipeline) -> object:
    generation = generations.current(pipeline.name)
    assert generation is not None
    return generation.fingerprints[VIEW].get(CONTENT)


def note_begun(start: StreamStart, facts: Mapping[str, Any]) -> None:
    """Let the view have begun under these facts."""
    generations.note_start(start.generation, VIEW, facts, {})
    begin_checkpoint(start.generation, VIEW)


def test_stream_is_refused_when_a_row_was_added_unless_its_generation_has_not_noted_contents(
    pipeline: Pipeline,
) -> None:
    start = begin(pipeline)
    facts = dict(start.fingerprints[VIEW])
    content = facts.pop(CONTENT)
    note_begun(start, facts)
    assert noted(pipeline) is None

    begin(pipeline)
    assert noted(pipeline) == content

    add(pipeline, "cam-9999,10001")
    with pytest.raises(UsageError, match=f"{CONTENT} changed") as refused:
        begin(pipeline)
    assert "./tidemark new-generation nest_cameras --reason" in str(refused.value)
    assert noted(pipeline) == content


def test_stream_goes_on_after_an_upgrade_and_is_refused_when_an_option_of_its_decoder_changes_later(
    pipeline: Pipeline,
) -> None:
    # What 0.1.0 noted at a query's first start.
    start = begin(pipeline)
    facts = {name: value for name, value in start.fingerprints[VIEW].items() if not name.startswith("decoder's ")}
    note_begun(start, facts)

    begin(pipeline)
    generation = generations.current(pipeline.name)
    assert generation is not None
    assert generation.number == start.generation.number
    assert generation.fingerprints[VIEW] == start.fingerprints[VIEW]

    changed = replace(pipeline, decoder=replace(pipeline.decoder, max_bytes=9))
    with pytest.raises(UsageError, match="decoder's max_bytes: 1048576 → 9"):
        begin(changed)


def test_stream_goes_on_when_a_table_was_taken_out_and_is_refused_when_it_comes_back(pipeline: Pipeline) -> None:
    start = begin(pipeline)
    note_begun(start, {**start.fingerprints[VIEW], TABLE: "kept"})

    begin(pipeline)
    generation = generations.current(pipeline.name)
    assert generation is not None
    assert generation.fingerprints[VIEW] == start.fingerprints[VIEW]

    with pytest.raises(UsageError, match=f"{TABLE}: none → kept"):
        begin(replace(pipeline, views=(replace(pipeline.views[0], sinks=(JdbcTable(),)),)))


def test_first_start_is_refused_when_another_installation_wrote_values_to_its_view_s_topic(pipeline: Pipeline) -> None:
    view = replace(pipeline.views[0], speed=replace(pipeline.views[0].speed, topic="shared-counts"))
    first = replace(pipeline, name="begins_first", declared_as=pipeline.name, views=(view,), reports=())
    kafka.create_topic("shared-counts", 2, compacted=True)
    kafka.send("shared-counts", [(b"{}", b'{"count": 3, "version": 0}')])
    with pytest.raises(UsageError, match=f"the topic shared-counts has values that the view {VIEW} has not written"):
        begin(first)
    assert generations.current(first.name) is None
    assert new_generation(first, reason="it is gone for good", started_by="test@host") == 1
    assert begin(first).generation.number == 1


def test_stream_is_refused_when_its_consumer_group_s_positions_are_of_another_ledger(pipeline: Pipeline) -> None:
    begin(pipeline)
    at = {TopicPartition(pipeline.source.named[0], 0): 0}

    def commit(owner: str) -> None:
        group = ConsumerGroup(pipeline.name, owner)
        wait_for("the commit", lambda: not group.commit(at), 60)

    commit(own := owner_of(pipeline.name))
    begin(pipeline)
    commit("2026-11-20T05:00:00Z db:5432")
    with pytest.raises(UsageError, match="the stream of another ledger, of the one at db:5432"):
        begin(pipeline)
    new_generation(pipeline, reason="the other one is gone", started_by="test@host")
    begin(pipeline)
    commit(own)
    begin(pipeline)


def test_stream_is_refused_before_its_generation_is_asked_for_when_a_header_is_wrong(pipeline: Pipeline) -> None:
    before = generations.current(pipeline.name)
    pipeline.references["device_locations"].path.write_text("cam-0000,94103\n")
    with pytest.raises(UsageError, match="the first line of the reference device_locations"):
        begin(pipeline)
    assert generations.current(pipeline.name) == before


def reading(request: pytest.FixtureRequest, declared_as: str = "nest_cameras", **source: Any) -> Pipeline:
    """A pipeline under another name, with topics of its own: `{}` in `source` is that name."""
    name = f"p{crc32(request.node.name.encode())}_{os.getpid()}"
    named = (each.format(name) for each in source.get("subscribe", ()))
    source |= {"subscribe": tuple(named), "pattern": source.get("pattern", "").format(name)}
    return replace(load_pipeline(declared_as), name=name, declared_as=declared_as, source=KafkaTopics(**source))


def topic_of(pipeline: Pipeline, suffix: str) -> Log:
    """Return a new topic of the pipeline, of one topic partition and with 3 records."""
    log = Log(replace(pipeline, source=KafkaTopics(subscribe=(f"{pipeline.name}-{suffix}",))))
    log.create(1)
    log.send(0, 0.1, 0.2, 0.3)
    return log


def at(log: Log, offset: int) -> dict[TopicPartition, int]:
    return {TopicPartition(log.topic, 0): offset}


def test_stream_is_refused_when_another_pipeline_was_read_from_lines_by_its_name_before_it_archived_anything(
    request: pytest.FixtureRequest,
) -> None:
    pipeline = reading(request, subscribe=("{}-only",))
    log = topic_of(pipeline, "only")
    with held_lease(pipeline.name) as lease:
        lines.note_source(lease, pipeline, TextFiles.kind, TextFiles.guarantee)
    with pytest.raises(UsageError, match=rf"nest_cameras was read from lines under the name {pipeline.name}"):
        begin(pipeline)
    assert generations.current(pipeline.name) is None
    # As when both went on side by side before this was refused.
    log.archive()
    assert begin(pipeline).generation.number >= 0


def test_stream_is_refused_at_its_first_start_when_another_pipeline_wrote_its_served_table(
    request: pytest.FixtureRequest,
) -> None:
    pipeline = reading(request, subscribe=("{}-only",))
    pipeline = replace(pipeline, views=(replace(pipeline.views[0], sinks=(JdbcTable(),)),))
    topic_of(pipeline, "only")
    shape = shape_of(pipeline, pipeline.views[0])
    start = begin(pipeline)
    # Of this generation's base: the driver ended before the ledger had it.
    merge(shape, [], start.generation.version(-1))
    begin(pipeline)
    merge(shape, [], start.generation.version(7))
    with pytest.raises(UsageError, match=f"the table {shape.table} of serving was written before .* started"):
        begin(pipeline)
    # The driver ended after its first micro-batches.
    start.note(pipeline, VIEW)
    begin(pipeline)
    new_generation(pipeline, reason="a test", started_by="test@host")
    begin(pipeline)


@pytest.mark.parametrize("declared", [{"starting_offsets": "latest"}, {"starting_time": "2100-01-01T00:00:00Z"}])
def test_all_queries_begin_at_one_offset_when_records_arrive_between_their_starts(
    request: pytest.FixtureRequest, declared: dict[str, str]
) -> None:
    pipeline = reading(request, subscribe=("{}-only",), **declared)
    log = topic_of(pipeline, "only")
    start = begin(pipeline)
    assert start.note(pipeline, ARCHIVE) == at(log, 3)
    log.send(0, 0.4, 0.5)
    assert start.note(pipeline, VIEW) == at(log, 3)
    # As after a crash before the first micro-batch.
    assert begin(pipeline).note(pipeline, ARCHIVE) == at(log, 3)


def test_archive_begins_where_it_first_began_when_a_generation_opens_before_anything_was_read(
    request: pytest.FixtureRequest,
) -> None:
    pipeline = reading(request, subscribe=("{}-only",), starting_offsets="latest")
    log = topic_of(pipeline, "only")
    assert begin(pipeline).note(pipeline, ARCHIVE) == at(log, 3)
    log.send(0, 0.4, 0.5)
    new_generation(pipeline, reason="another view", started_by="test@host")
    start = begin(pipeline)
    assert [start.note(pipeline, query) for query in (ARCHIVE, VIEW)] == [at(log, 3), at(log, 3)]


@pytest.mark.spark
@pytest.mark.parametrize("has_committed", [True, False])
def test_view_begins_where_the_archive_does_with_an_empty_base_when_nothing_was_archived_before_a_generation(
    request: pytest.FixtureRequest, in_process: Home, spark: Any, has_committed: bool
) -> None:
    pipeline = reading(request, subscribe=("{}-only",))
    speed = replace(pipeline.views[0].speed, topic=f"{pipeline.name}-counts")
    pipeline = replace(pipeline, views=(replace(pipeline.views[0], speed=speed),))
    log = topic_of(pipeline, "only")
    if has_committed:
        begin(pipeline).note(pipeline, ARCHIVE)
        log.archive(query=VIEW)
    # Of a lost ledger, which had more generations.
    kafka.create_topic(speed.topic, 2, compacted=True)
    kafka.send(speed.topic, [(b"{}", b'{"count": 3, "version": 9000000000000}')])
    new_generation(pipeline, reason="the archive query failed", started_by="test@host")
    start = begin(pipeline)
    # Nobody renews it.
    with settings_of(in_process, TIDEMARK_LEASE_SECONDS="600"), held_lease(pipeline.name) as lease:
        targets = targets_of(pipeline, pipeline.views[0], lease)
        base = load_base(spark, pipeline, pipeline.views[0], lease, start, targets)
    assert base is not None
    assert base.every().count() == 0
    written = audit.read_topic(in_process.kafka, speed.topic).values()
    assert [(each.key, each.value is None) for each in written] == [(b"{}", False), (b"{}", True)]
    assert [start.note(pipeline, query) for query in (ARCHIVE, VIEW)] == [at(log, 0), at(log, 0)]


@pytest.mark.parametrize("has", ["checkpoint", "base"])
def test_code_may_be_corrected_until_a_view_has_a_checkpoint_or_a_base(
    request: pytest.FixtureRequest, has: str
) -> None:
    pipeline = reading(request, subscribe=("{}-only",))
    start = begin(pipeline)
    generations.note_start(start.generation, VIEW, {**start.fingerprints[VIEW], "window length": "1 day"}, {})
    # Its plan was refused.
    begin(pipeline)
    if has == "checkpoint":
        begin_checkpoint(start.generation, VIEW)
    else:
        with held_lease(pipeline.name) as lease:
            micro_batches.move_query(lease, BatchCommit(pipeline.name, VIEW, "base", start.generation.version(-1)))
    with pytest.raises(UsageError, match="window length: 1 day →"):
        begin(pipeline)


@pytest.mark.parametrize("declared", [{"starting_offsets": "latest"}, {"starting_time": "2100-01-01T00:00:00Z"}])
def test_all_that_kafka_has_is_read_when_the_ledger_was_lost_and_the_source_begins_at_the_end(
    request: pytest.FixtureRequest, declared: dict[str, str]
) -> None:
    pipeline = reading(request, subscribe=("{}-only",), **declared)
    log = topic_of(pipeline, "only")
    # What the stream left in the lake under the lost ledger.
    lake.write_text(lake.uri("checkpoints", pipeline.name, "g4", ARCHIVE, "commits", "0"), "v1\n{}")
    assert new_generation(pipeline, reason="the ledger is lost", started_by="test@host") == 5
    start = begin(pipeline)
    # As its base is made, which is before the queries start.
    start.note_base(VIEW)
    assert [start.note(pipeline, query) for query in (ARCHIVE, VIEW)] == [at(log, 0), at(log, 0)]


def test_source_begins_at_the_end_when_a_generation_that_only_made_a_base_was_replaced(
    request: pytest.FixtureRequest,
) -> None:
    pipeline = reading(request, subscribe=("{}-only",), starting_offsets="latest")
    log = topic_of(pipeline, "only")
    begin(pipeline)
    assert new_generation(pipeline, reason="a base of nothing", started_by="test@host") == 1
    begin(pipeline).note_base(VIEW)
    # Its driver ended before the archive query started.
    lake.write_text(lake.uri("checkpoints", pipeline.name, "g1", VIEW, "base", "0"), "")
    assert new_generation(pipeline, reason="another view", started_by="test@host") == 2
    assert begin(pipeline).note(pipeline, ARCHIVE) == at(log, 3)


def test_topic_partition_that_was_added_before_anything_was_read_begins_at_its_start(
    request: pytest.FixtureRequest,
) -> None:
    pipeline = reading(request, subscribe=("{}-only",), starting_offsets="latest")
    log = topic_of(pipeline, "only")
    assert begin(pipeline).note(pipeline, ARCHIVE) == at(log, 3)
    log.admin.create_partitions([NewPartitions(log.topic, 2)])[log.topic].result(30)
    wait_for("the topic partition", lambda: kafka.describe_topics([log.topic])[log.topic].topic_partitions == 2, 30)
    # The former one knows one topic partition for minutes.
    log.producer = kafka.producer()
    log.send(1, 0.4)
    assert begin(pipeline).note(pipeline, ARCHIVE) == at(log, 3) | {TopicPartition(log.topic, 1): 0}


def test_topic_that_appeared_later_is_read_from_its_start_when_the_source_is_a_pattern(
    request: pytest.FixtureRequest,
) -> None:
    pipeline = reading(request, pattern="{}-.*", starting_offsets="latest")
    first = topic_of(pipeline, "first")
    assert begin(pipeline).note(pipeline, ARCHIVE) == at(first, 3)
    first.archive()
    second = topic_of(pipeline, "second")
    new_generation(pipeline, reason="another view", started_by="test@host")
    start = begin(pipeline)
    assert start.note(pipeline, ARCHIVE) == at(first, 3) | at(second, 0)
    second.send(0, 0.4)
    assert start.note(pipeline, VIEW)[TopicPartition(second.topic, 0)] == 0


def test_named_topic_that_is_declared_later_begins_at_the_declared_start(request: pytest.FixtureRequest) -> None:
    pipeline = reading(request, subscribe=("{}-first",), starting_offsets="latest")
    first = topic_of(pipeline, "first")
    begin(pipeline).note(pipeline, ARCHIVE)
    first.archive()
    second = topic_of(pipeline, "second")
    both = replace(pipeline, source=replace(pipeline.source, subscribe=(first.topic, second.topic)))
    new_generation(both, reason="another topic", started_by="test@host")
    assert begin(both).note(both, ARCHIVE) == at(first, 3) | at(second, 3)


def test_flags_begin_where_their_first_start_was_to_begin_when_it_failed_after_a_topic_was_adopted(
    request: pytest.FixtureRequest,
) -> None:
    pipeline = reading(request, "auction_bids", subscribe=("{}-only",))
    log = topic_of(pipeline, "only")
    begin(pipeline)
    log.archive()
    log.archive(query=FLAGS)
    log.delete()
    log.create(1)
    log.producer = kafka.producer()
    log.send(0, 0.1, 0.2, 0.3, 0.4)
    adopt(pipeline, log.topic, reason="a test", adopted_by="test@host")
    for _ in range(2):
        # The former topic's flags were raised up to offset 3.
        assert begin(pipeline).note(pipeline, FLAGS) == at(log, 0)


def test_flags_begin_where_their_first_start_was_to_begin_when_they_were_declared_later_and_it_failed(
    request: pytest.FixtureRequest,
) -> None:
    pipeline = reading(request, "auction_bids", subscribe=("{}-only",))
    log = topic_of(pipeline, "only")
    without = replace(pipeline, flags=None)
    begin(without).note(without, ARCHIVE)
    log.archive()
    for _ in range(2):
        assert begin(pipeline).note(pipeline, FLAGS) == at(log, 3)
        log.send(0, 0.4)
        log.archive()


def test_stream_is_refused_until_a_new_generation_when_the_topic_of_a_view_is_gone_or_another(
    request: pytest.FixtureRequest,
) -> None:
    pipeline = reading(request, subscribe=("{}-logs",))
    (view,) = pipeline.views
    view = replace(view, speed=replace(view.speed, topic=f"{pipeline.name}-stats"))
    pipeline = replace(pipeline, views=(view,))
    log, topic = Log(pipeline), view.speed.topic

    def delete() -> None:
        log.admin.delete_topics([topic])[topic].result(30)
        wait_for("the topic to go", lambda: topic not in kafka.describe_topics([topic]), 30)

    begin(pipeline)
    wait_for("the topics", lambda: len(kafka.describe_topics([log.topic, topic])) == 2, 30)
    delete()
    # Nothing was written to it.
    begin(pipeline)
    wait_for("the topic", lambda: topic in kafka.describe_topics([topic]), 30)
    begin(pipeline)
    log.send(0, 0.5)
    log.archive(query=view.name)
    delete()
    for _ in range(2):
        with pytest.raises(UsageError, match=f"the topic {topic} is gone, and with it what the speed view"):
            begin(pipeline)
    (gone,) = cut_back(pipeline)
    assert gone.what.startswith(f"{pipeline.name}: the topic {topic} is gone, and with it")
    assert gone.remedy.endswith(f'./tidemark new-generation {pipeline.name} --reason "…"')
    assert new_generation(pipeline, reason="a test", started_by="test@host") == 1
    assert list(cut_back(pipeline)) == []
    begin(pipeline)
    wait_for("the topic", lambda: topic in kafka.describe_topics([topic]), 30)
    start = begin(pipeline)
    with held_lease(pipeline.name) as lease:
        number = start.generation.version(0)
        micro_batches.commit(lease, BatchCommit(pipeline.name, view.name, "second", number))
    delete()
    kafka.create_topic(topic, 1, compacted=True)
    wait_for("the topic", lambda: topic in kafka.describe_topics([topic]), 30)
    with pytest.raises(UsageError, match=f"the topic {topic} was created again") as refused:
        begin(pipeline)
    assert f"./tidemark new-generation {pipeline.name} --reason" in str(refused.value)


def test_other_event_time_is_refused_once_rows_are_archived_and_a_renamed_one_is_not(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_jobs.intervals import build
    from spark_jobs.quarantine.replay import replay

    pipeline = reading(request, subscribe=("{}-only",))
    log = topic_of(pipeline, "only")
    another = replace(pipeline, archive=replace(pipeline.archive, event_time=OTHER_TIME))
    begin(pipeline)
    # Nothing is archived.
    new_generation(another, reason="the time of the event", started_by="test@host")
    begin(another)
    new_generation(pipeline, reason="no, the first one", started_by="test@host")
    begin(pipeline).note(pipeline, ARCHIVE)
    log.archive()

    said = f"the event time was {pipeline.archive.event_time} and is {OTHER_TIME} now"
    with pytest.raises(UsageError, match=said):
        new_generation(another, reason="the time of the event", started_by="test@host")
    with pytest.raises(UsageError, match=said) as refused:
        begin(another)
    assert "a pipeline of another name" in str(refused.value)
    assert said in fit_now(another).needs
    # An interval would have tables with rows by two times.
    for check in ("check_storage", "check_own_tables"):
        monkeypatch.setattr(build, check, lambda _: None)
    with pytest.raises(UsageError, match=said):
        build.build(SimpleNamespace(pipeline=replace(another, references={})))  # type: ignore[arg-type]
    # So would a replay.
    with pytest.raises(UsageError, match=said):
        replay(None, another, Selection(), by="test@host")  # type: ignore[arg-type]

    archive = pipeline.archive
    columns = archive.columns.replace("last_event STRUCT", "latest STRUCT")
    rules = tuple(rule for rule in archive.rules if "last_event" not in str(rule))
    renamed = replace(
        archive, columns=columns, rules=rules, event_time="latest.start_time", renamed={"latest": "last_event"}
    )
    check_event_time(replace(pipeline, archive=renamed, views=(), flags=None, reports=()))
