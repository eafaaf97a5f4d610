"""The long tier: a random walk over what operators do to one pipeline, beside kills, lost records and recreated topics.

    WALK=80 SEED=2 ./tidemark test -m slow tests/faults/test_operators_walk.py

Without the variable, a walk has twelve steps, each a command or two, and often what their messages name. Afterwards
only that is typed, until the stream has caught up and each hour is registered; then everything is held against the
records. `SEED` chooses the steps; their moments among each other differ from run to run.
"""

from __future__ import annotations

import os
import random
import re
import shlex
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from subprocess import CompletedProcess
from urllib.parse import urlsplit

import psutil
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from include.pipelines import load_pipeline
from include.producing import generate
from tests.conftest import REPOSITORY, Home, iso, last_hours, wait_for
from tests.support.walked_topic import PIPELINE, TOPIC, WalkedTopic

pytestmark = [pytest.mark.services, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(21_600)]

WALK = int(os.environ.get("WALK", "12"))
SEED = int(os.environ.get("SEED", "20261129"))
HOURS = 4
PATIENCE = 300
TRIES = 8
"""Commands after each of which what it names is typed, before a pipeline counts as blocked for good."""

LEFT_BEHIND = {"revision unknown to the ledger", "landing unknown to the ledger"}
"""What a killed driver may leave, as doctor calls it."""

COMMAND = re.compile(r"\./tidemark ([^;,`()|—]*)")
PROSE = re.compile(r" (?:or|and|again|then|to|it|when|in|from|until|while|if|first|names|starts|does|which|shows)\b.*")
"""What follows a command in a message."""


@dataclass
class Walk:
    """One pipeline, its services, and what runs beside the next step."""

    home: Home
    rng: random.Random
    start: datetime
    topic: WalkedTopic
    produced: int = 0
    """Times, each of which is a seed."""
    newest: int = 0
    """Hours with records, so far."""
    stream: subprocess.Popen[bytes] | None = None
    advice: str = ""
    """The last line of the last command, where it failed."""
    ends: Counter[str] = field(default_factory=Counter)

    def hour(self, number: int) -> datetime:
        return self.start + timedelta(hours=number)

    def run(self, *arguments: str) -> CompletedProcess[str]:
        """Run a command to its end; whatever that is, it is told as a person can use it."""
        ended = self.home.run(*arguments, expect=None)
        self.note(arguments, ended.returncode, ended.stderr)
        return ended

    def note(self, arguments: tuple[str, ...], code: int, said: str) -> None:
        self.ends[f"{arguments[0]} {code}"] += 1
        self.advice = last_line(said) if code > 0 else ""
        print(f"{' '.join(arguments)} -> {code} {self.advice}", flush=True)
        assert "Traceback" not in said, said
        assert "a defect" not in said, said
        if code > 0:
            assert " — " in self.advice or "./tidemark" in self.advice, f"no way on: {said}"

    def take_advice(self) -> None:
        """Type what the last line names, until one of its commands succeeds."""
        for words in named(self.advice):
            if words[:1] == ["stream"] and "--stop" not in words:
                words = ["stream", PIPELINE, "--until-caught-up"]
            if self.run(*words).returncode == 0:
                break

    @property
    def said(self) -> Path:
        """What commands beside others have said."""
        return self.home.path / "said.log"

    def begin(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command in a session of its own, as from another terminal."""
        with self.said.open("ab") as log:
            return subprocess.Popen(
                self.home.command(*arguments),
                env=self.home.environment(),
                cwd=REPOSITORY,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )

    def is_streaming(self) -> bool:
        return self.stream is not None and self.stream.poll() is None

    def interval(self, hour: int, *wishes: str) -> tuple[str, ...]:
        return ("interval", PIPELINE, "--from", iso(self.hour(hour)), "--to", iso(self.hour(hour + 1)), *wishes)

    def any_interval(self) -> tuple[str, ...]:
        wishes = ["--source", "archive"] if self.rng.random() < 0.15 else []
        wishes += ["--repin"] if self.rng.random() < 0.15 else []
        return self.interval(self.rng.randrange(max(1, self.newest)), *wishes)

    def send(self, events: int, first: int, hours: int, bad: float, at: datetime | None = None) -> None:
        """Messages with event times in these hours; with `at`, Kafka takes them for records of that time."""
        producer = self.home.producer()
        self.produced += 1
        messages = generate.messages(
            load_pipeline(PIPELINE),
            events=events,
            seed=self.produced,
            bad_fraction=bad,
            start=self.hour(first),
            span=timedelta(hours=hours),
        )
        for moment, key, value, _ in messages:
            stamp = int((at or moment).timestamp() * 1000)
            for _ in range(2 if self.rng.random() < 0.03 else 1):
                producer.produce(TOPIC, value, key, timestamp=stamp)
        assert producer.flush(60) == 0

    @cached_property
    def admin(self) -> AdminClient:
        """A client that outlives its futures, and the broker's restarts."""
        return AdminClient({"bootstrap.servers": self.home.kafka})


def last_line(said: str) -> str:
    return next((line for line in reversed(said.splitlines()) if line.strip()), "")


def produce(walk: Walk) -> None:
    """The next hour's records, once all hours have some those of any."""
    hour = walk.newest if walk.newest < HOURS else walk.rng.randrange(HOURS)
    walk.send(walk.rng.randint(200, 800), hour, 1, walk.rng.choice((0, 0.02, 0.1)))
    walk.newest = max(walk.newest, hour + 1)


def produce_late(walk: Walk) -> None:
    newest = max(0, walk.newest - 1)
    walk.send(walk.rng.randint(50, 200), 0, max(1, newest), 0.02, walk.hour(newest) + timedelta(minutes=50))


def catch_up(walk: Walk) -> None:
    if not walk.is_streaming():
        walk.run("stream", PIPELINE, "--until-caught-up")


def start_stream(walk: Walk) -> None:
    if not walk.is_streaming():
        walk.stream = walk.begin("stream", PIPELINE)
        time.sleep(walk.rng.uniform(5, 25))


def stop_stream(walk: Walk) -> None:
    if walk.stream is not None and walk.is_streaming():
        if walk.rng.random() < 0.5:
            walk.run("stream", PIPELINE, "--stop")
        else:
            walk.stream.send_signal(signal.SIGTERM)
        walk.stream.wait(PATIENCE)


def kill(walk: Walk, process: subprocess.Popen[bytes]) -> None:
    """Kill a command alone, or with everything below it."""
    below = psutil.Process(process.pid).children(recursive=True) if walk.rng.random() < 0.7 else []
    process.kill()
    for each in below:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait(60)
    walk.ends["killed"] += 1


def kill_stream(walk: Walk) -> None:
    start_stream(walk)
    if walk.stream is not None and walk.is_streaming():
        kill(walk, walk.stream)


def run_interval(walk: Walk) -> None:
    walk.run(*walk.any_interval())


def run_two_intervals(walk: Walk) -> None:
    """At once, of one hour or of two."""
    beside = walk.begin(*walk.any_interval())
    walk.run(*walk.any_interval())
    walk.ends[f"interval beside {beside.wait(PATIENCE)}"] += 1


def kill_interval(walk: Walk) -> None:
    process = walk.begin(*walk.any_interval())
    with suppress(subprocess.TimeoutExpired):
        process.wait(walk.rng.uniform(2, 40))
    if process.poll() is None:
        kill(walk, process)


def kill_service(walk: Walk) -> None:
    name = walk.rng.choice(("kafka", "postgres"))
    psutil.Process(walk.home.process_id(name)).kill()
    time.sleep(walk.rng.uniform(0, 8))
    walk.run("up", name)


def rebuild(walk: Walk) -> None:
    registered = walk.home.ledger("SELECT table_name, table_partition FROM revisions WHERE state = 'registered'")
    if registered:
        table, part = walk.rng.choice(sorted(registered))
        assert walk.run("rebuild", table, part).returncode != 1, f"{table} {part} is not what it was"


def change_quarantine(walk: Walk) -> None:
    code = walk.rng.choice(("malformed_json", "wrong_type", "required_missing", "null_value"))
    discard = ("discard", PIPELINE, "--code", code, "--reason", "walk")
    walk.run("quarantine", *walk.rng.choice([("list", PIPELINE), ("replay", PIPELINE), discard]))


def erase(walk: Walk) -> None:
    stop_stream(walk)
    camera = f"cam-{walk.rng.randrange(400):04d}"
    dry = ["--dry-run"] if walk.rng.random() < 0.5 else []
    walk.run("erase", PIPELINE, "--key", camera, "--whole-records", "--reason", "asked to", *dry)


def keep_house(walk: Walk) -> None:
    walk.run("housekeeping", PIPELINE, *walk.rng.choice(((), ("--dry-run",), ("--older-than", "0s"))))


def look_for_damage(walk: Walk) -> None:
    walk.run("doctor", *walk.rng.choice(((), ("--deep",), ("--repair",))))


def report_ranges(walk: Walk) -> None:
    positions = "SELECT topic_partition, next_offset FROM positions WHERE query = 'archive' AND next_offset > 0"
    if found := sorted(walk.home.ledger(positions)):
        partition, end = walk.rng.choice(found)
        walk.run("report", PIPELINE, "--ranges", f"{TOPIC}:{partition}:{walk.rng.randrange(end)}-{end}")


def add_topic_partition(walk: Walk) -> None:
    count = len(walk.admin.list_topics(TOPIC, timeout=20).topics[TOPIC].partitions)
    if count < 6:
        walk.admin.create_partitions([NewPartitions(TOPIC, count + 1)])[TOPIC].result(20)


def delete_records(walk: Walk) -> None:
    """As retention does: what is archived, and at times what is not."""
    walk.topic.look()
    now = walk.topic.topic_id()
    archived = dict(walk.home.ledger("SELECT topic_partition, next_offset FROM positions WHERE query = 'archive'"))
    ends = {each[1]: each[2] + 1 for each in sorted(walk.topic.seen) if each[0] == now}
    too_early = walk.rng.random() < 0.4
    until = {p: end if too_early else min(end, archived.get(p, 0)) for p, end in ends.items()}
    wanted = [TopicPartition(TOPIC, p, walk.rng.randint(0, end)) for p, end in until.items() if walk.rng.random() < 0.6]
    for each in walk.admin.delete_records(wanted).values() if wanted else ():
        # Of offsets that are gone already.
        with suppress(Exception):
            each.result(20)


def recreate_topic(walk: Walk) -> None:
    walk.topic.look()
    walk.admin.delete_topics([TOPIC])[TOPIC].result(30)

    def is_created() -> bool:
        with suppress(Exception):
            walk.admin.create_topics([NewTopic(TOPIC, 4, 1)])[TOPIC].result(20)
            return True
        return False

    wait_for("the topic to go and come back", is_created, 60)
    produce(walk)


STEPS: dict[Callable[[Walk], None], int] = {
    produce: 5,
    produce_late: 2,
    catch_up: 4,
    start_stream: 3,
    stop_stream: 2,
    kill_stream: 2,
    run_interval: 6,
    run_two_intervals: 2,
    kill_interval: 3,
    kill_service: 2,
    rebuild: 2,
    change_quarantine: 2,
    erase: 1,
    keep_house: 2,
    look_for_damage: 2,
    report_ranges: 1,
    add_topic_partition: 1,
    delete_records: 2,
    recreate_topic: 1,
}


def named(line: str) -> Iterator[list[str]]:
    """The commands that a message names, as a person would type them."""
    for match in COMMAND.finditer(line):
        with suppress(ValueError):
            typed = PROSE.sub("", match.group(1)).strip().rstrip(".:")
            yield shlex.split(typed.replace('"…"', '"as it says"'))


def do_as_told(walk: Walk, arguments: tuple[str, ...]) -> bool:
    """Run a command until it succeeds; each time type what its last line names, and nothing else."""
    wishes: tuple[str, ...] = ()
    for _ in range(TRIES):
        if walk.run(*arguments, *wishes).returncode == 0:
            return True
        if "--source archive" in walk.advice and not wishes:
            wishes = ("--source", "archive")
        else:
            wishes = ()
            walk.take_advice()
    return False


@pytest.fixture(scope="module")
def walk(home: Home) -> Iterator[Walk]:
    home.run("up", "kafka", "postgres")
    made = Walk(home, random.Random(SEED), last_hours(HOURS), WalkedTopic(home))
    made.admin.create_topics([NewTopic(TOPIC, 4, 1)])[TOPIC].result(20)
    yield made
    if made.stream is not None:
        for each in psutil.Process(made.stream.pid).children(recursive=True) if made.is_streaming() else ():
            each.kill()
        made.stream.kill()


def test_every_offset_has_its_fate_when_operators_did_anything_and_then_what_they_were_told(walk: Walk) -> None:
    produce(walk)
    catch_up(walk)
    for step in walk.rng.choices(list(STEPS), list(STEPS.values()), k=WALK):
        print(f"* {step.__name__}", flush=True)
        step(walk)
        if walk.rng.random() < 0.6:
            walk.take_advice()
    stop_stream(walk)
    walk.run("up", "kafka", "postgres")
    assert do_as_told(walk, ("stream", PIPELINE, "--until-caught-up")), "the stream is blocked for good"
    for hour in range(walk.newest):
        assert do_as_told(walk, walk.interval(hour)), f"hour {hour} is blocked for good"
    # What came late, since the last interval was pinned.
    assert do_as_told(walk, walk.interval(walk.newest - 1, "--repin")), "its rest is blocked for good"
    passed = walk.topic.check()
    for proof in sorted((walk.home.lake / "proofs" / PIPELINE).glob("*.json")):
        walk.home.run("verify", str(proof))
    found = walk.home.json("doctor", "--json", "--deep", expect=None)["findings"]
    assert {each["kind"] for each in found if not each["ok"]} <= LEFT_BEHIND, [each for each in found if not each["ok"]]
    walk.home.run("doctor", "--repair")
    walk.home.run("doctor", "--deep")
    assert "Traceback" not in walk.said.read_text()
    assert passed.total() > 0
    print(f"{WALK} steps, seed {SEED}: {dict(walk.ends)}; offsets {dict(passed)}; lost 0, doubled 0")


def test_walk_does_not_end_well_when_a_count_of_the_ledger_or_a_row_of_a_table_is_wrong(walk: Walk) -> None:
    moved = "UPDATE micro_batch_ranges SET archived = archived + %s, gaps = gaps - %s WHERE micro_batch_id = %s"
    [(batch, partition)] = walk.home.ledger(
        "SELECT micro_batch_id, topic_partition FROM micro_batch_ranges WHERE archived > 0 ORDER BY 1, 2 LIMIT 1"
    )
    walk.home.ledger(f"{moved} AND topic_partition = %s", -1, -1, batch, partition)
    with pytest.raises(AssertionError, match="fates of"):
        walk.topic.check()
    walk.home.ledger(f"{moved} AND topic_partition = %s", 1, 1, batch, partition)
    walk.topic.check()
    [(location,)] = walk.home.ledger(
        "SELECT location FROM revisions WHERE state = 'registered' AND table_name = %s AND rows > 0 LIMIT 1", PIPELINE
    )
    file = next(Path(urlsplit(location).path).glob("*.parquet"))
    file.rename(file.with_suffix(".aside"))
    with pytest.raises(AssertionError, match="rows of interval"):
        walk.topic.check()
    file.with_suffix(".aside").rename(file)
