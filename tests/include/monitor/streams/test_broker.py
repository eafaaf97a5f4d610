"""The lag against a real broker: since when records wait, whatever their timestamps, also when the broker is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from include.doctor.examine import cut_back
from include.ledger.streams.overview import overview
from include.monitor.lag import lag_of, log_error
from include.monitor.streams import broker
from include.monitor.streams.broker import BrokerView, BrokerWatch, broker_watch
from include.monitor.streams.metrics import metrics_text
from include.monitor.streams.state import assess
from include.offsets import TopicPartition
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline
from include.streams import generations
from tests.conftest import Home, wait_for
from tests.support.topic_log import START, Log

pytestmark = [pytest.mark.services, pytest.mark.own_services]

PIPELINE = load_pipeline("nest_cameras")


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Stop the process's watch of this module's broker: later modules have their own."""
    yield
    broker_watch.cache_clear()


def looked_at_now(pipeline: Pipeline) -> BrokerView:
    """What the first look shows of a process that was just started."""
    return broker._seen_now(broker._Pipeline(pipeline, 0.0, 0.0))


def test_lag_of_a_view_is_that_of_the_new_topic_when_a_topic_that_was_created_again_is_adopted(
    in_process: Home,
) -> None:
    pipeline = load_pipeline("isp_hits")
    log, watch, view = Log(pipeline), BrokerWatch(), pipeline.views[0].name
    log.create(1)
    log.send(0, 0.1, 0.2, 0.3, 0.4)
    log.archive()
    log.archive(query=view)
    log.delete()
    gone = looked_at_now(pipeline).log_error
    assert gone.startswith(f"topic {log.topic} (id ")
    assert [(each.ok, each.what) for each in cut_back(pipeline)] == [(False, f"isp_hits: {gone}")]
    log.create(1)
    log.send(0, 0.5, 0.6, 0.7, 0.8, 0.9)
    # It has grown beyond the positions: no offset tells that it is another topic.
    other = looked_at_now(pipeline)
    assert "was deleted and created again" in other.log_error
    assert "./tidemark adopt isp_hits" in other.log_remedy
    error = log_error(pipeline, lag_of(pipeline))
    assert error is not None
    assert (error.message, error.remedy) == (other.log_error, other.log_remedy)
    # Nor is an end minus an offset of the old topic a lag.
    told = metrics_text([pipeline])
    assert b'tidemark_stream_state{pipeline="isp_hits",state="bad"} 1.0' in told
    assert b"tidemark_lag_offsets{" not in told
    generations.adopt(pipeline, log.topic, reason="moved", adopted_by="test@host")
    seen = wait_for("the broker", lambda: (seen := watch.view(pipeline)).lags and seen)
    assert [(each.committed, each.lag) for each in seen.lags if each.query == view] == [(0, 5)]
    assert list(seen.lags) == lag_of(pipeline)
    assert seen.log_error == ""


def test_wait_of_a_view_is_told_by_its_own_record_when_the_pages_were_started_after_it_came(in_process: Home) -> None:
    pipeline = load_pipeline("gps_positions")
    log, view = Log(pipeline), pipeline.views[0].name
    log.create(1)
    log.send(0, 0.1, 0.2)
    log.archive(query=view)
    log.send(0, 0.3, 0.4)
    log.archive()
    seen = looked_at_now(pipeline)
    assert (seen.waiting_since, seen.since[view]) == (None, START + timedelta(hours=0.3))
    # Nor does a look before it came tell, if nobody has looked since: the pages were closed.
    known = broker._Pipeline(pipeline, 0.0, 0.0)
    known.ends.note(START, {TopicPartition(log.topic, 0): 2})
    assert broker._seen_now(known).since[view] == START + timedelta(hours=0.3)


def test_lag_in_seconds_is_the_time_that_records_wait_and_grows_when_the_broker_is_killed(in_process: Home) -> None:
    log, watch = Log(PIPELINE), BrokerWatch()
    log.create(2)
    log.send(0, 0.1, 0.2)
    log.archive()
    view = wait_for("the broker", lambda: (seen := watch.view(PIPELINE)).lags and seen)
    assert [each.lag for each in view.lags if each.query == "archive"] == [0, 0]
    assert view.waiting_since is None
    before = view.seen_at
    # Their timestamps lie hours back: they came just now.
    log.send(0, 0.3, 0.4)
    log.send(1, 0.5)
    view = wait_for("the records", lambda: (seen := watch.view(PIPELINE)).waiting_since and seen)
    assert sum(each.lag for each in view.lags if each.query == "archive") == 3
    assert before <= view.waiting_since <= datetime.now(UTC)
    assert b"tidemark_end_offset{" in metrics_text([PIPELINE])
    first = assess(PIPELINE, overview(PIPELINE.name), view).lag
    assert first.offsets == 3
    os.kill(in_process.services["kafka"]["pid"], signal.SIGKILL)
    view = wait_for("the outage", lambda: (seen := watch.view(PIPELINE)).error and seen)
    state = assess(PIPELINE, overview(PIPELINE.name), view)
    assert state.sentence.startswith("Kafka cannot be seen for ")
    assert state.lag.offsets == 3
    assert state.lag.seconds > first.seconds
    assert state.remedy == "./tidemark status; ./tidemark up kafka"
    # Old numbers would look like new ones.
    is_away = b'tidemark_broker_up{pipeline="nest_cameras"} 0.0'
    told = wait_for("the metrics to tell it", lambda: is_away in (text := metrics_text([PIPELINE])) and text)
    assert b"tidemark_end_offset{" not in told
    assert b"tidemark_lag_offsets{" not in told


def test_question_is_answered_within_moments_when_the_broker_was_never_seen(in_process: Home) -> None:
    view = BrokerWatch().view(load_pipeline("isp_hits"))
    assert view.error
    assert view.seen_at is None
