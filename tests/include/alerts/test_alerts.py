"""Alerts reach a mail server and a web server: once when something begins, once when it is over.

There is no broker here, so that the topic is a receiver that is away all the time.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.header import decode_header, make_header
from email.message import Message
from html import unescape
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import update

from include import alerts, lake
from include.airflow.backoff import StreamBackoff
from include.airflow.notifier import (
    AlertNotifier,
    RecoveryNotifier,
    ended_key,
    housekeeping_key,
    recover_succeeded,
    send_alert,
)
from include.alerts import key_limits, refused
from include.alerts.overdue import find_overdue, stream_keys, watch
from include.cli.monitor import list_alerts
from include.errors import UsageError
from include.intervals.reporting.asking import notify_asked
from include.ledger.alerts import Alert, open_alerts
from include.ledger.archive import micro_batches
from include.ledger.archive.micro_batches import BatchCommit
from include.ledger.database import session
from include.ledger.erasures.open import OpenErasure
from include.ledger.intervals import attempts, builds, pins
from include.ledger.intervals.findings import ExpectationResult, Validation
from include.ledger.models import Erasure, MicroBatch, StreamLaunch
from include.ledger.streams import launches, writers
from include.ledger.streams.restarts import failures_in_a_row
from include.ledger.totals import note_keys
from include.ledger.validation import approvals
from include.monitor.open_alerts import alerts_of
from include.pipelines import Declarations, load_pipeline
from include.settings import settings
from include.times import Interval, every, format_time
from tests.conftest import Home, settings_of
from tests.support.attempts import START, begin_attempt, build_and_register, hour, note_build, register, scheduled_run
from tests.support.committed import commit
from tests.support.leases import held_lease
from tests.support.receivers import Received, listening

pytestmark = pytest.mark.services

CANARY = "canary-5e21"
SINCE = datetime(2026, 11, 20, 5, 20, tzinfo=UTC)


WARNED = ExpectationResult("isp_hits", "expect_rows", "", "50 to 294 rows", False, "7", 0, severity="warn")


@pytest.fixture(scope="module")
def receivers(postgres: Home) -> Iterator[Received]:
    with listening(f"/hook/{CANARY}") as received:
        channels = {"SMTP": received.smtp, "EMAIL_TO": "on-call@example.org", "WEBHOOK": received.webhook}
        with settings_of(postgres, **{f"TIDEMARK_ALERT_{name}": value for name, value in channels.items()}):
            yield received


@pytest.fixture(autouse=True)
def nothing_received(receivers: Received) -> None:
    receivers.mails.clear()
    receivers.posts.clear()
    receivers.refuses = False


def cells_of(mail: Message) -> dict[str, str]:
    """The parts of a mail, by name."""
    [part] = mail.get_payload()
    text = part.get_payload(decode=True).decode()
    return {unescape(name): unescape(said) for name, said in re.findall(r"<th [^>]*>(.*?)</th><td>(.*?)</td>", text)}


def alert(pipeline: str, what: str = "the archive is behind") -> Alert:
    return Alert(f"test/{pipeline}", pipeline, what, "interval 05", SINCE, "look at the stream", {"dag": "interval"})


def test_alert_says_what_where_since_when_and_what_to_do_on_every_channel_and_once(receivers: Received) -> None:
    assert alerts.raise_alert(alert("first"))
    assert not alerts.raise_alert(alert("first", "the archive is still behind"))
    assert alerts.send_unsent() == 0
    said = {
        "state": "raised",
        "pipeline": "first",
        "what": "the archive is behind",
        "where": "interval 05",
        "since": "2026-11-20T05:20:00Z",
        "todo": "look at the stream",
        "dag": "interval",
        # Another installation may have the same receivers.
        "lake": lake.root(),
        "ledger": settings().database_host(),
    }
    since = f"since {said['since']}; {said['ledger']}, {said['lake']}"
    text = f"first raised: the archive is behind (interval 05, {since}). look at the stream"
    assert receivers.posts == [{**said, "text": text}]
    [mail] = receivers.mails
    assert (mail["To"], mail["Subject"]) == ("on-call@example.org", "[tidemark] first raised: the archive is behind")
    assert cells_of(mail) == said


def test_end_is_sent_once_when_the_alert_was_sent(receivers: Received) -> None:
    alerts.raise_alert(alert("second"))
    assert alerts.recover("test/second")
    assert not alerts.recover("test/second")
    assert not alerts.recover("test/never told")
    assert [each["state"] for each in receivers.posts] == ["raised", "recovered"]
    assert "over_at" in receivers.posts[-1]
    assert len(receivers.mails) == 2
    # It begins again, which is another alert.
    assert alerts.raise_alert(alert("second"))
    assert len(receivers.posts) == 3
    alerts.recover("test/second")


def test_receiver_gets_an_alert_later_and_no_other_twice_when_it_refused(
    receivers: Received, caplog: pytest.LogCaptureFixture
) -> None:
    receivers.refuses = True
    alerts.raise_alert(alert("third"))
    assert (len(receivers.mails), len(receivers.posts)) == (1, 0)
    assert "not sent by webhook" in caplog.text
    # The address is a secret: many services need nothing else for posting.
    assert CANARY not in caplog.text
    receivers.refuses = False
    assert alerts.send_unsent() == 1
    assert (len(receivers.mails), len(receivers.posts)) == (1, 1)
    alerts.recover("test/third")


def test_mail_gets_no_header_when_an_error_has_line_ends(receivers: Received) -> None:
    alerts.raise_alert(alert("fourth", "broken\r\nBcc: everybody@example.org"))
    [mail] = receivers.mails
    assert mail["Bcc"] is None
    assert mail["Subject"] == "[tidemark] fourth raised: broken"
    alerts.recover("test/fourth")


def test_markup_stays_text_in_a_mail_when_an_error_has_it(receivers: Received) -> None:
    what = "<img src=x onerror=alert(1)> Größe \N{SNOWMAN}"
    alerts.raise_alert(alert("fifth", what))
    [mail] = receivers.mails
    assert b"<img" not in mail.get_payload()[0].get_payload(decode=True)
    assert cells_of(mail)["what"] == what
    assert str(make_header(decode_header(str(mail["Subject"])))) == f"[tidemark] fifth raised: {what}"
    alerts.recover("test/fifth")


def test_chat_gets_no_link_and_no_mention_when_an_error_has_them(receivers: Received) -> None:
    what = "<!channel> & <https://example.org|the log>"
    alerts.raise_alert(alert("sixth", what))
    [post] = receivers.posts
    assert post["what"] == what
    assert "sixth raised: &lt;!channel&gt; &amp; &lt;https://example.org|the log&gt; (" in post["text"]
    alerts.recover("test/sixth")


def test_overdue_intervals_and_their_end_are_reported_once_when_a_deadline_passes(
    receivers: Received,
) -> None:
    pipeline = load_pipeline("isp_hits")
    assert find_overdue(pipeline, START + timedelta(days=1)) is None, "it never had an interval"
    build_and_register("isp_hits", hour(0))
    failed = begin_attempt("isp_hits", hour(1))
    built = note_build(failed)
    minute = timedelta(minutes=1)
    assert watch(pipeline, START + 139 * minute) == {"overdue": 0, "over_limit": 0, "recovered": 0}
    assert watch(pipeline, START + 141 * minute)["overdue"] == 1
    assert watch(pipeline, START + 146 * minute)["overdue"] == 1
    [told] = receivers.posts
    assert told["since"] == "2026-11-20T07:20:00Z"
    assert told["what"] == "1 interval not registered 20 minutes after the end"
    command = "./tidemark interval isp_hits --from 2026-11-20T06:00:00Z --to 2026-11-20T07:00:00Z"
    assert str(told["todo"]).endswith(command)
    # The driver of a pipeline that takes more waits for ever, and its tasks are not late.
    assert "Has Airflow's pool tidemark_spark the 1 slot that a driver takes?" in str(told["todo"])
    register(failed, built)
    assert watch(pipeline, START + 150 * minute) == {"overdue": 0, "over_limit": 0, "recovered": 1}
    assert [each["state"] for each in receivers.posts] == ["raised", "recovered"]


@pytest.mark.parametrize(
    ("duration", "minutes", "overdue"),
    [
        # Quarters of an hour begin where the hours ended; the first is due at 35 minutes past the hour.
        ("15m", 25, []),
        ("15m", 36, [Interval(hour(3).from_time, hour(3).from_time + timedelta(minutes=15))]),
        # 08:00 is no boundary any more.
        ("6h", 25, []),
        ("1d", 25, []),
    ],
)
def test_no_interval_is_overdue_only_because_the_schedule_changed(
    receivers: Received, duration: str, minutes: int, overdue: list[Interval]
) -> None:
    name = f"isp_changed_{duration}_{minutes}"
    for number in range(3):
        build_and_register(name, hour(number))
    pipeline = replace(load_pipeline("isp_hits"), name=name, schedule=every(duration))
    found = find_overdue(pipeline, hour(3).from_time + timedelta(minutes=minutes))
    assert list(found.intervals if found else ()) == overdue


def test_interval_of_the_earlier_schedule_is_overdue_and_stays_dismissed_when_the_schedule_changed(
    receivers: Received,
) -> None:
    name, declared = "isp_changed", load_pipeline("isp_hits")
    build_and_register(name, hour(0))
    failed = begin_attempt(name, hour(1))
    at = hour(2).from_time + timedelta(minutes=21)
    longer, shorter = (replace(declared, name=name, schedule=every(each)) for each in ("6h", "15m"))
    # Not due by the longer schedule, whose interval ends hours later.
    found = find_overdue(longer, at)
    assert found is not None
    assert found.intervals == (hour(1),)
    watch(longer, at)
    [told] = open_alerts(f"overdue/{name}")
    assert told.facts["intervals"] == [str(hour(1))]
    assert watch(shorter, at)["recovered"] == 0
    alerts.dismiss(told.key, by="ada@host", reason="the topic was empty")
    receivers.posts.clear()
    watch(shorter, at)
    assert receivers.posts == []
    register(failed, note_build(failed))
    assert find_overdue(shorter, at) is None


def test_alert_stays_open_when_a_longer_schedule_pinned_an_interval_over_its_own(receivers: Received) -> None:
    name, declared = "isp_longer", load_pipeline("isp_hits")
    longer, shorter = (replace(declared, name=name, schedule=every(each)) for each in ("1h", "15m"))
    build_and_register(name, hour(0))
    begin, minute = hour(1).from_time, timedelta(minutes=1)
    watch(shorter, begin + 36 * minute)
    [told] = open_alerts(f"overdue/{name}")
    assert told.facts["intervals"] == [str(Interval(begin, begin + 15 * minute))]
    # The hour around it is pinned, and has its own deadline, which has not passed.
    under_way = begin_attempt(name, hour(1))
    assert watch(longer, begin + 65 * minute) == {"overdue": 0, "over_limit": 0, "recovered": 0}
    register(under_way, note_build(under_way))
    assert watch(longer, begin + 70 * minute)["recovered"] == 1
    assert open_alerts(f"overdue/{name}") == []


def test_alert_stays_open_when_its_interval_is_never_built_and_what_is_overdue_later_is_told_too(
    receivers: Received,
) -> None:
    pipeline, day = replace(load_pipeline("isp_hits"), name="isp_overdue"), timedelta(days=1)

    def deliver(number: int) -> None:
        build_and_register("isp_overdue", hour(number))

    late = timedelta(minutes=21)
    for number in (0, *range(2, 30)):
        deliver(number)
    assert watch(pipeline, START + timedelta(hours=2) + late)["overdue"] == 1
    # A day later it is no longer checked, and was never built.
    assert watch(pipeline, START + timedelta(hours=27) + late)["recovered"] == 0
    assert [each["state"] for each in receivers.posts] == ["raised"]
    assert watch(pipeline, START + timedelta(hours=31) + late)["overdue"] == 1
    assert watch(pipeline, START + timedelta(hours=33) + late)["overdue"] == 3
    shown = [each.where for each in alerts_of("isp_overdue".__eq__)]
    assert shown == [
        f"interval__isp_overdue, first {hour(1)}, until {format_time(hour(1).to_time)}",
        f"interval__isp_overdue, first {hour(30)}, until {format_time(hour(32).to_time)}",
    ]
    assert [each["since"] for each in receivers.posts] == ["2026-11-20T07:20:00Z", "2026-11-21T12:20:00Z"]
    # Built at last; the other alert goes on, also for intervals without an alert of their own.
    deliver(1)
    assert watch(pipeline, START + timedelta(hours=33) + late)["recovered"] == 1
    deliver(30)
    assert watch(pipeline, START + timedelta(hours=33) + late)["recovered"] == 0
    deliver(31)
    deliver(32)
    # The watch did not run for two days: what is overdue by then was not reported.
    assert watch(pipeline, START + timedelta(hours=33) + 2 * day + late)["recovered"] == 1
    for number in range(33, 81):
        deliver(number)
    assert watch(pipeline, START + timedelta(hours=33) + 2 * day + late)["recovered"] == 1
    states = ["raised", "raised", "recovered", "recovered", "raised", "recovered"]
    assert sorted(each["state"] for each in receivers.posts) == sorted(states)
    assert open_alerts("overdue/isp_overdue") == []


def test_later_outage_is_told_when_an_earlier_interval_is_still_open(receivers: Received) -> None:
    pipeline, late = replace(load_pipeline("isp_hits"), name="isp_waiting"), timedelta(minutes=21)

    def watch_until(number: int) -> None:
        watch(pipeline, hour(number).to_time + late)

    build_and_register("isp_waiting", hour(0))
    # The first waits for a person, the second was late; from the tenth on nothing is registered any more.
    watch_until(1)
    watch_until(2)
    for number in range(2, 10):
        build_and_register("isp_waiting", hour(number))
        watch_until(number)
    for number in range(10, 40):
        watch_until(number)
    shown = [each.where for each in alerts_of("isp_waiting".__eq__)]
    assert shown == [
        f"interval__isp_waiting, first {hour(1)}, until {format_time(hour(2).to_time)}",
        f"interval__isp_waiting, first {hour(10)}, until {format_time(hour(39).to_time)}",
    ]
    assert [each["state"] for each in receivers.posts] == ["raised", "raised"]
    build_and_register("isp_waiting", hour(1))
    watch_until(39)
    assert [each["state"] for each in receivers.posts] == ["raised", "raised", "recovered"]
    for each in open_alerts("overdue/isp_waiting"):
        alerts.recover(each.key)


def test_interval_is_told_when_it_is_overdue_right_after_one_that_was_late(receivers: Received) -> None:
    pipeline, late = replace(load_pipeline("isp_hits"), name="isp_late"), timedelta(minutes=21)
    build_and_register("isp_late", hour(0))
    for number in (1, 2):
        watch(pipeline, hour(number).to_time + late)
    build_and_register("isp_late", hour(2))
    watch(pipeline, hour(3).to_time + late)
    assert [each["where"] for each in receivers.posts] == [
        f"interval__isp_late, first {hour(1)}",
        f"interval__isp_late, first {hour(3)}",
    ]
    for each in open_alerts("overdue/isp_late"):
        alerts.recover(each.key)


def test_hour_that_nobody_pinned_is_overdue_only_when_it_has_offsets(receivers: Received) -> None:
    pipeline, late = replace(load_pipeline("isp_hits"), name="isp_quiet"), timedelta(minutes=21)
    build_and_register("isp_quiet", hour(0))

    def register_after(number: int, skipped: int) -> None:
        """Pin and register an hour that begins so many offsets after the last one."""
        last = pins.last_interval("isp_quiet")
        assert last is not None
        begins = [
            replace(r, from_offset=r.until_offset + skipped, until_offset=r.until_offset + 9) for r in last.ranges
        ]
        between = pins.find_neighbours("isp_quiet", hour(number))
        pins.write_interval("isp_quiet", hour(number), begins, last.topic_ids, pinned_by="test", between=between)
        build_and_register("isp_quiet", hour(number))

    register_after(6, skipped=0)
    assert find_overdue(pipeline, hour(6).to_time + late) is None
    register_after(8, skipped=5)
    found = find_overdue(pipeline, hour(9).to_time + late)
    assert found is not None
    assert found.intervals == (hour(7), hour(9))


def test_interval_is_not_reported_again_when_its_alert_was_dismissed(receivers: Received, postgres: Home) -> None:
    pipeline = replace(load_pipeline("isp_hits"), name="isp_given_up")
    build_and_register("isp_given_up", hour(0))
    late = timedelta(minutes=21)
    assert watch(pipeline, START + timedelta(hours=2) + late)["overdue"] == 1
    [told] = open_alerts("overdue/isp_given_up")
    [listed] = [each for each in postgres.json("alerts", "list", "--json") if each["pipeline"] == "isp_given_up"]
    assert (listed["key"], listed["state"], listed["what"]) == (told.key, "raised", told.what)
    assert told.key in postgres.run("alerts", "list").stdout
    assert told.key in {each["key"] for each in postgres.json("status", "--json")["alerts"]}
    assert "./tidemark alerts list" in postgres.run("status").stdout
    assert "no alert" in postgres.run("alerts", "dismiss", "overdue/nothing", "--reason", "gone", expect=64).stderr
    postgres.run("alerts", "dismiss", told.key, "--reason", " ", expect=64)
    assert open_alerts("overdue/isp_given_up") == [told]
    postgres.run("alerts", "dismiss", told.key, "--reason", "the cameras were off")
    # A command sends on the channels of its own settings; the next watch sends on these.
    alerts.send_unsent()
    [over] = [each for each in receivers.posts if each["state"] == "recovered"]
    assert (over["dismissed_because"], "@" in over["dismissed_by"]) == ("the cameras were off", True)
    receivers.posts.clear()
    # A given-up interval is not reported again, even when more are overdue.
    watch(pipeline, START + timedelta(hours=2, minutes=30))
    assert receivers.posts == []
    assert open_alerts("overdue/isp_given_up") == []
    assert watch(pipeline, START + timedelta(hours=3) + late)["overdue"] == 2
    [again] = receivers.posts
    assert again["where"] == f"interval__isp_given_up, first {hour(2)}"
    assert again["what"] == "1 interval not registered 20 minutes after the end"
    listed = postgres.json("alerts", "list", "--all", "--json")
    assert [each["key"] for each in listed[:2]] == [f"overdue/isp_given_up/{hour(2).label}", told.key]
    assert "dismissed because  the cameras were off" in postgres.run("alerts", "list", "--all").stdout


def test_alert_of_a_task_is_over_when_another_run_has_registered_its_interval_since(receivers: Received) -> None:
    """Such as a run of missing intervals, or the command; the task's own run has failed, or was deleted."""
    first, later = hour(4), hour(5)

    def fail(interval: Interval, task: str) -> None:
        instance = SimpleNamespace(dag_id="interval__nest_cameras", run_id=interval.label, task_id=task)
        run = scheduled_run(interval)
        context: Any = {"ti": instance, "dag_run": run, "params": {}, "exception": "the archive is behind"}
        AlertNotifier("nest_cameras").notify(context)

    def left() -> list[tuple[str, str]]:
        told = open_alerts("task/interval__nest_cameras/")
        return [(each.facts["run"], each.facts["task"]) for each in told]

    attempt = build_and_register("nest_cameras", first)
    # The first one was registered before: its run had built it again.
    for interval, task in ((first, "publish"), (later, "pin_ranges"), (later, "announce")):
        fail(interval, task)
    assert recover_succeeded(lambda dag, run: {}) == 0
    attempt = begin_attempt("nest_cameras", later)
    built = note_build(attempt)
    assert recover_succeeded(lambda dag, run: {}) == 0
    register(attempt, built)
    assert recover_succeeded(lambda dag, run: {}) == 1
    assert left() == [(first.label, "publish"), (later.label, "announce")]
    attempt = build_and_register("nest_cameras", first)
    # Cleared, its task has failed again after that.
    fail(first, "publish")
    assert recover_succeeded(lambda dag, run: {}) == 0
    build_and_register("nest_cameras", first)
    assert recover_succeeded(lambda dag, run: {}) == 1
    announce = SimpleNamespace(dag_id="interval__nest_cameras", run_id=later.label, task_id="announce")
    RecoveryNotifier().notify({"ti": announce})  # type: ignore[typeddict-item]
    assert left() == []


def test_intervals_are_overdue_when_the_archive_has_records_and_none_was_ever_pinned(receivers: Received) -> None:
    name, minute = "isp_never_begun", timedelta(minutes=1)
    pipeline = replace(load_pipeline("isp_hits"), name=name)
    batch = commit(name, 0, 0, 10, archived=10)
    with session() as ledger:
        ledger.execute(update(MicroBatch).where(MicroBatch.id == batch).values(committed_at=START + 5 * minute))
    # Whoever starts a stream need not start its intervals within the hour.
    assert find_overdue(pipeline, START + 84 * minute) is None
    found = find_overdue(pipeline, START + 86 * minute)
    assert found is not None
    assert found.intervals == (hour(0),)
    assert watch(pipeline, START + 86 * minute)["overdue"] == 1
    assert watch(pipeline, START + timedelta(hours=20))["overdue"] == 19
    assert watch(pipeline, START + timedelta(hours=21)) == {"overdue": 20, "over_limit": 0, "recovered": 0}
    [told] = receivers.posts
    assert f"is interval__{name} unpaused?" in str(told["todo"])
    build_and_register(name, hour(20))
    assert watch(pipeline, START + timedelta(hours=21, minutes=21)) == {
        "overdue": 0, "over_limit": 0, "recovered": 1
    }  # fmt: skip


def test_overdue_alert_names_the_open_questions_when_intervals_wait_for_a_person(receivers: Received) -> None:
    name, minute = "isp_asked", timedelta(minutes=1)
    pipeline = replace(load_pipeline("isp_hits"), name=name)
    attempt = begin_attempt(name, hour(0))
    note_build(attempt)
    spec = attempts.load_attempt(attempt)
    assert spec.build is not None
    question = approvals.ask(spec.build, "suite-1", (WARNED,))
    builds.hold(spec, Validation(False, name, (WARNED,), question=question.id))
    notify_asked(attempts.load_attempt(attempt))
    receivers.posts.clear()
    assert watch(pipeline, START + 81 * minute)["overdue"] == 1
    [told] = receivers.posts
    # No number: later ones do not change what was sent.
    assert str(told["todo"]).startswith(
        f"intervals wait for approval, which ones by now: ./tidemark alerts list {name}. Those that Airflow built have "
    )
    assert f"Else: is interval__{name} unpaused?" in str(told["todo"])


def test_alert_is_over_when_older_code_has_erased_its_times(receivers: Received) -> None:
    name, minute = "isp_erased", timedelta(minutes=1)
    pipeline = replace(load_pipeline("isp_hits"), name=name)
    first, failed = (begin_attempt(name, hour(number)) for number in (0, 1))
    register(first, note_build(first))
    facts = {"intervals": ["(erased)"], "until": "(erased)"}
    alerts.raise_alert(Alert(f"overdue/{name}/x", name, "late", "x", START + 140 * minute, "look", facts))
    lost = {"dag": "interval__x", "run": "r", "task": "publish", "interval": "(erased)"}
    alerts.raise_alert(Alert(f"task/interval__x/r/publish/{name}", name, "broken", "x", START, "clear it", lost))
    receivers.posts.clear()
    assert watch(pipeline, START + 141 * minute) == {"overdue": 1, "over_limit": 0, "recovered": 0}
    register(failed, note_build(failed))
    assert watch(pipeline, START + 150 * minute)["recovered"] == 1
    assert recover_succeeded(lambda dag, run: {f"publish_{name}": "success"} if run == "r" else {}) == 1
    assert [each["state"] for each in receivers.posts] == ["recovered"] * 2


def begin_erasure(pipeline: str, at: datetime) -> int:
    """An erasure as its first transaction leaves it; its number."""
    with session() as ledger:
        begun = Erasure(pipeline=pipeline, columns=["user"], reason="asked for", begun_by="ada@host", begun_at=at)
        begun.salt, begun.key_hashes, begun.counts, begun.intervals, begun.last_build = "00", [], {}, [], 0
        ledger.add(begun)
        ledger.flush()
        return begun.id


def test_erasure_that_was_interrupted_is_told_after_a_day_and_when_it_has_ended(
    receivers: Received, postgres: Home
) -> None:
    pipeline, day, now = load_pipeline("wiki_changes"), timedelta(days=1), datetime.now(UTC)
    number = begin_erasure("wiki_changes", now)
    key = f"erasure/wiki_changes/{number}"
    # It may still be under way.
    watch(pipeline, now + day / 2)
    assert open_alerts(key) == []
    for _ in range(2):
        watch(pipeline, now + day + timedelta(minutes=1))
    [told] = receivers.posts
    assert str(told["what"]).startswith(f"erasure {number} has not ended")
    assert "./tidemark erase wiki_changes --resume" in str(told["todo"])
    [listed] = postgres.json("status", "--json")["unfinished_erasures"]
    assert (listed["pipeline"], listed["erasure"], listed["by"]) == ("wiki_changes", number, "ada@host")
    assert f"wiki_changes: erasure {number}, begun at " in postgres.run("status").stdout
    with session() as ledger:
        ledger.execute(update(Erasure).values(ended_at=now + day))
    assert watch(pipeline, now + day + timedelta(minutes=2))["recovered"] == 1
    assert [each["state"] for each in receivers.posts] == ["raised", "recovered"]
    assert postgres.json("status", "--json")["unfinished_erasures"] == []


def test_unfinished_erasure_is_to_be_declared_again_when_its_pipeline_was_removed() -> None:
    # Until then nothing looks at it, and the command does not know the pipeline.
    removed = OpenErasure("doors", 7, datetime.now(UTC), "ada@host")
    assert removed.remedy == "declare doors again, then ./tidemark erase doors --resume"


def test_declaration_that_is_refused_is_told_once_and_when_it_is_corrected(
    receivers: Received, capsys: pytest.CaptureFixture[str]
) -> None:
    error = UsageError("event_time names 'att'", remedy="one of: at", pipeline="doors")
    now = datetime.now(UTC)
    for _ in range(2):
        assert refused.watch(Declarations((), {"doors": error}), now) == 0
    [told] = receivers.posts
    list_alerts("doors", as_json=True)
    assert [each["pipeline"] for each in json.loads(capsys.readouterr().out)] == ["doors"]
    with pytest.raises(UsageError, match="unknown pipeline 'windows'"):
        list_alerts("windows")
    assert told["pipeline"] == "doors"
    assert "include/pipelines/doors.py: doors: event_time names 'att'" in str(told["what"])
    assert told["todo"] == "one of: at"
    assert refused.watch(Declarations((), {}), now) == 1
    assert [each["state"] for each in receivers.posts] == ["raised", "recovered"]


def test_erasure_is_not_reported_again_when_its_alert_was_dismissed(receivers: Received) -> None:
    pipeline, now = load_pipeline("gps_positions"), datetime.now(UTC)
    begin_erasure("gps_positions", now)
    watch(pipeline, now + timedelta(days=2))
    [told] = open_alerts("erasure/gps_positions/")
    alerts.dismiss(told.key, by="ada@host", reason="the table is gone")
    receivers.posts.clear()
    watch(pipeline, now + timedelta(days=3))
    assert receivers.posts == []


def test_view_with_more_keys_than_declared_is_told_once_and_when_it_has_fewer(receivers: Received) -> None:
    declared = load_pipeline("isp_hits")
    pipeline = replace(declared, name="isp_keys")
    (limit,) = (view.max_keys for view in declared.views if view.name == "isp_totals")
    assert key_limits.watch(pipeline) == (0, 0)
    note_keys("isp_keys", "isp_totals", limit + 1, version=5)
    # From a driver that was suspended: its count is older.
    note_keys("isp_keys", "isp_totals", 3, version=4)
    assert [key_limits.watch(pipeline) for _ in range(2)] == [(1, 0), (1, 0)]
    [told] = receivers.posts
    assert str(told["what"]).startswith("the view isp_totals has 5,001 keys, 5,000 are declared at most")
    assert "max_keys" in str(told["todo"])
    assert (told["keys"], told["max_keys"]) == (limit + 1, limit)
    # A new generation with another rule.
    note_keys("isp_keys", "isp_totals", limit, version=2**40)
    assert key_limits.watch(pipeline) == (0, 1)
    assert [each["state"] for each in receivers.posts] == ["raised", "recovered"]


def test_dismissed_view_is_told_again_only_when_it_was_within_its_limit_since(receivers: Received) -> None:
    declared = load_pipeline("isp_hits")
    pipeline = replace(declared, name="isp_dismissed")
    (limit,) = (view.max_keys for view in declared.views if view.name == "isp_totals")
    key = "keys/isp_dismissed/isp_totals"
    # Another view's, whose name begins like this one's.
    other = replace(alert("isp_dismissed"), key=f"{key}_by_zip")
    alerts.raise_alert(other)
    alerts.dismiss(other.key, by="ada@host", reason="known")
    note_keys("isp_dismissed", "isp_totals", limit + 1, version=1)
    assert key_limits.watch(pipeline) == (1, 0)
    alerts.dismiss(key, by="ada@host", reason="they are right")
    receivers.posts.clear()
    for version in (2, 3):
        note_keys("isp_dismissed", "isp_totals", limit + version, version=version)
        assert key_limits.watch(pipeline) == (1, 0)
    assert open_alerts(key) == []
    assert receivers.posts == []
    note_keys("isp_dismissed", "isp_totals", limit, version=4)
    assert key_limits.watch(pipeline) == (0, 0)
    note_keys("isp_dismissed", "isp_totals", limit + 1, version=5)
    assert [key_limits.watch(pipeline) for _ in range(2)] == [(1, 0), (1, 0)]
    assert [each.key for each in open_alerts(key)] == [key]
    assert [each["state"] for each in receivers.posts] == ["raised"]
    alerts.recover(key)


def test_alert_about_a_view_is_over_when_it_is_removed_or_has_windows(receivers: Received) -> None:
    declared = load_pipeline("isp_hits")
    pipeline = replace(declared, name="isp_removed")
    (total,) = (view for view in declared.views if view.name == "isp_totals")
    # Another pipeline's, whose name begins like this one's.
    other = replace(alert("isp_removed_too"), key="keys/isp_removed_too/isp_totals")
    alerts.raise_alert(other)
    note_keys("isp_removed", "isp_totals", total.max_keys + 1, version=1)
    assert key_limits.watch(pipeline) == (1, 0)
    receivers.posts.clear()
    without = replace(pipeline, views=tuple(view for view in declared.views if not view.is_total))
    assert [key_limits.watch(without) for _ in range(2)] == [(0, 1), (0, 0)]
    assert [each["state"] for each in receivers.posts] == ["recovered"]
    assert alerts.recover(other.key)


def test_stream_has_recovered_when_its_driver_has_held_the_lease_for_a_while(receivers: Received) -> None:
    pipeline, now = load_pipeline("wiki_changes"), datetime.now(UTC)
    stream = Alert("stream/wiki_changes", "wiki_changes", "3 failures in a row", "stream__wiki_changes", now, "wait")
    alerts.raise_alert(stream)
    with held_lease("wiki_changes"):
        assert watch(pipeline)["recovered"] == 0
        assert open_alerts("stream/wiki_changes") == [stream]
        assert watch(pipeline, now + timedelta(minutes=3))["recovered"] == 1


def failed_driver(pipeline: str) -> None:
    """A driver that Airflow launched and that ended because a service was away."""
    launch = uuid.uuid4().hex
    launches.note_intent(launch, pipeline, "host", "/nowhere")
    launches.note_end(launch, 6)


def test_stream_has_not_recovered_when_a_command_holds_the_lease(receivers: Received) -> None:
    pipeline, now = load_pipeline("wiki_changes"), datetime.now(UTC)
    for key in stream_keys(pipeline.name):
        alerts.raise_alert(Alert(key, pipeline.name, "given up", "stream__wiki_changes", now, "start it again"))
    lease = writers.acquire(pipeline.name, "erase")
    assert watch(pipeline, now + timedelta(minutes=3))["recovered"] == 0
    writers.release(lease)
    assert len(open_alerts(stream_keys(pipeline.name)[0])) == 2
    with held_lease(pipeline.name):
        assert watch(pipeline, datetime.now(UTC) + timedelta(minutes=3))["recovered"] == 2


def test_stream_that_goes_on_failing_is_told_again_when_its_recovery_did_not_last(receivers: Received) -> None:
    context: Any = {"ti": SimpleNamespace(dag_id="stream", run_id="r", task_id="drive")}
    backoff, told = StreamBackoff("gps_positions"), []
    for number in range(6):
        failed_driver("gps_positions")
        # The ledger, or every receiver, may be away at the third failure: then the fourth one sends the alert.
        if number != 2:
            backoff.evaluate(RuntimeError("Kafka is away"), 1, 1, context)
        told.append(len(receivers.posts))
        if number == 4:
            assert alerts.recover("stream/gps_positions")
    assert told == [0, 0, 0, 1, 1, 3]
    assert [each["state"] for each in receivers.posts] == ["raised", "recovered", "raised"]
    alerts.recover("stream/gps_positions")


def test_stream_has_recovered_when_its_driver_outlives_each_that_failed_in_a_row(receivers: Received) -> None:
    pipeline, now, minute = (
        replace(load_pipeline("isp_hits"), name="isp_flapping"),
        datetime.now(UTC),
        timedelta(minutes=1),
    )
    # The one before them ran for longer than an hour, so that it is none of their row.
    for begun, ran in ((120, 70), (50, 9), (35, 10), (20, 9)):
        failed_driver(pipeline.name)
        last = launches.last(pipeline.name)
        assert last is not None
        began = now - begun * minute
        with session() as ledger:
            row = ledger.get_one(StreamLaunch, last.id)
            row.launched_at, row.ended_at = began, began + ran * minute
    alerts.raise_alert(Alert("stream/isp_flapping", pipeline.name, "3 failures in a row", "stream", now, "wait"))
    launches.note_intent(uuid.uuid4().hex, pipeline.name, "host", "/nowhere")
    with held_lease(pipeline.name):
        assert watch(pipeline, now + 9 * minute)["recovered"] == 0
        assert watch(pipeline, now + 11 * minute)["recovered"] == 1


def test_stream_that_stalled_has_recovered_only_when_the_stalled_query_has_committed(receivers: Received) -> None:
    pipeline, now = load_pipeline("nest_cameras"), datetime.now(UTC)
    context: Any = {"ti": SimpleNamespace(dag_id="stream", run_id="r", task_id="drive")}
    send_alert(context, "nest_cameras", "stalled", key="stream/nest_cameras", query="hourly_counts")
    with held_lease("nest_cameras") as lease:
        assert watch(pipeline, now + timedelta(minutes=3))["recovered"] == 0
        micro_batches.move_query(lease, BatchCommit("nest_cameras", "hourly_counts", "a", 0))
        assert watch(pipeline, now + timedelta(minutes=3))["recovered"] == 1


def test_stream_that_stalled_has_recovered_when_the_stalled_query_is_no_longer_declared(receivers: Received) -> None:
    pipeline, now = load_pipeline("auction_bids"), datetime.now(UTC)
    context: Any = {"ti": SimpleNamespace(dag_id="stream", run_id="r", task_id="drive")}
    send_alert(context, "auction_bids", "stalled", key="stream/auction_bids", query="former_name")
    assert watch(pipeline, now + timedelta(minutes=3))["recovered"] == 0, "nobody goes on"
    with held_lease("auction_bids"):
        assert watch(pipeline, now + timedelta(minutes=3))["recovered"] == 1


def failed_task(run: str, **more: Any) -> Any:
    return {"ti": SimpleNamespace(dag_id="interval__x", run_id=run, task_id="publish", **more), "exception": "broken"}


def test_data_is_no_advice_when_an_error_quotes_it(receivers: Received) -> None:
    """What to do stands after the message, which may quote anything."""
    said = "the name 'x — run curl evil.example' is taken — choose another"
    AlertNotifier("nest_cameras").notify({**failed_task("quoting"), "exception": said})
    [post] = receivers.posts
    assert (post["what"], post["todo"]) == ("the name 'x — run curl evil.example' is taken", "choose another")
    RecoveryNotifier().notify(failed_task("quoting"))


def test_success_of_a_task_is_reported_later_when_the_ledger_was_away(
    receivers: Received, postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    for context in (failed_task("a"), failed_task("b"), failed_task("c", map_index=3)):
        AlertNotifier("nest_cameras").notify(context)
    with settings_of(postgres, TIDEMARK_DATABASE_URL="postgresql://nobody@127.0.0.1:1/ledger"):
        RecoveryNotifier().notify(failed_task("a"))
    assert [each["state"] for each in receivers.posts] == ["raised"] * 3
    states = {"a": {"publish": "success"}, "b": {"publish": "running"}, "c": {"publish_2": "success"}}
    assert recover_succeeded(lambda dag, run: states[run]) == 1
    assert [each["run"] for each in receivers.posts if each["state"] == "recovered"] == ["a"]
    states["c"]["publish_3"] = "success"
    assert recover_succeeded(lambda dag, run: states[run]) == 1
    # A run that was deleted has no tasks.
    assert recover_succeeded(lambda dag, run: {}) == 0
    RecoveryNotifier().notify(failed_task("b"))
    assert open_alerts("task/") == []


def test_alert_of_housekeeping_is_over_when_a_later_run_has_done_the_work(receivers: Received) -> None:
    key = housekeeping_key("isp_hits")

    def night(run: str, **params: Any) -> Any:
        instance = SimpleNamespace(dag_id="housekeeping", run_id=run, task_id="isp_hits")
        return {"ti": instance, "params": params, "exception": "another housekeeping is under way — wait"}

    for run in ("friday", "saturday"):
        AlertNotifier("isp_hits", key).notify(night(run))
    assert [each["state"] for each in receivers.posts] == ["raised"]
    RecoveryNotifier(key).notify(night("by hand", dry_run=True))
    RecoveryNotifier(housekeeping_key("isp")).notify(night("sunday", dry_run=False))
    assert len(open_alerts(key)) == 1
    RecoveryNotifier(key).notify(night("sunday", dry_run=False))
    assert open_alerts(key) == []
    # The notice of a cleared run's success was lost.
    AlertNotifier("isp_hits", key).notify(night("monday"))
    assert recover_succeeded(lambda dag, run: {"isp_hits": "failed"}) == 0
    assert recover_succeeded(lambda dag, run: {"isp_hits": "success"} if run == "monday" else {}) == 1
    assert [each["state"] for each in receivers.posts] == ["raised", "recovered"] * 2


def test_stream_whose_run_ended_has_recovered_when_another_driver_works(receivers: Received) -> None:
    pipeline, now = load_pipeline("auction_bids"), datetime.now(UTC)
    AlertNotifier("auction_bids", ended_key("auction_bids")).notify(failed_task("given up"))
    assert watch(pipeline, now)["recovered"] == 0
    with held_lease("auction_bids"):
        assert watch(pipeline, now + timedelta(minutes=3))["recovered"] == 1
    assert [each["state"] for each in receivers.posts] == ["raised", "recovered"]


def test_stream_has_recovered_when_the_reporting_host_has_another_clock(receivers: Received) -> None:
    pipeline, ahead = load_pipeline("isp_hits"), datetime.now(UTC) + timedelta(hours=1)
    alerts.raise_alert(Alert("stream/isp_hits", "isp_hits", "3 failures in a row", "stream__isp_hits", ahead, "wait"))
    with held_lease("isp_hits"):
        assert watch(pipeline, datetime.now(UTC) + timedelta(minutes=3))["recovered"] == 1


def test_failures_are_counted_in_their_order_when_the_clock_of_the_ledger_is_set_back(receivers: Received) -> None:
    for code in (6, 4, 4, 4):
        launch = uuid.uuid4().hex
        launches.note_intent(launch, "set_back", "host", "/nowhere")
        launches.note_end(launch, code)
        # What follows is noted by a clock that is half an hour behind.
        with session() as ledger:
            ahead = {name: getattr(StreamLaunch, name) + timedelta(minutes=30) for name in ("launched_at", "ended_at")}
            ledger.execute(update(StreamLaunch).where(StreamLaunch.pipeline == "set_back").values(**ahead))
    last = launches.last("set_back")
    assert last is not None
    assert last.id == launch
    assert failures_in_a_row("set_back", timedelta(hours=1)) == [4, 4, 4, 6]


def test_task_that_was_marked_as_successful_has_recovered_only_when_its_interval_is_registered(
    receivers: Received,
) -> None:
    marked = dict.fromkeys(("publish", "announce"), "success")
    interval, now = hour(3), datetime.now(UTC)
    attempt = begin_attempt("nest_cameras", interval)
    built = note_build(attempt)
    for task in marked:
        instance = SimpleNamespace(dag_id="interval__nest_cameras", run_id="by hand", task_id=task)
        run = scheduled_run(interval)
        context: Any = {"ti": instance, "dag_run": run, "params": {}, "exception": "the catalog is away"}
        AlertNotifier("nest_cameras").notify(context)
    assert [each["interval"] for each in receivers.posts] == [str(interval)] * 2
    # As older code noted it, which did not say for which interval.
    older = {"dag": "interval__nest_cameras", "run": "older", "task": "publish"}
    key = "task/interval__nest_cameras/older/publish"
    alerts.raise_alert(Alert(key, "nest_cameras", "broken", "publish", now, "clear it", older))
    assert recover_succeeded(lambda dag, run: marked) == 2
    [left] = open_alerts("task/interval__nest_cameras/")
    assert left.facts["task"] == "publish"
    assert recover_succeeded(lambda dag, run: marked) == 0
    register(attempt, built)
    assert recover_succeeded(lambda dag, run: marked) == 1
    assert open_alerts("task/") == []
