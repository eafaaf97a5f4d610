"""An open transaction: nothing waits for the stream, and yet records lie in the topic that nobody may read."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from include import kafka
from include.cli import data
from include.errors import TopicRecreated
from include.monitor import lag
from include.monitor.lag import Lag
from include.monitor.streams import broker
from include.monitor.streams.broker import BrokerView
from include.monitor.streams.state import assess
from include.monitor.streams.waiting import HeldBack, seen_held_back
from include.offsets import TopicPartition
from tests.include.monitor.streams.test_state import KNOWN, PIPELINE, STOPPED, STUCK, TP, ago, seen

OTHER = TopicPartition(TP.topic, 1)
HELD = HeldBack(TP, 100, 107, ago(90))
TOLD = "eld back for 1 min 30 s: a transaction is open at offset 100 of nest-logs-0, 7 offsets lie behind it"


@pytest.mark.parametrize(
    ("known", "view", "held", "tone", "sentence"),
    [
        (KNOWN, seen(0), [HELD], "open", f"H{TOLD}."),
        (
            KNOWN,
            seen(0),
            [HeldBack(OTHER, 5, 6, ago(70)), HELD],
            "open",
            f"H{TOLD}, and 1 other topic partition is held back.",
        ),
        (
            KNOWN,
            seen(0),
            [replace(HELD, since=ago(700))],
            "bad",
            f"H{TOLD.replace('1 min 30 s', '11 min 40 s')}.",
        ),
        (
            STOPPED,
            seen(9, 290),
            [HELD],
            "bad",
            "No driver runs, the last sign of one is 5 min old; 9 offsets wait, the first for 4 min 50 s; h"
            + f"{TOLD}.",
        ),
        # Producers' usual transactions.
        (KNOWN, seen(0), [replace(HELD, since=ago(59))], "good", "Keeping up, nothing waits."),
    ],
)
def test_sentence_tells_the_transaction_when_it_is_open_for_long(
    known: object, view: BrokerView, held: list[HeldBack], tone: str, sentence: str
) -> None:
    state = assess(PIPELINE, known, replace(view, held_back=tuple(held)))  # type: ignore[arg-type]
    assert (state.tone, state.sentence) == (tone, sentence)
    assert state.remedy.endswith("(kafka-transactions.sh find-hanging, abort)") == (tone != "good")


def test_both_remedies_are_told_when_the_stream_is_stalled_too() -> None:
    state = assess(PIPELINE, STUCK, replace(seen(1, 1100), held_back=(HELD,)))
    assert state.remedy.startswith("./tidemark lag nest_cameras; read the driver's log; end the producer's transaction")


def test_transaction_is_named_when_the_lag_ends_before_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lag, "lag_of", lambda _: [Lag("isp_hits", "archive", TP.topic, 0, 100, 100)])
    monkeypatch.setattr(lag, "log_error", lambda *_: None)
    ends = {"read_committed": 100, "read_uncommitted": 107}
    monkeypatch.setattr(kafka, "end_offsets", lambda _, isolation: {TP: ends[isolation]})
    data.lag("isp_hits")
    told = "a transaction is open at offset 100 of nest-logs-0, 7 offsets lie behind it"
    assert told in capsys.readouterr().err
    ends["read_uncommitted"] = 100
    data.lag("isp_hits")
    assert "transaction" not in capsys.readouterr().err


def test_pipeline_is_in_the_json_when_its_topic_is_gone_and_has_no_lags(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lag, "lag_of", lambda _: [])
    monkeypatch.setattr(lag, "log_error", lambda *_: TopicRecreated("topic nest-logs is gone", remedy="restore it"))
    data.lag("isp_hits", as_json=True)
    [told] = json.loads(capsys.readouterr().out)
    assert (told.pop("pipeline"), told.pop("log_error")) == ("isp_hits", "topic nest-logs is gone")
    assert told == dict.fromkeys(("query", "topic", "partition", "committed", "end", "lag"))


def test_wait_begins_anew_when_the_stable_end_moves() -> None:
    first = seen_held_back({}, {TP: 5, OTHER: 3}, {TP: 9, OTHER: 3}, ago(50))
    assert first == {TP: HeldBack(TP, 5, 9, ago(50))}
    same = seen_held_back(first, {TP: 5, OTHER: 3}, {TP: 12, OTHER: 3}, ago(40))
    assert same == {TP: HeldBack(TP, 5, 12, ago(50))}
    assert seen_held_back(same, {TP: 12}, {TP: 14}, ago(30)) == {TP: HeldBack(TP, 12, 14, ago(30))}
    assert seen_held_back(same, {TP: 12}, {TP: 12}, ago(30)) == {}


def test_open_transaction_is_seen_when_the_log_ends_behind_its_first_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {"read_committed": 100, "read_uncommitted": 107}
    monkeypatch.setattr(kafka, "offset_bounds", lambda _: {TP: (0, 100)})
    monkeypatch.setattr(kafka, "end_offsets", lambda _, isolation: {TP: ends[isolation]})
    monkeypatch.setattr(broker, "committed_offsets", lambda _: {"archive": {TP: 100}})
    monkeypatch.setattr(broker, "queries_that_run", lambda _: ("archive",))
    monkeypatch.setattr(kafka, "record_times", lambda _: {})
    known = broker._Pipeline(PIPELINE, 0, 0, topic_partitions=[TP], described_at=time.monotonic())
    [first] = broker._seen_now(known).held_back
    [again] = broker._seen_now(known).held_back
    assert (first.stable, first.end) == (100, 107)
    assert again.since == first.since
    assert lag.open_transactions([Lag("p", "archive", TP.topic, 0, 100, 100)]) == {TP: (100, 107)}
    ends["read_uncommitted"] = 100
    assert broker._seen_now(known).held_back == ()
    assert lag.open_transactions([Lag("p", "archive", TP.topic, 0, 100, 100)]) == {}
