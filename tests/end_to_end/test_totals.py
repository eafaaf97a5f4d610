"""Counts without a window, end to end: isp_hits' totals through intervals in any order, reruns, late and missing ones,
a new generation, replays, and a topic that tells a wrong number.

One pipeline goes through all of it, in this order; after each step every number is counted by hand.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.conftest import Home, iso, last_hours, settings_of
from tests.support import audit
from tests.support.checkout import Checkout, copy_checkout

pytestmark = [pytest.mark.services, pytest.mark.slow]

START = last_hours(7)
HOUR = timedelta(hours=1)
TOPIC = "isp-hits"
STREAM = ("stream", "isp_hits", "--until-caught-up")
TOTALS = {"zip_totals": ("isp-hits-zip-totals", "zipcode"), "isp_totals": ("isp-hits-isp-totals", "isp")}
LONG = "Northwind Cable " * 20


def produce(home: Home, hour: int, events: int, seed: int) -> None:
    home.produce("isp_hits", events, START + hour * HOUR, "1h", bad=0.02, seed=seed)


def good_hits(home: Home, longest: int) -> list[dict[str, Any]]:
    """Return the hits that must be archived, computed only with the standard library."""
    found = []
    for record in audit.read_topic(home.kafka, TOPIC).values():
        try:
            hit = json.loads((record.value or b"").decode())
            moment = datetime.fromisoformat(hit["hittime"])
        except (UnicodeDecodeError, ValueError, KeyError, TypeError):
            continue
        safe = isinstance(hit.get("zipcode"), str) and hit["zipcode"].isdigit()
        named = isinstance(hit.get("isp"), str) and 1 <= len(hit["isp"].encode()) <= longest
        if safe and named and abs((moment - START).total_seconds()) < 86_400:
            found.append(hit)
    return found


def counted(home: Home, view: str, longest: int = 200) -> Counter[str]:
    return Counter(hit[TOTALS[view][1]] for hit in good_hits(home, longest))


def told(home: Home, view: str) -> Counter[str]:
    topic, key = TOTALS[view]
    values = audit.last_values(home.kafka, topic)
    return Counter({json.loads(text)[key]: value["hits"] for text, value in values.items()})


def served(home: Home, view: str) -> dict[str, tuple[int, str]]:
    statement = f"SELECT {TOTALS[view][1]}, hits, state FROM live.isp_hits_{view}"
    return {key: (hits, state) for key, hits, state in home.rows("serving", statement)}


def differences(verdict: dict[str, Any]) -> dict[str, set[str]]:
    """By class, which totals differ, by the first 20 differences of each."""
    found: dict[str, set[str]] = defaultdict(set)
    for each in verdict["differences"]:
        found[each["class"]].add(each["what"].split(" ")[0])
    return found


@pytest.fixture(scope="module")
def totals(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A deployment whose isp_hits has no other views, so that a verdict is about totals only."""
    checkout = copy_checkout(tmp_path_factory.mktemp("totals") / "checkout", home)
    declared = checkout.path / "include/pipelines/isp_hits.py"
    text = declared.read_text()
    begin, end = (text.index(f'AdditiveView(\n            name="{name}"') for name in ("by_zip", "zip_totals"))
    lines = (text[:begin] + text[end:]).splitlines()
    declared.write_text("\n".join(line for line in lines if 'view="by_zip"' not in line) + "\n")
    return checkout


@pytest.fixture(scope="module")
def streamed(home: Home, totals: Checkout) -> Home:
    """Four hours, counted and in no interval yet."""
    for hour in range(4):
        produce(home, hour, 300, hour)
    producer = home.producer()
    at = START + timedelta(minutes=30)
    hit = {"zipcode": "94103", "hittime": iso(at), "isp": LONG, "user": "u"}
    for _ in range(3):
        producer.produce(TOPIC, json.dumps(hit).encode(), timestamp=int((START + 3.9 * HOUR).timestamp() * 1000))
    assert producer.flush(30) == 0
    totals.run(*STREAM)
    return home


def interval(checkout: Checkout, hour: int) -> dict[str, Any]:
    verdict: dict[str, Any] = checkout.json("interval", "isp_hits", *bounds(hour))
    assert verdict["reconciliation"]["unexplained"] == 0
    return verdict


def test_totals_in_topic_and_table_are_those_of_all_hits(streamed: Home) -> None:
    for view in TOTALS:
        assert told(streamed, view) == counted(streamed, view)
        assert {key: hits for key, (hits, _) in served(streamed, view).items()} == counted(streamed, view)
        assert {state for _, state in served(streamed, view).values()} == {"live"}


def test_interval_explains_what_other_intervals_have_not_got_yet_as_pending(streamed: Home, totals: Checkout) -> None:
    # The second hour is not built yet.
    for hour in (0, 2):
        verdict = interval(totals, hour)
        assert differences(verdict).keys() == {"pending"}
        assert verdict["reconciliation"]["pending"] > len(counted(streamed, "isp_totals"))
    assert {state for _, state in served(streamed, "isp_totals").values()} == {"both"}
    for view in TOTALS:
        assert {key: hits for key, (hits, _) in served(streamed, view).items()} == counted(streamed, view)


def test_total_is_the_sum_of_all_parts_once_every_interval_is_registered(streamed: Home, totals: Checkout) -> None:
    interval(totals, 1)
    verdict = interval(totals, 3)
    assert verdict["differences"] == []
    assert verdict["reconciliation"]["matched"] >= len(counted(streamed, "isp_totals"))
    for view in TOTALS:
        assert served(streamed, view) == {key: (hits, "proved") for key, hits in counted(streamed, view).items()}
        table = streamed.json("sql", f"SELECT sum(hits) AS n FROM lake.isp_hits_{view}", "--json")
        assert table[0]["n"] == counted(streamed, view).total()


def test_interval_that_is_run_again_is_still_a_part_of_the_same_total(streamed: Home, totals: Checkout) -> None:
    assert interval(totals, 0)["differences"] == []


def test_late_hits_count_at_once_and_are_proved_by_the_interval_that_delivers_them(
    streamed: Home, totals: Checkout
) -> None:
    produce(streamed, 0, 100, 50)
    totals.run(*STREAM)
    late = {view: served(streamed, view) for view in TOTALS}
    for view in TOTALS:
        assert {key: hits for key, (hits, _) in late[view].items()} == counted(streamed, view)
    assert "both" in {state for _, state in late["zip_totals"].values()} <= {"proved", "both"}
    produce(streamed, 4, 200, 4)
    totals.run(*STREAM)
    assert interval(totals, 4)["differences"] == []
    for view in TOTALS:
        assert served(streamed, view) == {key: (hits, "proved") for key, hits in counted(streamed, view).items()}


def test_total_that_tells_another_number_is_unexplained_and_a_new_generation_mends_it(
    streamed: Home, totals: Checkout
) -> None:
    topic, key = TOTALS["isp_totals"]
    right = told(streamed, "isp_totals")
    name, hits = right.most_common()[-1]
    records = audit.read_topic(streamed.kafka, topic)
    ((_, partition, _), last) = max(
        (each for each in records.items() if each[1].key and json.loads(each[1].key)[key] == name),
        key=lambda each: each[0],
    )
    producer = streamed.producer()
    wrong = {**json.loads(last.value or b""), "hits": hits + 1}
    producer.produce(topic, json.dumps(wrong, sort_keys=True).encode(), last.key, partition)
    assert producer.flush(30) == 0
    refused = totals.run("interval", "isp_hits", *bounds(4), expect=3)
    assert f"hits: speed view {hits + 1}; other registered intervals" in refused.stdout + refused.stderr
    totals.run("new-generation", "isp_hits", "--reason", "somebody wrote into the topic")
    totals.run(*STREAM)
    assert interval(totals, 4)["differences"] == []
    for view in TOTALS:
        assert told(streamed, view) == counted(streamed, view)
        assert served(streamed, view) == {key: (hits, "proved") for key, hits in counted(streamed, view).items()}


def bounds(hour: int) -> tuple[str, ...]:
    return ("--from", iso(START + hour * HOUR), "--to", iso(START + (hour + 1) * HOUR))


@pytest.fixture(scope="module")
def wider(streamed: Home, totals: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Code whose rule lets long names of providers pass, and that declares few zip codes."""
    checkout = copy_checkout(tmp_path_factory.mktemp("wider") / "checkout", streamed)
    declared = "include/pipelines/isp_hits.py"
    (checkout.path / declared).write_text((totals.path / declared).read_text())
    checkout.edit(declared, 'MaxBytes("isp", 200)', 'MaxBytes("isp", 400)')
    checkout.edit(declared, "max_keys=50_000", "max_keys=5")
    checkout.edit("expectations/isp_hits.py", "max_value=200", "max_value=400")
    return checkout


def test_replayed_hits_are_in_the_intervals_and_proved_and_explain_the_difference(
    streamed: Home, wider: Checkout
) -> None:
    wider.run("new-generation", "isp_hits", "--reason", "long names of providers")
    produce(streamed, 5, 100, 5)
    assert "are declared at most; all are counted" in wider.run(*STREAM).stderr
    assert wider.json("quarantine", "replay", "isp_hits")["replayed"] >= 3
    found = differences(interval(wider, 5))
    assert found["quarantined"] >= set(TOTALS)
    assert not {"pending", "code"} & found.keys()
    for view in TOTALS:
        right = counted(streamed, view, longest=400)
        assert served(streamed, view) == {key: (hits, "proved") for key, hits in right.items()}
    # Counted by a stream that never saw them.
    assert LONG not in told(streamed, "isp_totals")
    assert not {"pending", "late"} & differences(interval(wider, 0)).keys()


def test_keys_are_counted_against_their_limit_for_metrics_and_operators(streamed: Home) -> None:
    from include.alerts import key_limits
    from include.ledger.totals import key_counts
    from include.pipelines import load_pipeline

    with settings_of(streamed):
        keys = key_counts("isp_hits")
        assert keys == {view: len(told(streamed, view)) for view in TOTALS}
        assert key_limits.watch(load_pipeline("isp_hits")) == (0, 0)
