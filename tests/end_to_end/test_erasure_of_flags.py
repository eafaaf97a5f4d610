"""A bidder is erased from a pipeline with flags: limits that name them go, and flags of before are explained."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from tests.conftest import Home, iso, last_hours
from tests.support import audit, remnants
from tests.support.bids import FLAGS

pytestmark = [pytest.mark.services, pytest.mark.slow]

PIPELINE, TOPIC = "auction_bids", "auction-bids"
START = last_hours(3)
HOURS = [START, START + timedelta(hours=1)]
PERSON = 'Zq7 "O\'Neil" 100% é'


def produce(home: Home, number: int) -> None:
    """Bids as generated, and a burst of the person's, half of them on one seller; the last one is far above usual."""
    start = HOURS[number]
    home.produce(PIPELINE, 1500, start, "50m", seed=7 + number)
    producer = home.producer()
    for place in range(40):
        moment = start + timedelta(minutes=51, seconds=place)
        bid = {"bid_id": f"{number}-{place}", "auction_id": "a", "category": "toys", "currency": "EUR"}
        bid |= {"bidder": PERSON, "seller": "shilled" if place % 2 else f"s{place}", "bid_time": iso(moment)}
        bid |= {"amount": 9_999_999.0 if place == 39 else 20}
        stamp = int(moment.timestamp() * 1000)
        producer.produce(TOPIC, json.dumps(bid, ensure_ascii=False), "a", timestamp=stamp)
    producer.flush()


@pytest.fixture(scope="module")
def landed(home: Home) -> Home:
    """Two hours, the second flagged by limits learned from the first, both published."""
    for number, hour in enumerate(HOURS):
        produce(home, number)
        home.run("stream", PIPELINE, "--until-caught-up")
        assert home.interval(PIPELINE, hour)["reconciliation"]["unexplained"] == 0
    return home


def test_person_is_gone_and_flags_are_explained_when_a_bidder_was_erased(landed: Home) -> None:
    assert remnants.in_database(landed, "Zq7") != []
    asked = ("erase", PIPELINE, "--key", PERSON, "--column", "bidder", "--reason", "a test")
    killed = landed.run(*asked, expect=None, TIDEMARK_CRASH_AT="erased_from_views")
    assert killed.returncode < 0, killed.stderr[-3000:]
    account: dict[str, Any] = landed.json("erase", PIPELINE, "--resume", "--json")
    assert (account["records"], account["intervals"], account["built_intervals"]) == (80, 2, 2)
    assert any(FLAGS in each for each in account["remains"])
    services = tuple(f"{landed.path}/{name}/" for name in ("kafka", "postgres"))
    assert [each for each in remnants.in_files(landed.path, "Zq7") if not each.startswith(services)] == []
    assert [remnants.in_database(landed, "Zq7", name) for name in ("ledger", "serving", "catalog")] == [[], [], []]

    flagged = [record for record in audit.read_topic(landed.kafka, FLAGS).values() if b"Zq7" in (record.value or b"")]
    assert len(flagged) >= 40
    for hour in HOURS:
        verdict = landed.interval(PIPELINE, hour)
        counts = verdict["records"]
        assert counts["erased"] == 40
        assert counts["in_ranges"] == sum(counts[f] for f in ("archived", "empty", "quarantined", "gaps", "erased"))
        assert verdict["reconciliation"]["unexplained"] == 0
        classes = {each["class"] for each in verdict["differences"] if FLAGS in each["what"]}
        assert classes == ({"erased"} if hour == HOURS[1] else classes - {"unexplained"})
    erased_rules = landed.ledger("SELECT erased_rules FROM limits_versions WHERE erased_rules <> '[]' ORDER BY id")
    assert {rule for (rules,) in erased_rules for rule in rules} == {"burst", "shill_pair"}
    again = landed.json(*asked, "--json")
    assert (again["records"], again["built_intervals"]) == (0, 0)
    findings = json.loads(landed.run("doctor", "--json", "--deep", expect=None).stdout)["findings"]
    assert [each for each in findings if not each["ok"] and (each["kind"] or "erasure" in each["what"])] == []
