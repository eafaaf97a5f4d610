"""The lag against a real broker: since when records wait, whatever their timestamps, also when the broker is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from include.ledger.streams.overview import overview
from include.monitor.lag import lag_of
from include.monitor.streams.broker import BrokerWatch, broker_watch
from include.monitor.streams.metrics import metrics_text
from include.monitor.streams.state import assess
from include.pipelines import load_pipeline
from include.streams import generations
from tests.conftest import Home, wait_for
from tests.support.topic_log import Log

pytestmark = [pytest.mark.services, pytest.mark.own_services]

PIPELINE = load_pipeline("nest_cameras")


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Stop the process's watch of this module's broker: later modules have their own."""
    yield
    broker_watch.cache_clear()


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
    log.create(1)
    log.send(0, 0.5, 0.6)
    generations.adopt(pipeline, log.topic, reason="moved", adopted_by="test@host")
    seen = wait_for("the broker", lambda: (seen := watch.view(pipeline)).lags and seen)
    assert [(each.committed, each.lag) for each in seen.lags if each.query == view] == [(0, 2)]
    assert list(seen.lags) == lag_of(pipeline)


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
