"""Logs that were cut back, by a broker whose disk was put back to an older copy: streams and intervals refuse them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import TopicPartition

from include.cli import data
from include.doctor import examine
from include.doctor.examine import cut_back
from include.errors import LogTruncated
from include.monitor.lag import lag_of, log_error
from include.monitor.streams import broker
from include.pipelines import load_pipeline
from include.services import supervisor
from include.services.process import ServiceStatus
from include.streams.start import check_retention
from tests.conftest import Home, settings_of
from tests.support.broker_copy import BrokerCopy
from tests.support.shipped import all_pipelines
from tests.support.topic_log import Log, new_log

pytestmark = [pytest.mark.services, pytest.mark.own_services]


NAMES = ("shorter", "rewritten", "resent", "expired")


@pytest.fixture(scope="module")
def logs(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Log]]:
    """Topics whose first hour is pinned up to offset 4 of 5, and that then were cut back to their first two records."""
    with settings_of(home, TIDEMARK_ARCHIVE_WAIT="1s"):
        every = {name: new_log(name, 1) for name in NAMES}
        for log in every.values():
            log.send(0, 0.1, 0.2)
        copy = BrokerCopy.of(home, tmp_path_factory.mktemp("broker") / "copy")
        for log in every.values():
            log.send(0, 0.3, 0.4, 1.1)
            log.archive()
            assert log.pin(0) == {0: (0, 4)}
        # The producers' sequences are those of the longer logs: the broker would refuse what they send.
        every = {name: Log(log.pipeline, log.batches) for name, log in every.items()}
        copy.put_back()
        yield every
        # Clients that outlive their broker go on looking for it, and say so.
        every.clear()


def archived(log: Log, *hours: float) -> None:
    """Records after the log was cut back; the archive goes on from where it was."""
    log.send(0, *hours)
    log.archive()


@pytest.mark.parametrize(
    "step", [lambda log: check_retention(log.pipeline, None), lambda log: log.pin(1)], ids=["stream", "interval"]
)
def test_topic_partition_and_offsets_are_named_when_a_log_ends_before_what_was_read(
    logs: dict[str, Log], step: Callable[[Log], object]
) -> None:
    log = logs["shorter"]
    with pytest.raises(LogTruncated, match=f"{log.topic}-0 ends at offset 2, it was read up to 5 before") as raised:
        step(log)
    assert "A log that was cut back" in raised.value.remedy
    assert raised.value.exit_code == 4


def test_lag_and_pages_tell_which_topic_partitions_end_before_what_was_read(
    logs: dict[str, Log], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = logs["shorter"]
    lags = lag_of(log.pipeline)
    assert {(each.topic, each.committed, each.end, each.lag) for each in lags} == {(log.topic, 5, 2, 0)}
    error = log_error(log.pipeline, lags)
    assert error is not None
    assert f"{log.topic}-0 ends at offset 2, it was read up to 5 before" in error.message
    monkeypatch.setattr(data, "load_pipeline", lambda name: log.pipeline)
    data.lag(log.pipeline.name, as_json=True, metrics=False)
    shown = capsys.readouterr()
    assert {(each["lag"], each["log_error"]) for each in json.loads(shown.out)} == {(0, error.message)}
    assert "A log that was cut back" in shown.err
    suggested: list[str] = []
    monkeypatch.setattr(data, "suggest", suggested.append)
    data.lag(log.pipeline.name, as_json=False, metrics=False)
    assert not suggested, "a lag of 0 does not say that it is the interval's turn"
    capsys.readouterr()
    data.lag(log.pipeline.name, as_json=False, metrics=True)
    assert "tidemark_lag_offsets{" not in capsys.readouterr().out
    seen = broker._seen_now(broker._Pipeline(log.pipeline, 0.0, 0.0))
    assert f"{log.topic}-0 ends at offset 2, it was read up to 5 before" in seen.log_error
    assert "A log that was cut back" in seen.log_remedy


def test_doctor_names_what_a_log_lacks(logs: dict[str, Log]) -> None:
    [found] = cut_back(logs["shorter"].pipeline)
    assert not found.ok
    assert f"{logs['shorter'].topic}-0 ends at offset 2, it was read up to 5 before" in found.what
    assert list(cut_back(load_pipeline("nest_cameras"))) == []


@pytest.mark.parametrize("answers", [True, False])
def test_doctor_waits_once_for_a_broker_that_is_away(
    logs: dict[str, Log], monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(examine, "check_log", lambda pipeline: asked.append(pipeline.name))
    monkeypatch.setattr(examine, "examine_machine", tuple)
    states = {"kafka": ServiceStatus("broker:9092", answers, None), "airflow": ServiceStatus("", False, None)}
    monkeypatch.setattr(supervisor, "status", lambda: states)
    examine.examine(deep=False)
    assert asked == ([each.name for each in all_pipelines()] if answers else [])


def test_next_interval_is_refused_when_other_records_have_taken_the_offsets_of_a_pinned_one(
    logs: dict[str, Log],
) -> None:
    log = logs["rewritten"]
    archived(log, 1.2, 1.3, 1.4, 1.5, 2.1)
    check_retention(log.pipeline, None)
    with pytest.raises(LogTruncated, match=f"{log.topic}-0 offset 3 holds a record of .*truncated and written again"):
        log.pin(1)
    assert [each.ranges[0].until_offset for each in log.pinned()] == [4]


def test_next_interval_is_pinned_when_the_same_records_were_sent_again(logs: dict[str, Log]) -> None:
    log = logs["resent"]
    archived(log, 0.3, 0.4, 1.1, 1.2, 2.1)
    assert log.pin(1) == {0: (4, 6)}


def test_next_interval_is_pinned_when_retention_has_removed_the_record_before_it(logs: dict[str, Log]) -> None:
    log = logs["expired"]
    archived(log, 1.2, 1.3, 1.4, 1.5, 2.1)
    at = TopicPartition(log.topic, 0, 4)
    log.admin.delete_records([at])[at].result(30)
    assert log.pin(1) == {0: (4, 6)}
