"""The long tier: the same fault many times under streams that go on, then the audit of every record from outside.

    ZOMBIES=50 BOUNCES=30 POSTGRES_KILLS=40 RECREATIONS=20 ./tidemark test -m slow tests/faults/test_repeated_faults.py

Without these variables each fault happens twice. `SEED` chooses the moments; the same seed gives the same ones.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections import Counter
from contextlib import suppress

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from tests.conftest import last_hours, wait_for
from tests.faults.conftest import Ending, Rig
from tests.support import audit

pytestmark = [pytest.mark.services, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(10_800)]

ZOMBIES = int(os.environ.get("ZOMBIES", "2"))
BOUNCES = int(os.environ.get("BOUNCES", "2"))
POSTGRES_KILLS = int(os.environ.get("POSTGRES_KILLS", "2"))
RECREATIONS = int(os.environ.get("RECREATIONS", "2"))
SEED = int(os.environ.get("SEED", "20261123"))
RECORDS = 200
"""Before each fault."""

FROZEN_AT = ("batch_planned", "landing_written", "quarantine_moved", "speed_written", "speed_emitted")


def committed(rig: Rig) -> int:
    query = "SELECT coalesce(sum(next_offset), 0) FROM positions WHERE pipeline = 'nest_cameras' AND query = 'archive'"
    return int(rig.home.ledger(query)[0][0])


def audited(rig: Rig) -> int:
    """Catch up, and return how many records are archived once each; asserts that the compacted topic is right, too."""
    rig.catch_up()
    rig.audit()
    return committed(rig)


def tokens(rig: Rig) -> dict[str, list[int]]:
    """Fencing tokens of each query's micro-batches, in the order of their commits."""
    found: dict[str, list[int]] = {}
    for query, token in rig.home.ledger(
        "SELECT query, token FROM micro_batches WHERE pipeline = 'nest_cameras' ORDER BY id"
    ):
        found.setdefault(query, []).append(token)
    return found


def in_order(found: dict[str, list[int]]) -> dict[str, list[int]]:
    """The same if no driver has committed after its successor."""
    return {query: sorted(each) for query, each in found.items()}


def stop(stream: subprocess.Popen[str]) -> None:
    """End a stream that survived an outage, or that has ended because of it with a clear error."""
    if stream.poll() is None:
        stream.send_signal(signal.SIGTERM)
    _, errors = stream.communicate(timeout=180)
    assert stream.returncode in (0, 6), errors
    assert "Traceback" not in errors, errors


def end_service(service: psutil.Process) -> None:
    """Kill a service with SIGKILL, and everything that it started."""
    every = [service, *service.children(recursive=True)]
    for process in every:
        process.kill()
    psutil.wait_procs(every, timeout=30)


def test_no_zombie_changes_anything_when_drivers_are_frozen_again_and_again(rig: Rig, ending: Ending) -> None:
    rng = random.Random(SEED)
    ended: Counter[tuple[str, int]] = Counter()
    for _ in range(ZOMBIES):
        rig.produce(RECORDS)
        moment = rng.choice(FROZEN_AT)
        zombie, driver = rig.frozen(ending, moment, "--until-caught-up")
        # Its successor waits out the lease, commits the same records and ends.
        rig.catch_up()
        os.kill(driver.pid, signal.SIGCONT)
        _, errors = zombie.communicate(timeout=180)
        assert zombie.returncode == 5, errors
        assert "Traceback" not in errors, errors
        ended[moment, zombie.returncode] += 1
    assert audited(rig) == rig.produced
    committed_by = tokens(rig)
    assert committed_by == in_order(committed_by)
    print(f"{ZOMBIES} zombies over {rig.produced} records, seed {SEED}: {dict(ended)}; lost 0, doubled 0")


@pytest.mark.parametrize(
    ("service", "times"),
    [pytest.param("kafka", BOUNCES, id="kafka"), pytest.param("postgres", POSTGRES_KILLS, id="postgres")],
)
def test_nothing_is_lost_or_doubled_when_a_service_is_killed_again_and_again(
    rig: Rig, ending: Ending, service: str, times: int
) -> None:
    rng = random.Random(SEED)
    ended: Counter[int | None] = Counter()
    for _ in range(times):
        # The default, by which a driver is patient.
        stream = ending(rig.started(TIDEMARK_LEASE_SECONDS="15"))
        rig.produce(RECORDS)
        # Any moment of its micro-batches: before the first, within one, between two.
        with suppress(subprocess.TimeoutExpired):
            stream.wait(rng.uniform(0, 8))
        end_service(rig.service(service))
        rig.home.run("up", service)
        rig.produce(RECORDS)
        wait_for("the records, or the end", lambda s=stream: s.poll() is not None or committed(rig) == rig.produced)
        ended[stream.poll()] += 1
        stop(stream)
    assert audited(rig) == rig.produced
    committed_by = tokens(rig)
    assert committed_by == in_order(committed_by)
    print(f"{times} kills of {service} over {rig.produced} records, seed {SEED}: ends {dict(ended)}; lost 0, doubled 0")


def test_each_recreation_of_a_topic_is_detected_and_each_incarnation_is_archived_whole(rig: Rig) -> None:
    topic, start = "isp-hits", last_hours(RECREATIONS + 24)
    client = AdminClient({"bootstrap.servers": rig.home.kafka})

    def produce(events: int, seed: int) -> None:
        rig.home.produce("isp_hits", events, start, "50m", bad=0.05, seed=seed)

    def stream(expect: int = 0) -> str:
        return rig.home.run("stream", "isp_hits", "--until-caught-up", expect=expect).stderr

    produce(RECORDS, seed=0)
    stream()
    check_incarnation(rig, topic)
    for number in range(1, RECREATIONS + 1):
        client.delete_topics([topic])[topic].result(30)
        wait_for("the topic to go", lambda: topic not in audit.topics(rig.home.kafka), 60)
        # More than before: every position would lie inside of the new topic.
        produce(RECORDS + 20 * number, seed=number)
        before = rig.home.ledger("SELECT count(*) FROM micro_batches WHERE pipeline = 'isp_hits'")
        assert "was deleted and created again" in stream(expect=4)
        assert rig.home.ledger("SELECT count(*) FROM micro_batches WHERE pipeline = 'isp_hits'") == before
        rig.home.run("adopt", "isp_hits", topic, "--reason", f"recreation {number}")
        stream()
        check_incarnation(rig, topic)
    closed = rig.home.ledger("SELECT count(*) FROM topic_incarnations WHERE pipeline = 'isp_hits'")
    assert closed == [(RECREATIONS,)]
    print(f"{RECREATIONS} recreations, all detected")


def check_incarnation(rig: Rig, topic: str) -> None:
    """Each record of the topic as it is now lies in one file of its own incarnation's micro-batches, once."""
    files = rig.home.ledger(
        "SELECT DISTINCT f.path FROM landing_files f JOIN micro_batches b ON b.id = f.micro_batch_id "
        "JOIN micro_batch_ranges r ON r.micro_batch_id = b.id JOIN topics t ON t.topic_id = r.topic_id "
        f"WHERE b.pipeline = 'isp_hits' AND t.topic = '{topic}' AND r.from_offset < r.until_offset",
    )
    landed = audit.read_coordinates(rig.home.lake / path for (path,) in files)
    assert landed == Counter(audit.read_topic(rig.home.kafka, topic).keys())
