"""A stream's sentence and tone by what ledger and broker tell, and since when the first uncommitted record waits."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from include.ledger.streams.overview import StreamOverview
from include.ledger.streams.writers import LiveWriter
from include.monitor.lag import Lag
from include.monitor.streams.broker import BrokerView
from include.monitor.streams.state import assess
from include.monitor.streams.waiting import SeenEnds, waiting_since
from include.offsets import TopicPartition
from include.pipelines import load_pipeline
from include.processes import ProcessIdentity, ProcessOnHost

PIPELINE = load_pipeline("nest_cameras")
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
TP = TopicPartition("nest-logs", 0)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


LIVE = LiveWriter(ProcessOnHost("host-1", ProcessIdentity(4711)), 7, ago(3600), ago(1), "local-1")
KNOWN = StreamOverview("nest_cameras", NOW, LIVE, 7, ago(1), 2, "first", ago(2), 1000, 0)


def seen(offsets: int, seconds: float | None = None, **more: object) -> BrokerView:
    lags = (Lag("nest_cameras", "archive", "nest-logs", 0, 100, 100 + offsets),)
    since = None if seconds is None else ago(seconds)
    return replace(BrokerView(lags, since, "steady", ago(1)), **more)


def view_behind(offsets: int, seconds: float | None = None, **more: object) -> BrokerView:
    """An archive that keeps up, and a view that does not."""
    archive = seen(3, 1.2)
    lag = Lag("nest_cameras", "hourly_counts", "nest-logs", 0, 100, 100 + offsets)
    since = {} if seconds is None else {"hourly_counts": ago(seconds)}
    return replace(archive, lags=(*archive.lags, lag), since=since, **more)


MOVES, HANGS = (replace(KNOWN, moved={"hourly_counts": ago(age)}) for age in (5, 1200))
STOPPED = replace(KNOWN, writer=None, last_holder_seen=ago(300))
NEVER = replace(KNOWN, writer=None, last_holder_seen=None, committed_at=None, token=0)
STUCK = replace(KNOWN, committed_at=ago(1200))


@pytest.mark.parametrize(
    ("known", "broker", "tone", "sentence"),
    [
        (KNOWN, seen(0), "good", "Keeping up, nothing waits."),
        (KNOWN, seen(3, 1.2), "good", "Keeping up, 1.2 s behind."),
        (
            replace(KNOWN, quarantined=3),
            seen(3, 1.2),
            "good",
            "Keeping up, 1.2 s behind; 3 records in quarantine in the last hour.",
        ),
        (
            KNOWN,
            seen(500, 120, direction="growing"),
            "bad",
            "Falling behind, 2 min behind, and more: 500 offsets wait, the first for 2 min.",
        ),
        (
            KNOWN,
            seen(500, 120, direction="falling"),
            "open",
            "Catching up, 2 min behind: 500 offsets wait, the first for 2 min.",
        ),
        (
            STUCK,
            seen(1, 1100),
            "bad",
            "Stalled: the driver lives, but has committed nothing for 20 min; 1 offset waits, the first for "
            "18 min 20 s.",
        ),
        (STUCK, seen(0), "good", "Keeping up, nothing waits."),
        # The topic was silent until now.
        (STUCK, seen(1, 1.5), "good", "Keeping up, 1.5 s behind."),
        (MOVES, view_behind(40, 3), "good", "Keeping up, 1.2 s behind."),
        (
            HANGS,
            view_behind(4000, 1100),
            "bad",
            "Stalled: the driver lives, but hourly_counts has committed nothing for 20 min; 4,000 offsets wait for "
            "hourly_counts, the first for 18 min 20 s.",
        ),
        # The page was opened a moment ago: how long the record waits is not known.
        (
            HANGS,
            view_behind(4000),
            "bad",
            "Stalled: the driver lives, but hourly_counts has committed nothing for 20 min; 4,000 offsets wait for "
            "hourly_counts.",
        ),
        (
            MOVES,
            view_behind(4000, 120),
            "open",
            "The query hourly_counts is behind: 4,000 offsets wait for hourly_counts, the first for 2 min.",
        ),
        # Since when it waits nobody has seen: what is not known is not good.
        (
            MOVES,
            view_behind(4_000_000, directions={"hourly_counts": "growing"}),
            "bad",
            "The query hourly_counts is falling behind, and more: 4,000,000 offsets wait for hourly_counts.",
        ),
        (MOVES, view_behind(9), "open", "The query hourly_counts is behind: 9 offsets wait for hourly_counts."),
        (KNOWN, seen(500, direction="falling"), "open", "Catching up: 500 offsets wait."),
        (
            MOVES,
            view_behind(4000, 120, directions={"hourly_counts": "growing"}),
            "bad",
            "The query hourly_counts is falling behind, 2 min behind, and more: 4,000 offsets wait for hourly_counts, "
            "the first for 2 min.",
        ),
        (
            replace(STOPPED, moved=HANGS.moved),
            replace(view_behind(40, 90), lags=(*seen(0).lags, view_behind(40).lags[1])),
            "bad",
            "No driver runs, the last sign of one is 5 min old; 40 offsets wait for hourly_counts, the first for "
            "1 min 30 s.",
        ),
        (
            STOPPED,
            seen(9, 290),
            "bad",
            "No driver runs, the last sign of one is 5 min old; 9 offsets wait, the first for 4 min 50 s.",
        ),
        (STOPPED, seen(0), "open", "No driver runs, the last sign of one is 5 min old; nothing waits."),
        (NEVER, seen(4, 60), "open", "Never started; 4 offsets wait, the first for 1 min."),
        (
            STOPPED,
            seen(9, 290, error="Kafka at h:1: refused", seen_at=ago(120)),
            "bad",
            "Kafka cannot be seen for 2 min; last known: no driver runs, the last sign of one is 5 min old; 9 offsets "
            "wait, the first for 4 min 50 s.",
        ),
        (KNOWN, BrokerView(error="Kafka at h:1: refused"), "bad", "Kafka at h:1: refused."),
    ],
)
def test_sentence_fits_when_ledger_and_broker_report_a_state(
    known: StreamOverview, broker: BrokerView, tone: str, sentence: str
) -> None:
    state = assess(PIPELINE, known, broker)
    assert (state.tone, state.sentence) == (tone, sentence)
    assert bool(state.remedy) == (tone == "bad" or known is NEVER)


@pytest.mark.parametrize("known", [KNOWN, STOPPED])
def test_log_is_told_instead_of_a_lag_when_it_ends_before_what_was_read(known: StreamOverview) -> None:
    error = "nest-logs-0 ends at offset 90, it was read up to 100 before: the log was truncated"
    cut = replace(seen(0), log_error=error, log_remedy="put the log back")
    state = assess(PIPELINE, known, cut)
    assert (state.tone, state.sentence, state.remedy) == ("bad", f"N{error[1:]}.", "put the log back")
    assert (state.lag.offsets, state.lag.seconds, state.lag.queries) == (None, None, ())
    away = assess(PIPELINE, known, replace(cut, error="refused", seen_at=ago(120)))
    assert away.sentence == f"Kafka cannot be seen for 2 min; last known: {error}."
    assert away.remedy == "./tidemark status; ./tidemark up kafka"
    refused = replace(cut, error="a right is missing", error_remedy="grant it")
    assert assess(PIPELINE, known, refused).remedy == "grant it"


def test_seconds_go_on_growing_when_the_broker_is_not_seen_any_more() -> None:
    gone = seen(9, 30, error="refused", seen_at=ago(5))
    later = replace(KNOWN, read_at=NOW + timedelta(seconds=60))
    assert (assess(PIPELINE, KNOWN, gone).lag.seconds, assess(PIPELINE, later, gone).lag.seconds) == (30, 90)


def test_waiting_is_told_by_the_record_when_its_end_was_not_seen() -> None:
    assert waiting_since({TP: 5}, {TP: ago(40)}, SeenEnds(), NOW) == ago(40)


def test_waiting_is_told_by_the_end_seen_before_when_a_timestamp_is_older_than_the_record() -> None:
    ends = SeenEnds()
    ends.note(ago(60), {TP: 5})
    ends.note(ago(30), {TP: 5})
    ends.note(ago(10), {TP: 9})
    assert waiting_since({TP: 5}, {TP: ago(7200)}, ends, NOW) == ago(30)
    assert waiting_since({TP: 9}, {TP: ago(7200)}, ends, NOW) == ago(10)
    assert waiting_since({TP: 4}, {TP: ago(7200)}, ends, NOW) == ago(7200)


def test_waiting_never_lies_ahead_when_a_producers_clock_does() -> None:
    assert waiting_since({TP: 5}, {TP: NOW + timedelta(days=3650)}, SeenEnds(), NOW) == NOW


def test_wait_grows_from_the_first_look_that_saw_the_record_when_its_timestamp_lies_ahead() -> None:
    ends, ahead = SeenEnds(), NOW + timedelta(days=3650)
    ends.note(ago(1300), {TP: 5})
    for seconds in range(1200, 0, -3):
        ends.note(ago(seconds), {TP: 105})
    since = waiting_since({TP: 5}, {TP: ahead}, ends, NOW)
    assert since == ago(1200)
    told = assess(PIPELINE, STUCK, replace(seen(100), waiting_since=since))
    assert (told.tone, told.lag.seconds) == ("bad", 1200)
    assert told.sentence.startswith("Stalled: the driver lives, but has committed nothing for 20 min; 100 offsets wait")


def test_wait_of_hours_is_known_when_the_topic_grew_at_every_look() -> None:
    ends = SeenEnds()
    for look in range(10_000):
        ends.note(ago(30_000 - 3 * look), {TP: 100 * look})
    for offset, appended in ((1, 30_000), (500_000, 15_000), (990_000, 300)):
        since = waiting_since({TP: offset}, {}, ends, NOW)
        assert since is not None
        assert 0 <= (NOW - since).total_seconds() - appended <= 0.05 * appended
    assert len(ends._ends[TP]) <= 600


def test_longest_waiting_counts_when_topic_partitions_differ() -> None:
    other = TopicPartition("nest-logs", 1)
    assert waiting_since({TP: 5, other: 9}, {TP: ago(40), other: ago(90)}, SeenEnds(), NOW) == ago(90)
    assert waiting_since({TP: 5}, {}, SeenEnds(), NOW) is None


def test_ends_begin_anew_when_a_topic_is_another_one() -> None:
    ends = SeenEnds()
    ends.note(ago(60), {TP: 500})
    ends.note(ago(10), {TP: 3})
    assert ends.appended_after(TP, 600) == ago(10)
    assert ends.appended_after(TP, 2) is None
