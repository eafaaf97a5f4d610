"""The main job: records in, stream, interval, validated and registered partitions out, audited from outside."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from include.producing.messages import format_milliseconds
from tests.conftest import Home, end_of, iso, last_hours, settings_of
from tests.support import audit
from tests.support.leases import held_lease

pytestmark = pytest.mark.services

START = last_hours(3)
EVENTS = 3_000


@pytest.fixture(scope="module")
def landed(home: Home) -> Home:
    """Three whole hours of records, two in a hundred bad, landed by the stream."""
    home.produce("nest_cameras", EVENTS, START, "3h", bad=0.02, seed=7)
    home.run("stream", "nest_cameras", "--until-caught-up")
    return home


@pytest.fixture(scope="module")
def verdict(landed: Home) -> dict[str, Any]:
    """The verdict of the second hour, run first: the hour before is pinned on the way."""
    lineage = (landed.path / "lineage.ndjson").as_uri()
    # Its driver is a process of its own; streams have one in tests/faults. What follows are variations of it.
    landed.own_drivers = True
    found = landed.interval("nest_cameras", START + timedelta(hours=1), TIDEMARK_OPENLINEAGE_URL=lineage)
    landed.own_drivers = False
    return found


def test_columns_of_each_table_are_noted_when_an_interval_is_built(landed: Home, verdict: dict[str, Any]) -> None:
    [(columns,)] = landed.ledger("SELECT columns FROM builds ORDER BY id LIMIT 1")
    assert set(columns) == {each["table"] for each in verdict["registered"]}
    assert columns["nest_cameras_hourly_counts"]["count"] == "bigint"


def test_every_offset_of_a_topic_partition_has_one_fate_when_it_was_archived(
    landed: Home, verdict: dict[str, Any]
) -> None:
    assert verdict["reconciliation"]["unexplained"] == 0
    assert verdict["reconciliation"]["matched"] > 0
    records = audit.in_ranges(audit.read_topic(landed.kafka, "nest-logs"), verdict["ranges"])
    fates = audit.expected(records)
    for each in verdict["ranges"]:
        here = (each["topic"], each["partition"])
        assert each["archived"] == sum(c[:2] == here for c in fates.archived)
        assert each["empty"] == sum(c[:2] == here for c in fates.empty)
        assert each["quarantined"] == sum(c[:2] == here for c in fates.bad)
        assert each["until_offset"] - each["from_offset"] == sum(
            each[name] for name in ("archived", "empty", "quarantined", "gaps")
        )
    counts = verdict["records"]
    assert counts["in_ranges"] == counts["archived"] + counts["empty"] + counts["quarantined"] + counts["gaps"]
    assert counts["quarantined"] > 0
    assert counts["empty"] > 0


def test_registered_locations_hold_each_row_once_with_its_values_when_read_by_pyarrow(
    landed: Home, verdict: dict[str, Any]
) -> None:
    locations = [r["location"] for r in verdict["registered"] if r["table"] == "nest_cameras"]
    table = audit.read_parquet(locations)
    records = audit.in_ranges(audit.read_topic(landed.kafka, "nest-logs"), verdict["ranges"])
    expected = audit.expected(records).rows
    assert audit.identities(table) == Counter(expected.keys())
    for row in table.to_pylist():
        identity = tuple(row[name] for name in ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_element"))
        camera = expected[identity]
        assert row["device_id"] == camera["device_id"]
        assert row["is_online"] == camera["is_online"]
        assert row["activity_zones"] == camera["activity_zones"]
        assert format_milliseconds(row["last_event"]["start_time"]) == camera["last_event"]["start_time"]
        assert row["last_event"]["activity_zone_ids"] == camera["last_event"]["activity_zone_ids"]


def test_bad_record_is_kept_whole_with_its_reason_when_it_is_quarantined(landed: Home) -> None:
    records = audit.read_topic(landed.kafka, "nest-logs")
    table = audit.read_parquet([str(landed.lake / "quarantine" / "nest_cameras")])
    assert audit.coordinates_of(table) == Counter(audit.expected(records).bad)
    for row in table.to_pylist():
        record = records[(row["kafka_topic"], row["kafka_partition"], row["kafka_offset"])]
        assert (row["key"], row["value"]) == (record.key, record.value)
        assert row["detail"]
    assert set(table["reason"].to_pylist()) >= {
        "null_value",
        "empty_value",
        "malformed_json",
        "trailing_content",
        "not_utf8",
        "wrong_type",
        "required_missing",
        "event_time_out_of_bounds",
    }


def test_pinned_intervals_tile_and_hold_their_hour_when_they_are_consecutive(
    landed: Home, verdict: dict[str, Any]
) -> None:
    rows = landed.json("ranges", "nest_cameras", "--json")
    by_interval: dict[str, dict[int, tuple[int, int]]] = {}
    for row in rows:
        by_interval.setdefault(row["from"], {})[row["partition"]] = (row["from_offset"], row["until_offset"])
    assert list(by_interval) == [iso(START), iso(START + timedelta(hours=1))]
    first, second = by_interval.values()
    for partition, (begin, _) in second.items():
        assert begin == first[partition][1]
        assert first[partition][0] == 0
    low = (START + timedelta(hours=1)).timestamp() * 1000
    records = audit.in_ranges(audit.read_topic(landed.kafka, "nest-logs"), verdict["ranges"])
    assert all(low <= record.timestamp < low + 3_600_000 for record in records.values())


def test_lineage_names_ranges_and_registered_partitions_when_an_interval_ended(
    landed: Home, verdict: dict[str, Any]
) -> None:
    events = [json.loads(line) for line in (landed.path / "lineage.ndjson").read_text().splitlines()]
    _, complete, _, judged = events
    assert [(each["job"]["name"], each["eventType"]) for each in (complete, judged)] == [
        ("nest_cameras.interval", "COMPLETE"),
        ("nest_cameras.validate", "COMPLETE"),
    ]
    [topic] = complete["inputs"]
    assert (
        sum(
            each["archived"] + each["empty"] + each["quarantined"] + each["gaps"]
            for each in topic["inputFacets"]["tidemark_offsetRanges"]["ranges"]
        )
        == verdict["records"]["in_ranges"]
    )
    partitions = {
        (table["facets"]["symlinks"]["identifiers"][0]["name"], partition["identifier"])
        for table in complete["outputs"]
        for partition in table["outputFacets"]["subset"]["outputCondition"]["partitions"]
    }
    assert partitions == {(f"lake.{each['table']}", each["partition"]) for each in verdict["registered"]}
    assert len(judged["inputs"]) == 2


def test_compacted_topic_equals_the_batch_view_when_both_have_read_all(landed: Home, verdict: dict[str, Any]) -> None:
    locations = [r["location"] for r in verdict["registered"] if r["table"] == "nest_cameras_hourly_counts"]
    batch = {
        json.dumps(
            {
                "window": {"end": iso(row["window"]["end"]), "start": iso(row["window"]["start"])},
                "zip_code": row["zip_code"],
            },
            separators=(",", ":"),
        ): row["count"]
        for row in audit.read_parquet(locations).to_pylist()
    }
    speed = audit.last_values(landed.kafka, "nest-camera-stats")
    assert batch
    assert batch == {key: speed[key]["count"] for key in batch}
    assert all(set(value) == {"count", "version"} for value in speed.values())


def test_speed_topic_is_compacted_when_the_stream_creates_it(landed: Home) -> None:
    from confluent_kafka.admin import AdminClient, ConfigResource

    client = AdminClient({"bootstrap.servers": landed.kafka})
    resource = ConfigResource(ConfigResource.Type.TOPIC, "nest-camera-stats")
    assert client.describe_configs([resource])[resource].result(15)["cleanup.policy"].value == "compact"


def test_sql_and_explain_agree_with_the_verdict_when_an_interval_is_registered(
    landed: Home, verdict: dict[str, Any]
) -> None:
    archive = next(r for r in verdict["registered"] if r["table"] == "nest_cameras")
    counted = landed.json("sql", "SELECT interval, count(*) AS n FROM lake.nest_cameras GROUP BY interval", "--json")
    assert counted == [{"interval": archive["partition"].split("interval=")[1], "n": archive["rows"]}]
    found = landed.json("explain", "lake.nest_cameras", archive["partition"], "--json")
    assert found["content_hash"] == archive["content_hash"]
    assert sum(file["rows"] for file in found["files"]) == archive["rows"]
    assert [r["from_offset"] for r in found["ranges"]] == [r["from_offset"] for r in verdict["ranges"]]
    shown = landed.run("explain", "lake.nest_cameras", archive["partition"]).stdout
    assert f"{verdict['records']['archived']:,} archived" in shown
    assert f"{verdict['reconciliation']['matched']:,} matched" in shown


def test_error_is_one_line_when_a_query_is_wrong(landed: Home, verdict: dict[str, Any]) -> None:
    (line,) = landed.run("sql", "SELECT nonsense FROM nothing", expect=64).stderr.splitlines()
    assert line.startswith("tidemark: [TABLE_OR_VIEW_NOT_FOUND]")


def rows_shown(page: str, title: str) -> list[list[str]]:
    """The cells of each row of a section of the report's page."""
    section = page.partition(f"<h3>{title} ")[2].partition("<h3>")[0].partition("</section>")[0]
    assert section, f"no section {title}"
    return [cells for row in section.split("<tr>") if (cells := re.findall(r"<td[^>]*>(.*?)</td>", row))]


def test_report_shows_the_cameras_that_are_offline_and_the_hours_above_the_limit_when_it_was_written(
    landed: Home, verdict: dict[str, Any]
) -> None:
    page = Path(verdict["report"]).read_text()
    records = audit.in_ranges(audit.read_topic(landed.kafka, "nest-logs"), verdict["ranges"])
    last = {camera["device_id"]: camera for _, camera in sorted(audit.expected(records).rows.items())}
    offline = {device for device, camera in last.items() if not camera["is_online"]}
    assert offline
    assert {row[0] for row in rows_shown(page, "Cameras offline")} == offline
    # A thousand messages an hour: no zip code is above the limit, and the chart has the largest.
    locations = [r["location"] for r in verdict["registered"] if r["table"] == "nest_cameras_hourly_counts"]
    counts = {row["zip_code"]: row["count"] for row in audit.read_parquet(locations).to_pylist()}
    assert max(counts, key=counts.__getitem__) == "94103"
    assert max(counts.values()) <= 1000
    assert rows_shown(page, "Busy hours") == []
    assert "94103" in page.partition('<figure class="chart')[2].partition("</figure>")[0]
    assert not re.search(r"""(src|href)=["']https?:""", page)


def test_verify_names_a_changed_file_when_it_checks_a_proof(landed: Home, verdict: dict[str, Any]) -> None:
    [proof] = {each["proof"] for each in verdict["registered"]}
    checked = landed.json("verify", proof, "--kafka", landed.kafka, "--json")
    assert checked["differences"] == []
    assert checked["notes"] == ["the proof is unsigned: no key is set: TIDEMARK_PROOF_KEY"]
    told = json.loads(Path(proof.removeprefix("file://")).read_text())
    assert {each["table"] for each in told["tables"]} == {each["table"] for each in verdict["registered"]}
    assert told["records"]["quarantined"] > 0
    assert sum(each["archived"] for each in told["ranges"]) == verdict["records"]["archived"]

    archive = next(each for each in verdict["registered"] if each["table"] == "nest_cameras")
    file = next(Path(archive["location"].removeprefix("file://")).glob("*.parquet"))
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"?")
    try:
        broken = landed.run("verify", proof, expect=3)
    finally:
        file.write_bytes(content)
    assert f"file changed: tables/nest_cameras/{archive['partition']}" in broken.stdout


def test_hash_revision_and_registration_stay_when_an_interval_runs_again(landed: Home, verdict: dict[str, Any]) -> None:
    before = landed.ledger("SELECT id, table_name, registered_at FROM revisions WHERE state = 'registered' ORDER BY 2")
    again = landed.interval("nest_cameras", START + timedelta(hours=1))
    assert again["registered"] == verdict["registered"]
    assert again["ranges"] == verdict["ranges"]
    after = landed.ledger("SELECT id, table_name, registered_at FROM revisions WHERE state = 'registered' ORDER BY 2")
    assert after == before
    # The second build was the same row for row, and its files are gone.
    hashes = landed.ledger("SELECT table_name, count(DISTINCT content_hash), count(*) FROM revisions GROUP BY 1")
    assert {(distinct, count) for _, distinct, count in hashes} == {(1, 2)}


def test_nothing_is_registered_when_a_landed_row_is_missing(landed: Home) -> None:
    start = START + timedelta(hours=2)
    # Near midnight a file of the first date may hold no row of this hour.
    for path in sorted((landed.lake / "landing").rglob("fate=archived/**/*.parquet")):
        table = pq.ParquetFile(path).read()
        inside = [t.timestamp() >= start.timestamp() for t in table["kafka_timestamp"].to_pylist()]
        if any(inside):
            break
    victim = inside.index(True)
    lost = table.slice(victim, 1).to_pylist()[0]
    original = path.read_bytes()
    pq.write_table(pa.concat_tables([table.slice(0, victim), table.slice(victim + 1)]), path)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    try:
        found = landed.interval("nest_cameras", start, expect=3)
    finally:
        path.write_bytes(original)
    assert found["reconciliation"]["unexplained"] >= 1
    places = [d["where"] for d in found["differences"] if d["class"] == "unexplained"]
    assert any(f"offset {lost['kafka_offset']} row {lost['kafka_element']}" in place for place in places)
    assert found["registered"] == []
    assert landed.ledger(f"SELECT count(*) FROM revisions r JOIN intervals i ON i.id = r.interval_id "
                          f"WHERE r.state = 'registered' AND i.from_time = '{iso(start)}'") == [(0,)]  # fmt: skip


def test_catalog_stays_and_the_report_shows_it_when_a_suite_fails(
    landed: Home, verdict: dict[str, Any], tmp_path: Path
) -> None:
    # The suite is code: break it in a copy of the checkout that shares the services.
    copy = tmp_path / "copy"
    root = Path(__file__).resolve().parents[2]
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(root), str(copy)], check=True)
    for name in ("include", "spark_jobs", "expectations"):
        subprocess.run(["cp", "-r", str(root / name), str(copy)], check=True)
    (copy / ".tidemark").symlink_to(root / ".tidemark")
    suite = copy / "expectations" / "nest_cameras.py"
    suite.write_text(suite.read_text().replace("max_value=200", "max_value=1"))
    before = landed.ledger(
        "SELECT id, table_name, table_partition FROM revisions WHERE state = 'registered' ORDER BY 1,2,3"
    )
    start = START + timedelta(hours=1)
    bounds = ("--from", iso(start), "--to", iso(start + timedelta(hours=1)))
    found = landed.json("interval", "nest_cameras", *bounds, expect=2, cwd=copy, PYTHONPATH=str(copy))
    assert found["validation"]["success"] is False
    assert [f["column"] for f in found["validation"]["failed"]] == ["device_id"]
    assert found["validation"]["failed"][0]["unexpected_count"] > 0
    after = landed.ledger(
        "SELECT id, table_name, table_partition FROM revisions WHERE state = 'registered' ORDER BY 1,2,3"
    )
    assert after == before
    location = landed.ledger(
        "SELECT location FROM revisions WHERE state = 'registered' AND table_name = 'nest_cameras'",
    )[0][0]
    assert location in {r["location"] for r in verdict["registered"]}
    assert Path(location.removeprefix("file://")).is_dir()


def test_stream_is_refused_with_exit_code_6_when_its_lake_is_elsewhere(landed: Home, tmp_path: Path) -> None:
    elsewhere = tmp_path / "not-mounted"
    refused = landed.run("stream", "nest_cameras", "--until-caught-up", expect=6, TIDEMARK_LAKE=elsewhere.as_uri())
    assert f"the lake {elsewhere.as_uri()} holds nothing of nest_cameras" in refused.stderr
    assert not elsewhere.exists()


def test_stream_is_refused_with_exit_code_5_when_another_driver_holds_the_lease(landed: Home) -> None:
    with settings_of(landed, TIDEMARK_LEASE_SECONDS="600"), held_lease("nest_cameras") as lease:
        refused = landed.run("stream", "nest_cameras", "--until-caught-up", expect=5, TIDEMARK_LEASE_SECONDS="2")
    assert f"another driver writes this pipeline: {lease.holder} (fencing token {lease.token})" in refused.stderr


@pytest.mark.slow
def test_second_driver_is_refused_with_exit_code_5_while_the_first_runs(landed: Home) -> None:
    first = landed.start("stream", "nest_cameras")
    try:
        assert first.stderr is not None
        while "streaming from" not in (line := first.stderr.readline()):
            assert line, "the stream ended before it began"
        second = landed.run("stream", "nest_cameras", "--until-caught-up", expect=5)
        assert "another driver" in second.stderr
        first.send_signal(signal.SIGTERM)
        _, errors = first.communicate(timeout=120)
        assert first.returncode == 0, errors
        assert "stopped" in errors
    finally:
        end_of(first)


def test_exit_code_is_4_and_a_rebuild_from_the_archive_equal_when_ranges_were_cut(
    landed: Home, verdict: dict[str, Any]
) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    cut = verdict["ranges"][0]["from_offset"] + 10
    client = AdminClient({"bootstrap.servers": landed.kafka})
    partition = TopicPartition("nest-logs", verdict["ranges"][0]["partition"], cut)
    next(iter(client.delete_records([partition]).values())).result(30)
    archive = next(r for r in verdict["registered"] if r["table"] == "nest_cameras")
    refused = landed.run("rebuild", "nest_cameras", archive["partition"], expect=4)
    assert f"nest-logs-{verdict['ranges'][0]['partition']} [{cut - 10}, {cut}) (10 offsets)" in refused.stderr
    rebuilt = landed.json("rebuild", "nest_cameras", archive["partition"], "--source", "archive", "--json")
    assert rebuilt["equal"] is True
    assert rebuilt["rebuilt_hash"] == archive["content_hash"]


def test_stream_ends_with_exit_code_4_when_the_topic_was_recreated(landed: Home) -> None:
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": landed.kafka})
    client.delete_topics(["nest-logs"])["nest-logs"].result(30)
    landed.run("produce", "nest_cameras", "--events", "500", "--start", iso(START))
    refused = landed.run("stream", "nest_cameras", "--until-caught-up", expect=4)
    assert "deleted and created again" in refused.stderr
    assert "nest_cameras" in refused.stderr
