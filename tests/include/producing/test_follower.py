"""An event stream into Kafka through the command: what is written, dropped, refused, and resumed after a kill."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from include.times import format_time
from tests.conftest import Home, end_of, wait_for
from tests.support import audit
from tests.support.event_server import Answer, ChangeServer, ScriptedServer, ServiceServer, made_up_changes

pytestmark = pytest.mark.services

TOPIC = "wiki-changes"


@pytest.fixture(autouse=True)
def _own_topic(home: Home) -> None:
    """Every test begins with the topic gone."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": home.kafka})
    if TOPIC in client.list_topics(timeout=15).topics:
        client.delete_topics([TOPIC])[TOPIC].result(30)

    def gone() -> bool:
        try:
            return TOPIC not in client.list_topics(timeout=15).topics
        except KafkaException:
            return False

    wait_for("the topic to be gone", gone)


def follow(home: Home, server: Any, *arguments: str) -> dict[str, Any]:
    counts: dict[str, Any] = home.json("produce", "wiki_changes", "--from-stream", server.url, *arguments)
    parts = ("written", "duplicates", "canaries", "other_types", "without_data", "refused")
    assert counts["received"] == sum(counts[part] for part in parts)
    return counts


def written(home: Home) -> list[audit.Record]:
    return list(audit.read_topic(home.kafka, TOPIC).values())


def ids(records: list[audit.Record]) -> Counter[str]:
    return Counter(json.loads(record.value or b"")["meta"]["id"] for record in records)


def frame(number: int, data: str, kind: str = "message") -> bytes:
    return f"event: {kind}\nid: {number}\ndata: {data}\n\n".encode()


def position(home: Home) -> str:
    """The last event that the newest follower has noted; empty before its first."""
    found = max((home.path / "streams").glob("*.json"), key=lambda path: path.stat().st_mtime, default=None)
    last: str = json.loads(found.read_text())["last_event_id"] if found else ""
    return last


def test_every_event_is_written_once_when_the_network_drops_doubles_and_cuts(home: Home) -> None:
    moment = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=3)
    changes = made_up_changes(3000, moment)
    with ChangeServer(changes, seed=3) as server:
        counts = follow(home, server, "--until", "3000")
    records = written(home)
    assert ids(records) == Counter(change["meta"]["id"] for change in changes)
    by_id = {json.loads(record.value or b"")["meta"]["id"]: record for record in records}
    for change in changes:
        record = by_id[change["meta"]["id"]]
        assert json.loads(record.value or b"") == change
        assert record.key == f"{change['wiki']}:{change['title']}".encode()
        assert record.timestamp == int(moment.timestamp() * 1000)
    assert counts["written"] == 3000
    assert counts["duplicates"] > 0
    assert counts["other_types"] > 0
    assert counts["connections"] > 3
    assert counts["events_per_second"] > 0
    assert 180 <= counts["behind_seconds"] < 180 + (datetime.now(UTC) - moment).total_seconds()
    assert counts["last_event_id"] == position(home) == server.event_id(2999)


@pytest.mark.parametrize(("kills", "events"), [(2, 6_000), pytest.param(4, 12_000, marks=pytest.mark.slow)])
def test_nothing_is_lost_and_only_the_last_second_doubled_when_the_follower_is_killed(
    home: Home, kills: int, events: int
) -> None:
    changes = made_up_changes(events, datetime.now(UTC), seed=5)
    rng, before = random.Random(11), position(home)
    noted = ""
    with ChangeServer(changes, seed=7, per_connection=900) as server:
        for kill in range(kills):
            connected = len(server.last_event_ids)
            process = home.start("produce", "wiki_changes", "--from-stream", server.url)
            try:
                # The one before may have been sent all events.
                wait_for("the connection", lambda connected=connected: len(server.last_event_ids) > connected)  # type: ignore[misc]
                goal = min(server.sent + rng.randint(500, 2500), events)
                wait_for("events on their way", lambda goal=goal: server.sent >= goal)  # type: ignore[misc]
                wait_for("a position", lambda: position(home) not in ("", before))
            finally:
                end_of(process)
            assert process.returncode == -signal.SIGKILL, f"ended by itself before kill {kill}"
            assert (server.last_event_ids[connected] or "") == noted
            noted = position(home)
        connected = len(server.last_event_ids)
        process = home.start("produce", "wiki_changes", "--from-stream", server.url)
        try:
            # The last one that was killed may have reached the end already; one that is just starting ends at once.
            wait_for("the connection", lambda: len(server.last_event_ids) > connected)
            assert server.last_event_ids[connected] == noted
            wait_for("the position", lambda: position(home) == server.event_id(len(changes) - 1))
            process.send_signal(signal.SIGTERM)
            out, errors = process.communicate(timeout=60)
        finally:
            end_of(process)
    assert process.returncode == 0, errors
    assert json.loads(out)["last_event_id"] == server.event_id(len(changes) - 1)
    found = ids(written(home))
    assert set(found) == {change["meta"]["id"] for change in changes}
    assert sum(found.values()) < 2 * len(changes)


def test_events_reach_kafka_whole_when_they_are_no_changes(home: Home) -> None:
    change = made_up_changes(1, datetime.now(UTC))[0]
    canary = {**change, "meta": {**change["meta"], "id": "c", "domain": "canary"}}
    odd = ["no json", '{"user": "without meta"}', "[1]", '{"meta": {"id": 7}}', '{"meta": []}', "[" * 5000, "1" * 5000]
    times = ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "1999-11-20T05:00:00", "no time", "+99999-01-01T00:00:00Z"]
    strange = [
        json.dumps({**change, "meta": {**change["meta"], "id": dt, "dt": dt}, "timestamp": 10**30}) for dt in times
    ]
    surrogate = json.dumps({**change, "meta": {"id": "s"}, "title": "\ud800", "wiki": "w"})
    sent = [json.dumps(change), *odd, *strange, surrogate, "twice", "twice"]
    frames = [frame(number, data) for number, data in enumerate(sent)]
    extra = [frame(90, json.dumps(canary)), frame(91, "{}", "error"), b"id: 92\n\n", frame(93, json.dumps(change))]
    begun = time.time() * 1000 - 1000
    with ScriptedServer(Answer((b"retry: 20\n\n", *frames, *extra)), Answer(status=204)) as server:
        counts = follow(home, server)
    records = written(home)
    assert Counter(record.value for record in records) == Counter(data.encode() for data in sent)
    assert (counts["canaries"], counts["other_types"], counts["without_data"], counts["duplicates"]) == (1, 1, 1, 1)
    assert counts["last_event_id"] == "93"
    # An implausible time does not become the record's.
    for record in records:
        if (record.value or b"").decode() in [*strange, *odd]:
            assert begun <= record.timestamp <= time.time() * 1000 + 1000


def test_an_event_is_kept_in_a_file_when_kafka_refuses_it(home: Home) -> None:
    # Random digits do not compress below the broker's limit of a megabyte.
    large = json.dumps({"meta": {"id": "large"}, "comment": f"{random.Random(1).getrandbits(12_000_000):x}"})
    # What the topic takes compressed is written, however large it is.
    huge = json.dumps({"meta": {"id": "huge"}, "comment": "x" * 5_000_000})
    small = [json.dumps({"meta": {"id": f"small {n}"}}) for n in range(50)]
    sent = [*small[:25], large, huge, *small[25:]]
    frames = [frame(number, data) for number, data in enumerate(sent)]
    with ScriptedServer(Answer(frames), Answer(status=204)) as server:
        counts = follow(home, server)
    assert counts["refused"] == 1
    assert Counter(record.value for record in written(home)) == Counter(data.encode() for data in [*small, huge])
    kept = max((home.path / "streams").glob("*.refused.jsonl"), key=lambda path: path.stat().st_mtime)
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [line["data"] for line in lines] == [large]
    assert all(line["reason"] for line in lines)
    assert kept.stat().st_mode & 0o077 == 0
    assert counts["last_event_id"] == str(len(sent) - 1)


def test_old_events_are_written_with_the_present_time_when_the_topic_takes_only_newer_ones(home: Home) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    bound = {"message.timestamp.before.max.ms": str(24 * 3600 * 1000)}
    client = AdminClient({"bootstrap.servers": home.kafka})
    client.create_topics([NewTopic(TOPIC, 1, config=bound)])[TOPIC].result(30)
    now = datetime.now(UTC).replace(microsecond=0)
    times = [now - timedelta(days=2 * (number % 3 == 0), minutes=1) for number in range(300)]
    changes = [made_up_changes(1, moment, seed=number)[0] for number, moment in enumerate(times)]
    frames = [frame(number, json.dumps(change)) for number, change in enumerate(changes)]
    with ScriptedServer(Answer(frames), Answer(status=204)) as server:
        counts = follow(home, server)
    assert (counts["written"], counts["refused"]) == (300, 0)
    found = {json.loads(record.value or b"")["meta"]["id"]: record.timestamp for record in written(home)}
    for change, moment in zip(changes, times, strict=True):
        stamped = datetime.fromtimestamp(found.pop(change["meta"]["id"]) / 1000, UTC)
        assert stamped >= now if moment < now - timedelta(days=1) else stamped == moment
    assert found == {}


def test_small_events_are_written_when_the_topic_takes_only_small_batches_and_then_smaller_ones(home: Home) -> None:
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

    client = AdminClient({"bootstrap.servers": home.kafka})
    client.create_topics([NewTopic(TOPIC, 1, config={"max.message.bytes": "20000"})])[TOPIC].result(30)
    sizes, rng = [30_000 if number == 100 else 1_000 for number in range(400)], random.Random(1)
    # What cannot be compressed: the limit is one of bytes on the wire.
    paddings = [rng.randbytes(size).hex() for size in sizes]
    sent = [json.dumps({"meta": {"id": str(number)}, "padding": each}) for number, each in enumerate(paddings)]
    frames = [frame(number, data) for number, data in enumerate(sent)]
    pieces = Gated(frames[:200], frames[200:])
    with ScriptedServer(Answer(pieces), Answer(status=204)) as server:
        process = home.start("produce", "wiki_changes", "--from-stream", server.url)
        try:
            wait_for("the position", lambda: bool(server.last_event_ids) and position(home) == "199")
            lower = ConfigEntry("max.message.bytes", "5000", incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC, incremental_configs=[lower])
            client.incremental_alter_configs([resource])[resource].result(30)
            pieces.gate.set()
            out, errors = process.communicate(timeout=60)
        finally:
            pieces.gate.set()
            end_of(process)
    assert process.returncode == 0, errors
    counts = json.loads(out)
    assert (counts["written"], counts["refused"], counts["last_event_id"]) == (399, 1, "399")
    assert ids(written(home)) == Counter(str(number) for number in range(400) if number != 100)


def test_follower_ends_with_0_when_time_is_up_and_goes_on_from_there(home: Home) -> None:
    first = Answer((frame(1, '{"meta": {"id": "a"}}'),), end="hold")
    second = Answer((frame(2, '{"meta": {"id": "b"}}'),), end="hold")
    with ScriptedServer(first, second) as server:
        assert follow(home, server, "--seconds", "2")["last_event_id"] == "1"
        assert follow(home, server, "--until", "1")["last_event_id"] == "2"
        assert server.last_event_ids == [None, "1"]
    assert ids(written(home)) == Counter("ab")


def test_second_follower_is_refused_with_5_when_the_first_runs(home: Home) -> None:
    with ScriptedServer(Answer((frame(1, '{"meta": {"id": "a"}}'),), end="hold")) as server:
        first = home.start("produce", "wiki_changes", "--from-stream", server.url)
        try:
            wait_for("the follower", lambda: bool(server.last_event_ids))
            refused = home.run("produce", "wiki_changes", "--from-stream", server.url, expect=5)
            assert "another process follows" in refused.stderr
            first.send_signal(signal.SIGINT)
            assert first.wait(60) == 0
        finally:
            end_of(first)


class Gated:
    """Return pieces of which the later ones wait for `gate`; `sent` is set after the last one."""

    def __init__(self, before: list[bytes], after: list[bytes]) -> None:
        self.gate, self.sent = threading.Event(), threading.Event()
        self._before, self._after = before, after

    def __iter__(self) -> Iterator[bytes]:
        yield from self._before
        self.gate.wait(60)
        yield from self._after
        self.sent.set()


@pytest.mark.slow
def test_id_stays_and_exit_code_is_6_when_kafka_does_not_confirm(home: Home) -> None:
    pid = home.services["kafka"]["pid"]
    changes = made_up_changes(200, datetime.now(UTC), seed=9)
    frames = [frame(number, json.dumps(change)) for number, change in enumerate(changes)]
    pieces = Gated(frames[:100], frames[100:])
    with ScriptedServer(Answer(pieces, end="hold"), Answer(frames[100:], end="hold")) as server:
        process = home.start("produce", "wiki_changes", "--from-stream", server.url)
        try:
            wait_for("the position", lambda: bool(server.last_event_ids) and position(home) == "99")
            os.kill(pid, signal.SIGSTOP)
            pieces.gate.set()
            assert pieces.sent.wait(30)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=120)
        finally:
            os.kill(pid, signal.SIGCONT)
            end_of(process)
        assert process.returncode == 6, errors
        assert "did not confirm" in errors.splitlines()[-1]
        assert position(home) == "99"
        wait_for("the broker", lambda: home.services["kafka"]["healthy"])
        follow(home, server, "--until", "100")
        assert server.last_event_ids == [None, "99"]
    assert set(ids(written(home))) == {change["meta"]["id"] for change in changes}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["wiki_changes", "--from-stream", "https://", "--events", "1"], 64, "either --events N or --from-stream"),
        (["nest_cameras", "--from-stream", "https://example.org"], 64, "cannot follow an event stream"),
        (["wiki_changes", "--from-stream", "example.org/stream"], 6, "https://"),
        (["wiki_changes", "--from-stream", "https://example.org", "--contact", "me"], 64, "not a contact"),
        (["wiki_changes", "--from-stream", "https://example.org", "--accept-gap", "past"], 64, "not a time"),
    ],
)
def test_one_line_says_what_is_wrong_when_the_stream_cannot_be_followed(
    home: Home, arguments: list[str], code: int, words: str
) -> None:
    refused = home.run("produce", *arguments, expect=code)
    assert words in refused.stderr.splitlines()[-1]
    assert "Traceback" not in refused.stderr


def gaps(home: Home, server: ServiceServer) -> list[dict[str, Any]]:
    return [gap for gap in home.json("status", "--json")["event_gaps"] if gap["stream"] == server.url]


@pytest.mark.slow
def test_time_that_the_service_no_longer_has_is_told_kept_and_passed_only_when_told_to(home: Home) -> None:
    me = ("--contact", "me@example.org")
    begin = (datetime.now(UTC) - timedelta(hours=5)).replace(microsecond=0)
    with ServiceServer(begin, 200) as server:
        server.present = 190
        follow(home, server, "--until", "10", *me)

        server.kept_since, server.present = server.moment(230), 240
        server.changes = [made_up_changes(1, server.moment(n), seed=n)[0] for n in range(260)]
        refused = home.run("produce", "wiki_changes", "--from-stream", server.url, *me, expect=4)
        last = refused.stderr.splitlines()[-1]
        assert "1 hour 41 minutes are missing so far" in last
        assert "the position is too old" in last
        assert "--accept-gap present" in last
        (still_open,) = gaps(home, server)
        assert (still_open["from"], still_open["until"]) == (format_time(server.moment(199)), None)

        early = ("--accept-gap", format_time(server.moment(220)))
        refused = home.run("produce", "wiki_changes", "--from-stream", server.url, *me, *early, expect=4)
        assert "name a later time" in refused.stderr.splitlines()[-1]
        counts = follow(home, server, "--until", "5", *me, "--accept-gap", format_time(server.moment(235)))
        assert counts["missing_seconds"] == 36 * 60
        (closed,) = gaps(home, server)
        assert (closed["until"], closed["seconds"]) == (format_time(server.moment(235)), 36 * 60)
        assert closed["accepted_by"]

        # The option is used once; afterwards the follower continues without it.
        follow(home, server, "--until", "5", *me)
        server.kept_since, server.present = server.moment(250), 255
        counts = follow(home, server, "--until", "5", *me, "--accept-gap", "present")
        assert counts["missing_seconds"] == 11 * 60
        assert [gap["seconds"] for gap in gaps(home, server)] == [36 * 60, 11 * 60]
    found = {json.loads(record.value or b"")["meta"]["dt"] for record in written(home)}
    wanted = [*range(190, 200), *range(235, 245), *range(255, 260)]
    assert {datetime.fromisoformat(dt) for dt in found} == {server.moment(number) for number in wanted}
    doctor = home.run("doctor", expect=None).stdout
    assert "accepted by" in doctor


def test_position_is_named_with_exit_code_64_when_it_is_damaged(home: Home, tmp_path: Path) -> None:
    with ScriptedServer(Answer(status=204)) as server:
        follow(home, server)
        with ScriptedServer(Answer((frame(1, "x"),)), Answer(status=204)) as other:
            follow(home, other)
            found = max((home.path / "streams").glob("*.json"), key=lambda path: path.stat().st_mtime)
            found.write_text("{")
            refused = home.run("produce", "wiki_changes", "--from-stream", other.url, expect=64)
    assert str(found) in refused.stderr
