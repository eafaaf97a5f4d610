"""The quarantine as a user meets it: records are looked at, discarded, and replayed once the code can read them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

from include.intervals.pinning import pin_interval
from include.monitor.web.alone import app_alone
from include.pipelines import load_pipeline
from include.times import Interval
from tests.conftest import Home, iso, last_hours, settings_of, wait_for
from tests.support import audit
from tests.support.checkout import Checkout, copy_checkout

pytestmark = pytest.mark.services

START = last_hours(4)
SECOND = START + timedelta(hours=1)
EVENTS = 1_500


@pytest.fixture(scope="module")
def landed(home: Home) -> Home:
    """Three hours of records, one in ten bad."""
    home.produce("nest_cameras", EVENTS, START, "3h", bad=0.1, seed=11)
    home.run("stream", "nest_cameras", "--until-caught-up")
    return home


@pytest.fixture(scope="module")
def records(landed: Home) -> dict[audit.Coordinates, audit.Record]:
    return audit.read_topic(landed.kafka, "nest-logs")


@pytest.fixture(scope="module")
def far_ahead(records: dict[audit.Coordinates, audit.Record]) -> dict[audit.Coordinates, list[dict[str, Any]]]:
    """The rows of records that are bad only because an event of theirs is dated 2099."""
    found = {}
    for coordinates in audit.expected(records).bad:
        value = records[coordinates].value
        try:
            cameras = list(json.loads(value or b"")["devices"]["cameras"].values())
            years = {camera["last_event"]["start_time"][:4] for camera in cameras}
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
        if "2099" in years and all(c["device_id"] and c["last_event"]["has_person"] != "perhaps" for c in cameras):
            found[coordinates] = cameras
    assert found
    return found


@pytest.fixture(scope="module")
def pinned(landed: Home) -> None:
    """The first interval is pinned: what is replayed later is not of it."""
    with settings_of(landed):
        pin_interval(load_pipeline("nest_cameras"), Interval(START, SECOND), pinned_by="a test")


@pytest.fixture(scope="module")
def first(landed: Home, pinned: None) -> dict[str, Any]:
    return landed.interval("nest_cameras", START)


@pytest.fixture(scope="module")
def wider(landed: Home, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Code whose rule lets events of 2099 pass."""
    checkout = copy_checkout(tmp_path_factory.mktemp("wider") / "checkout", landed)
    checkout.edit("include/pipelines/nest_cameras.py", 'ahead="1h"', 'ahead="36000d"')
    return checkout


@pytest.fixture(scope="module")
def discarded(landed: Home) -> dict[str, Any]:
    """A discarded record, as the listing shows it, and the command's output about it."""
    record = next(row for row in listed(landed) if row["reason"] == "malformed_json")
    said = landed.json("quarantine", "discard", "nest_cameras", *named(at(record)), "--reason", "a test of the sender")
    return {"record": record, "said": said}


@pytest.fixture(scope="module")
def replayed(pinned: None, discarded: dict[str, Any], wider: Checkout) -> dict[str, int]:
    """The output of the first replay, after an interval was pinned and one record discarded."""
    counts: dict[str, int] = wider.json("quarantine", "replay", "nest_cameras")
    return counts


@pytest.fixture(scope="module")
def second(landed: Home, first: dict[str, Any], replayed: dict[str, int]) -> dict[str, Any]:
    """The verdict of the interval that is pinned next after the replay."""
    return landed.interval("nest_cameras", SECOND)


def listed(home: Home, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = home.json("quarantine", "list", "nest_cameras", "--json", *arguments)
    return found


def at(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["kafka_topic"], row["kafka_partition"], row["kafka_offset"]


def named(coordinates: tuple[str, int, int]) -> tuple[str, ...]:
    """One record as `quarantine discard` and `quarantine replay` want it named."""
    _, partition, offset = coordinates
    return ("--partition", str(partition), "--offset", str(offset))


def rows_of(verdict: dict[str, Any], records: dict[audit.Coordinates, audit.Record]) -> set[tuple[str, int, int, int]]:
    return set(audit.expected(audit.in_ranges(records, verdict["ranges"])).rows)


def test_record_is_shown_whole_and_its_bytes_are_written_unchanged_when_it_is_named(
    landed: Home, records: dict[audit.Coordinates, audit.Record], tmp_path: Any
) -> None:
    shown = listed(landed)
    assert {at(row) for row in shown} == audit.expected(records).bad
    assert listed(landed, "--limit", "50") == shown[:50] != shown
    assert {row["state"] for row in shown} == {"quarantined"}
    by_reason = {row["reason"]: row for row in shown}
    for row in (by_reason["not_utf8"], by_reason["event_time_out_of_bounds"], by_reason["null_value"]):
        coordinates = [row["kafka_topic"], str(row["kafka_partition"]), str(row["kafka_offset"])]
        found = landed.json("quarantine", "show", "nest_cameras", *coordinates, "--json")
        assert found["value"].isprintable()
        target = tmp_path / "value"
        value = records[at(row)].value
        landed.run(
            "quarantine", "show", "nest_cameras", *coordinates, "--raw", str(target), expect=64 * (value is None)
        )
        assert value is None or target.read_bytes() == value
    row = by_reason["wrong_type"]
    named_there = (row["kafka_topic"], str(row["kafka_partition"]), str(row["kafka_offset"]))
    (wrong,) = landed.json("quarantine", "show", "nest_cameras", *named_there, "--json")["misfits"]
    assert wrong.endswith("is declared")
    told = landed.run("quarantine", "show", "nest_cameras", *named_there).stdout
    assert "".join(wrong.split()) in "".join(told.split())


def test_record_is_discarded_once_with_who_and_why_when_discard_is_repeated(
    landed: Home, discarded: dict[str, Any]
) -> None:
    assert discarded["said"] == {"selected": 1, "discarded": 1, "already_discarded": 0, "already_replayed": 0}
    victim = at(discarded["record"])
    assert "--all" in landed.run("quarantine", "discard", "nest_cameras", "--reason", "no", expect=64).stderr
    again = landed.json("quarantine", "discard", "nest_cameras", *named(victim), "--reason", "again")
    assert again == {"selected": 1, "discarded": 0, "already_discarded": 1, "already_replayed": 0}
    (row,) = listed(landed, "--state", "discarded")
    assert at(row) == victim
    assert row["note"] == "a test of the sender"
    assert "@" in row["by"]
    unknown = named((victim[0], 0, 99_999_999))
    refused = landed.run("quarantine", "discard", "nest_cameras", *unknown, "--reason", "none", expect=64)
    assert refused.stderr.count("is not in quarantine") == 1


def test_replay_takes_a_record_once_when_newer_code_can_read_it(
    wider: Checkout,
    replayed: dict[str, int],
    records: dict[audit.Coordinates, audit.Record],
    far_ahead: dict[audit.Coordinates, list[dict[str, Any]]],
) -> None:
    bad = audit.expected(records).bad
    assert replayed == {
        "selected": len(bad) - 1,
        "replayed": len(far_ahead),
        "empty": 0,
        "still_failing": len(bad) - 1 - len(far_ahead),
        "already_replayed": 0,
    }
    twice = wider.json("quarantine", "replay", "nest_cameras")
    assert twice == {**replayed, "replayed": 0, "already_replayed": len(far_ahead)}


@pytest.mark.slow
def test_replayed_rows_are_delivered_once_by_the_next_pinned_interval(
    landed: Home,
    second: dict[str, Any],
    records: dict[audit.Coordinates, audit.Record],
    far_ahead: dict[audit.Coordinates, list[dict[str, Any]]],
) -> None:
    assert second["reconciliation"]["unexplained"] == 0
    counts = second["records"]
    assert counts["replayed"] == len(far_ahead)
    assert counts["in_ranges"] == sum(counts[name] for name in ("archived", "empty", "quarantined", "gaps"))
    locations = [r["location"] for r in second["registered"] if r["table"] == "nest_cameras"]
    table = audit.read_parquet(locations)
    late = {(*c, element): row for c, rows in far_ahead.items() for element, row in enumerate(rows)}
    assert audit.identities(table) == Counter(rows_of(second, records) | late.keys())
    for row in table.to_pylist():
        identity = (*at(row), row["kafka_element"])
        if identity in late:
            assert row["device_id"] == late[identity]["device_id"]
            assert int(row["kafka_timestamp"].timestamp() * 1000) == records[identity[:3]].timestamp
    classes = Counter(d["class"] for d in second["differences"])
    assert classes["quarantined"] > 0
    # These rows are of offsets outside of the interval's ranges.
    for proof in {each["proof"] for each in second["registered"]}:
        assert landed.json("verify", proof, "--json")["differences"] == []
    states = {at(row): row for row in listed(landed)}
    assert {c for c, row in states.items() if row["state"] == "replayed"} == set(far_ahead)
    assert {row["interval"] for row in states.values() if row["state"] == "replayed"} == {
        f"{iso(SECOND)}/{iso(SECOND + timedelta(hours=1))}"
    }


@pytest.mark.slow
def test_replayed_rows_are_in_no_other_interval(
    landed: Home,
    first: dict[str, Any],
    second: dict[str, Any],
    records: dict[audit.Coordinates, audit.Record],
    far_ahead: dict[audit.Coordinates, list[dict[str, Any]]],
) -> None:
    # The interval that holds a replayed record's offset keeps it as quarantined.
    again = landed.interval("nest_cameras", START)
    assert again["registered"] == first["registered"]
    assert again["records"] == first["records"]
    third = landed.interval("nest_cameras", SECOND + timedelta(hours=1))
    assert third["records"]["replayed"] == 0
    assert third["reconciliation"]["unexplained"] == 0
    every = [r["location"] for v in (again, second, third) for r in v["registered"] if r["table"] == "nest_cameras"]
    late = {(*c, element) for c, rows in far_ahead.items() for element in range(len(rows))}
    expected = Counter(audit.expected(records).rows.keys() | late)
    assert audit.identities(audit.read_parquet(every)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("source", ["kafka", "archive"])
def test_interval_with_replayed_rows_is_rebuilt_to_the_same_hash(
    landed: Home, second: dict[str, Any], source: str
) -> None:
    partition = f"date=2099-01-01/interval={SECOND:%Y-%m-%dT%H}"
    assert partition in {registered["partition"] for registered in second["registered"]}
    found = landed.json("rebuild", "nest_cameras", partition, "--source", source, "--json")
    assert found["equal"] is True
    assert found["rows"] > 0


@pytest.mark.parametrize(
    "so_far",
    ["replayed", pytest.param("second", marks=pytest.mark.slow)],
    ids=["and is in no interval yet", "and an interval has it"],
)
def test_replay_and_discard_leave_a_record_alone_when_it_was_replayed(
    landed: Home,
    request: pytest.FixtureRequest,
    far_ahead: dict[audit.Coordinates, list[dict[str, Any]]],
    so_far: str,
) -> None:
    request.getfixturevalue(so_far)
    record = named(next(iter(far_ahead)))
    found = landed.json("quarantine", "discard", "nest_cameras", *record, "--reason", "too late")
    assert found == {"selected": 1, "discarded": 0, "already_discarded": 0, "already_replayed": 1}
    assert landed.json("quarantine", "replay", "nest_cameras", *record) == {
        "selected": 1,
        "replayed": 0,
        "empty": 0,
        "still_failing": 0,
        "already_replayed": 1,
    }


@pytest.mark.slow
def test_quarantined_record_stays_so_in_its_interval_when_newer_code_would_read_it(
    landed: Home, wider: Checkout, first: dict[str, Any]
) -> None:
    bounds = ("--from", iso(START), "--to", iso(START + timedelta(hours=1)))
    verdict = wider.json("interval", "nest_cameras", *bounds)
    assert verdict["reconciliation"]["unexplained"] == 0
    assert verdict["records"] == first["records"]
    assert verdict["registered"] == first["registered"]
    assert verdict["code_changes"] == {"added": 0, "removed": 0, "changed": 0}


@pytest.fixture
def page(landed: Home) -> Iterator[TestClient]:
    """The web pages alone, over the home."""
    token = "t" * 43
    with settings_of(landed), TestClient(app_alone(token, "eve@host"), base_url="http://127.0.0.1:8090") as client:
        client.headers["Authorization"] = f"Bearer {token}"
        yield client


def test_records_are_counted_by_reason_when_they_land(landed: Home, page: TestClient) -> None:
    totals = page.get("/quarantine/nest_cameras?format=json").json()["totals"]
    assert {each["reason"]: each["records"] for each in totals} == Counter(row["reason"] for row in listed(landed))


@pytest.mark.slow
def test_page_replays_a_record_as_the_command_does(landed: Home, page: TestClient, replayed: dict[str, int]) -> None:
    row = next(row for row in listed(landed, "--state", "quarantined") if row["reason"] == "malformed_json")
    topic, partition, offset = at(row)
    page.get("/quarantine/nest_cameras")
    form = {"topic": topic, "partition": str(partition), "offset": str(offset), "form": page.cookies["tidemark_form"]}
    assert page.post("/quarantine/nest_cameras/replay", data=form).status_code == 200

    def ended() -> dict[str, Any] | None:
        run: dict[str, Any] = page.get("/quarantine/nest_cameras?format=json").json()["replay"]
        return run if run["ended_at"] else None

    run = wait_for("the replay", ended)
    assert (run["problem"], run["by"]) == ("", "eve@host")
    assert run["counts"] == {"selected": 1, "replayed": 0, "empty": 0, "still_failing": 1, "already_replayed": 0}
    (again,) = [each for each in listed(landed) if at(each) == at(row)]
    assert "still malformed_json" in again["note"]
