"""New code over old landing: rows are read again, every changed row is counted, and the old revision stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Home, iso, last_hours
from tests.support import audit
from tests.support.checkout import Checkout, copy_checkout

pytestmark = [pytest.mark.services, pytest.mark.slow]

START = last_hours(2)
BOUNDS = ("--from", iso(START), "--to", iso(START + timedelta(hours=1)))


@pytest.fixture(scope="module")
def before(home: Home) -> dict[str, Any]:
    home.produce("nest_cameras", 800, START, "1h", bad=0.05)
    home.run("stream", "nest_cameras", "--until-caught-up")
    return home.interval("nest_cameras", START)


@pytest.fixture(scope="module")
def changed(home: Home, before: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Code that writes one name in capitals, and counts only cameras that are online."""
    checkout = copy_checkout(tmp_path_factory.mktemp("changed") / "checkout", home)
    transforms = "spark_jobs/transforms/nest_cameras.py"
    checkout.edit(
        transforms,
        'F.map_values(message["devices"]["cameras"])',
        """F.transform(
        F.map_values(message["devices"]["cameras"]),
        lambda c: c.withField(
            "where_name", F.when(c["where_name"] == "Porch", "PORCH").otherwise(c["where_name"])
        ),
    )""",
    )
    checkout.edit(transforms, 'F.col("last_event.has_person")', 'F.col("last_event.has_person") & F.col("is_online")')
    return checkout


@pytest.fixture(scope="module")
def after(changed: Checkout) -> dict[str, Any]:
    verdict: dict[str, Any] = changed.json("interval", "nest_cameras", *BOUNDS)
    return verdict


def rows(verdict: dict[str, Any], table: str, key: Callable[[dict[str, Any]], Any]) -> dict[Any, dict[str, Any]]:
    locations = [r["location"] for r in verdict["registered"] if r["table"] == table]
    return {key(row): row for row in audit.read_parquet(locations).to_pylist()}


def identity(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_element"))


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["zip_code"], row["window"]["start"]


@pytest.mark.parametrize(("table", "key"), [("nest_cameras", identity), ("nest_cameras_hourly_counts", place)])
def test_changed_rows_are_counted_exactly_when_new_code_reruns_an_interval(
    before: dict[str, Any], after: dict[str, Any], table: str, key: Callable[[dict[str, Any]], Any]
) -> None:
    assert after["reconciliation"]["unexplained"] == 0
    old, new = rows(before, table, key), rows(after, table, key)
    expected = {
        "added": len(new.keys() - old.keys()),
        "removed": len(old.keys() - new.keys()),
        "changed": sum(old[k] != new[k] for k in old.keys() & new.keys()),
    }
    assert expected["changed"] > 0
    found = [d for d in after["revision_differences"] if d["table"] == table]
    assert {name: sum(d[name] for d in found) for name in expected} == expected
    for each in found:
        assert each["from_revision"] in {r["revision"] for r in before["registered"]}
        assert each["to_revision"] in {r["revision"] for r in after["registered"]}
        assert each["examples"]


def test_differences_that_the_code_makes_are_of_its_class(before: dict[str, Any], after: dict[str, Any]) -> None:
    old, new = rows(before, "nest_cameras", identity), rows(after, "nest_cameras", identity)
    assert after["records"] == before["records"]
    assert after["code_changes"] == {
        "added": 0,
        "removed": 0,
        "changed": sum(old[k] != new[k] for k in old),
    }
    kinds = {d["what"] for d in after["differences"] if d["class"] == "code"}
    assert kinds == {"archive row changed by the code", "hourly_counts against nest-camera-stats"}
    assert after["code_version"] != before["code_version"]
    assert after["decoder_versions"] != before["decoder_versions"]


def test_old_revision_stays_and_is_superseded_when_new_code_registers(
    home: Home, before: dict[str, Any], after: dict[str, Any]
) -> None:
    replaced = {d["from_revision"] for d in after["revision_differences"]}
    assert replaced
    states = home.ledger("SELECT id, state FROM revisions WHERE id = ANY(%s)", sorted(replaced))
    assert set(states) == {(revision, "superseded") for revision in replaced}
    for each in before["registered"]:
        assert list(Path(each["location"].removeprefix("file://")).glob("*.parquet"))
    page = Path(after["report"]).read_text()
    assert "What this run changed" in page


def test_new_code_gives_the_same_hash_again_and_old_code_the_old_one(
    home: Home, changed: Checkout, before: dict[str, Any], after: dict[str, Any]
) -> None:
    again = changed.json("interval", "nest_cameras", *BOUNDS)
    assert again["registered"] == after["registered"]
    assert again["revision_differences"] == []
    back = home.interval("nest_cameras", START)
    hashes = [{(r["table"], r["partition"]): r["content_hash"] for r in v["registered"]} for v in (before, back)]
    assert hashes[0] == hashes[1]
    assert back["code_changes"] == {"added": 0, "removed": 0, "changed": 0}


def test_rows_read_from_the_archive_carry_the_version_that_landed_them(
    changed: Checkout, before: dict[str, Any]
) -> None:
    verdict = changed.json("interval", "nest_cameras", *BOUNDS, "--source", "archive")
    assert verdict["decoder_versions"] == before["decoder_versions"]
    assert verdict["reconciliation"]["unexplained"] == 0


def test_missing_landed_record_is_unexplained_whatever_code_reads_it(
    home: Home, changed: Checkout, after: dict[str, Any]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = next(p for p in sorted((home.lake / "landing").rglob("*.parquet")) if "fate=archived" in str(p))
    original = path.read_bytes()
    table = pq.ParquetFile(path).read()
    lost = table.slice(0, 1).to_pylist()[0]
    assert lost["kafka_element"] == 0
    pq.write_table(pa.concat_tables([table.slice(1)]), path)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    try:
        found = json.loads(changed.run("interval", "nest_cameras", *BOUNDS, expect=3).stdout)
    finally:
        path.write_bytes(original)
    places = [d["where"] for d in found["differences"] if d["class"] == "unexplained"]
    assert any(f"offset {lost['kafka_offset']} " in place for place in places)


def test_interval_is_built_from_either_side_when_newer_code_gave_records_another_fate(
    home: Home, before: dict[str, Any], after: dict[str, Any], tmp_path: Path
) -> None:
    changed = copy_checkout(tmp_path / "checkout", home)
    changed.edit(
        "spark_jobs/transforms/nest_cameras.py",
        'F.map_values(message["devices"]["cameras"])',
        'F.filter(F.map_values(message["devices"]["cameras"]), lambda c: c["where_name"] != "Porch")',
    )
    from_kafka = changed.json("interval", "nest_cameras", *BOUNDS)
    assert from_kafka["records"]["empty"] > before["records"]["empty"]
    from_archive = changed.json("interval", "nest_cameras", *BOUNDS, "--source", "archive")
    assert from_archive["records"] == before["records"]
    assert changed.json("interval", "nest_cameras", *BOUNDS)["records"] == from_kafka["records"]
    # What has no rows any more is kept by its landing file alone.
    [done] = changed.json("housekeeping", "nest_cameras", "--older-than", "0s", "--json")
    assert [each for each in done["kept"] if "with other code than landed it" in each]
    assert done["landing"]["files"] == 0
    assert changed.json("interval", "nest_cameras", *BOUNDS)["reconciliation"]["unexplained"] == 0


def test_interval_passes_again_when_newer_code_ran_it_after_its_landing_was_removed(
    home: Home, before: dict[str, Any], tmp_path: Path
) -> None:
    """The same code, older code and the archive then meet rows that no micro-batch landed."""
    begin = START + timedelta(hours=1)
    bounds = ("--from", iso(begin), "--to", iso(begin + timedelta(hours=1)))
    home.run("produce", "nest_cameras", "--events", "300", "--start", iso(begin), "--span", "1h", "--seed", "2")
    home.run("stream", "nest_cameras", "--until-caught-up")
    landed = home.interval("nest_cameras", begin)
    [done] = home.json("housekeeping", "nest_cameras", "--older-than", "0s", "--json")
    assert done["landing"]["files"] > 0
    changed = copy_checkout(tmp_path / "checkout", home)
    changed.edit(
        "spark_jobs/transforms/nest_cameras.py",
        'F.map_values(message["devices"]["cameras"])',
        'F.filter(F.map_values(message["devices"]["cameras"]), lambda c: c["where_name"] != "Porch")',
    )
    first = changed.json("interval", "nest_cameras", *bounds)
    assert first["records"]["empty"] > landed["records"]["empty"]
    again = changed.json("interval", "nest_cameras", *bounds)
    assert again["registered"] == first["registered"]
    archived = changed.json("interval", "nest_cameras", *bounds, "--source", "archive")
    assert archived["registered"] == first["registered"]
    assert archived["records"]["archived"] == first["records"]["archived"]
    assert archived["records"]["gaps"] == landed["records"]["gaps"]
    asked = ",".join(f"{r['topic']}:{r['partition']}:{r['from_offset']}-{r['until_offset']}" for r in first["ranges"])
    report = changed.json("report", "nest_cameras", "--ranges", asked, "--source", "archive", "--json")
    assert report["records"] == {name: archived["records"][name] for name in report["records"]}
    by_old = home.json("interval", "nest_cameras", *bounds, "--source", "archive")
    assert by_old["registered"] == first["registered"]
    back = home.interval("nest_cameras", begin)
    assert back["records"] == landed["records"]
    hashes = [{(r["table"], r["partition"]): r["content_hash"] for r in v["registered"]} for v in (landed, back)]
    assert hashes[0] == hashes[1]
    assert back["code_changes"]["added"] > 0
    # The rows are again those that were landed.
    last = home.interval("nest_cameras", begin)
    assert last["registered"] == back["registered"]
    assert last["code_changes"] == {"added": 0, "removed": 0, "changed": 0}
    for verdict in (first, again, archived, by_old, back, last):
        assert verdict["reconciliation"]["unexplained"] == 0
