"""Decisions about a stream, as a person is asked and as they are carried out. Real broker and ledger."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from include.approvals.choices import carry_out, digest_of_facts, what_is_known
from include.approvals.request import Choice, Request
from include.errors import AnotherWriter, UsageError
from include.ledger.archive.micro_batches import ARCHIVE
from include.ledger.streams import generations
from include.pipelines import load_pipeline
from include.pipelines.spec import KafkaTopics, Pipeline
from include.streams import start
from tests.conftest import Home
from tests.support.checkpoints import begin_checkpoint
from tests.support.leases import held_lease
from tests.support.topic_log import Log

pytestmark = pytest.mark.services


@pytest.fixture
def logs(in_process: Home, request: pytest.FixtureRequest) -> tuple[Log, Log]:
    """Two topics of one pipeline that were archived, but for one record of the second."""
    name = f"p{abs(hash(request.node.name)) % 10**10}_{os.getpid()}"
    nest = replace(load_pipeline("nest_cameras"), name=name, views=(), reports=())
    kept, former = (Log(replace(nest, source=KafkaTopics(subscribe=(f"{name}-{n}",)))) for n in ("kept", "former"))
    for number, log in enumerate((kept, former)):
        log.create(1)
        log.send(0, 0.2, 0.8)
        log.batches = number + 1
        log.archive()
    former.send(0, 1.2)
    return kept, former


def started(*logs: Log) -> Pipeline:
    """Start the archive query of a pipeline that reads these topics."""
    pipeline = replace(logs[0].pipeline, source=KafkaTopics(subscribe=tuple(log.topic for log in logs)))
    begun = start.begin(pipeline)
    generations.note_start(begun.generation, ARCHIVE, begun.fingerprints[ARCHIVE], {})
    begin_checkpoint(begun.generation, ARCHIVE)
    return pipeline


def test_topic_is_left_where_the_person_was_shown(logs: tuple[Log, Log]) -> None:
    kept, former = logs
    request = Request(Choice.LEAVE, kept.pipeline, topic=former.topic)
    with pytest.raises(UsageError, match="the source still reads"):
        what_is_known(replace(request, pipeline=started(kept, former)))
    lines = what_is_known(request)
    assert lines[0] == f"stop reading topic of {kept.pipeline.name}"
    assert f"left: {former.topic}-0 at offset 2" in lines
    assert "unread: 1 records wait beyond, and are not read" in lines
    shown = digest_of_facts(request)

    former.send(0, 1.3)
    assert digest_of_facts(request) == shown
    former.batches = kept.batches = former.batches + 1
    former.archive()
    with pytest.raises(UsageError, match="no longer those that were shown"):
        carry_out(request, digest=shown, reason="over", by="airflow ada")

    done = carry_out(request, digest=digest_of_facts(request), reason="over", by="airflow ada")
    assert "unread: 0" in done
    left = generations.current(kept.pipeline.name)
    assert left is not None
    assert f"generation: {left.number}" in done
    with pytest.raises(UsageError, match="is not a topic that is read"):
        what_is_known(request)


def test_new_generation_is_begun_when_the_person_saw_why_the_stream_is_refused(logs: tuple[Log, Log]) -> None:
    kept, former = logs
    both = started(kept, former)
    unneeded = what_is_known(Request(Choice.NEW_GENERATION, both))
    first = generations.current(both.name)
    assert first is not None
    assert unneeded[1:3] == [f"current: generation {first.number}", "nothing known keeps the stream from continuing"]

    third = Log(replace(kept.pipeline, source=KafkaTopics(subscribe=(f"{kept.pipeline.name}-third",))))
    third.create(1)
    changed = replace(both, source=KafkaTopics(subscribe=(*both.source.subscribe, third.topic)))
    with pytest.raises(UsageError, match="was made by another query") as refused:
        start.begin(changed)
    request = Request(Choice.NEW_GENERATION, changed)
    lines = what_is_known(request)
    assert [line for line in lines if line.startswith("refused: ")] == [f"refused: {refused.value}"[: len(lines[2])]]
    shown = digest_of_facts(request)

    with held_lease(changed.name):
        assert any(line.startswith("first: a driver still runs") for line in what_is_known(request))
        with pytest.raises(AnotherWriter):
            carry_out(request, digest=shown, reason="a third topic", by="airflow ada")

    assert carry_out(request, digest=shown, reason="a third topic", by="airflow ada") == [
        f"generation {first.number + 1} begins when the stream is started"
    ]
    assert start.begin(changed).generation.number == first.number + 1
    with pytest.raises(UsageError, match="no longer those that were shown"):
        carry_out(request, digest=shown, reason="twice", by="airflow ada")


def test_there_is_nothing_to_decide_when_a_stream_was_never_started(in_process: Home) -> None:
    never = replace(load_pipeline("nest_cameras"), name=f"never_{os.getpid()}")
    with pytest.raises(UsageError, match="never started"):
        what_is_known(Request(Choice.NEW_GENERATION, never))
