"""The Delta table of gps_positions: written by streams and intervals, each row once, and what of it is validated."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from include.lake.delta_log import OWN
from include.ledger.intervals.locks import await_replaced_rows
from include.spark.submission import submission
from tests.conftest import REPOSITORY, Home, end_of, iso, last_hours, wait_for
from tests.support import audit
from tests.support.delta_log import actions, latest_version, read_delta, validated

pytestmark = [pytest.mark.services, pytest.mark.slow]

FIRST = last_hours(3)
SECOND = FIRST + timedelta(hours=1)
VIEW = "lake.gps_positions_delta"
IDENTITY = ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_element")


def delta(home: Home) -> Path:
    return home.lake / "delta" / "gps_positions"


def sql(home: Home, query: str) -> dict[str, Any]:
    """The one row that a query finds; `TABLE` in it is the Delta table."""
    (found,) = home.json("sql", query.replace("TABLE", f"delta.`file://{delta(home)}`"), "--json")
    return dict(found)


def rows_of(table: pa.Table) -> Counter[tuple[Any, ...]]:
    names = sorted(set(table.column_names) - {"interval"})
    return Counter(zip(*(table[name].to_pylist() for name in names), strict=True))


def registered(*verdicts: dict[str, Any]) -> Counter[tuple[Any, ...]]:
    every = [each for verdict in verdicts for each in verdict["registered"] if each["table"] == "gps_positions"]
    return rows_of(audit.read_parquet(each["location"] for each in every))


def committed_batches(home: Home) -> list[int]:
    rows = home.ledger("SELECT batch_id FROM micro_batches WHERE query = 'archive' ORDER BY batch_id")
    return [batch for (batch,) in rows]


def appended_batches(home: Home) -> list[int]:
    return [action["version"] for kind, action in actions(delta(home)) if kind == "txn"]


@pytest.fixture(scope="module")
def streamed(in_process: Home) -> Home:
    """Two hours, streamed by a driver killed between Delta's commit and the ledger's, and by the one after it."""
    home = in_process
    home.run("up", "registry")
    home.produce("gps_positions", 800, FIRST, "2h", bad=0.05)
    stream = ("stream", "gps_positions", "--until-caught-up")
    small = {"TIDEMARK_MAX_OFFSETS_PER_TRIGGER": "300"}
    killed = home.run(*stream, expect=None, TIDEMARK_CRASH_AT="delta_committed:2", **small)
    assert killed.returncode != 0
    assert (committed_batches(home), appended_batches(home)) == ([0], [0, 1])
    home.run(*stream, **small)
    assert committed_batches(home) == appended_batches(home) == [0, 1, 2]
    return home


@pytest.fixture(scope="module")
def first(streamed: Home) -> dict[str, Any]:
    return streamed.interval("gps_positions", FIRST)


def test_each_row_is_there_once_when_the_driver_died_between_the_two_commits(streamed: Home) -> None:
    appended = read_delta(delta(streamed), 2)
    paths = streamed.ledger("SELECT path FROM landing_files WHERE fate = 'archived'")
    landed = pa.concat_tables(pq.ParquetFile(streamed.lake / path).read() for (path,) in paths)
    assert rows_of(appended) == rows_of(landed.select(appended.drop(["interval"]).column_names))
    assert set(audit.identities(appended).values()) == {1}


def test_view_shows_the_validated_version_of_registered_intervals_alone(streamed: Home, first: dict[str, Any]) -> None:
    assert first["delta"] == {"view": VIEW, "version": latest_version(delta(streamed))}
    everything = read_delta(delta(streamed))
    assert rows_of(validated(everything)) == registered(first)
    assert everything.num_rows > validated(everything).num_rows
    columns = ", ".join(everything.column_names)
    table = f"SELECT {columns} FROM lake.gps_positions"
    found = sql(
        streamed,
        f"SELECT count(*) AS rows, (SELECT count(*) FROM ({table} EXCEPT ALL SELECT * FROM {VIEW})) AS missing, "
        f"(SELECT count(*) FROM (SELECT * FROM {VIEW} EXCEPT ALL {table})) AS more, "
        f"(SELECT count(*) FROM TABLE VERSION AS OF 0) AS of_the_first_append FROM {VIEW}",
    )
    appended = read_delta(delta(streamed), 0).num_rows
    assert found == {"rows": registered(first).total(), "missing": 0, "more": 0, "of_the_first_append": appended}


def said_by(home: Home, version: int) -> dict[str, Any]:
    """Return the statement of a version's commit about its interval."""
    log = (delta(home) / "_delta_log" / f"{version:020}.json").read_text().splitlines()
    (said,) = (line["commitInfo"]["userMetadata"] for line in map(json.loads, log) if "commitInfo" in line)
    found: dict[str, Any] = json.loads(said)
    return found


def test_commit_says_which_interval_of_which_verdict_it_holds(streamed: Home, first: dict[str, Any]) -> None:
    said = said_by(streamed, first["delta"]["version"])
    of_archive = [each for each in first["registered"] if each["table"] == "gps_positions"]
    assert (said["tidemark.from"], said["tidemark.to"]) == (first["interval"]["from"], first["interval"]["to"])
    ranges = json.loads(said["tidemark.ranges"])
    assert ranges == [{name: each[name] for name in ranges[0]} for each in first["ranges"]]
    assert all(each["topic_id"] for each in ranges)
    fates = ("in_ranges", "archived", "empty", "quarantined", "gaps")
    told = json.loads(said["tidemark.records"])
    assert [told[fate] for fate in fates] == [first["records"][fate] for fate in fates]
    hashes = {each["partition"]: each["content_hash"] for each in of_archive}
    assert json.loads(said["tidemark.content-hashes"]) == hashes
    assert int(said["tidemark.rows"]) == sum(each["rows"] for each in of_archive) > 0
    assert said["tidemark.code-version"] == first["code_version"]
    assert int(said["tidemark.build"]) > 0


def test_interval_restores_what_was_validated_after_update_delete_and_merge(
    streamed: Home, first: dict[str, Any]
) -> None:
    """Changes to its own rows and to those of another interval; the view never showed them."""
    before, pinned = read_delta(delta(streamed)), first["delta"]["version"]
    assert sql(streamed, "UPDATE TABLE SET speed = -7 WHERE deviceId < 40")["num_affected_rows"] > 0
    assert sql(streamed, "DELETE FROM TABLE WHERE deviceId >= 40 AND deviceId < 60")["num_affected_rows"] > 0
    same = " AND ".join(f"t.{name} = s.{name}" for name in IDENTITY)
    merged = sql(
        streamed,
        f"MERGE INTO TABLE t USING (SELECT * FROM TABLE VERSION AS OF {pinned} WHERE deviceId < 50) s ON {same} "
        "WHEN MATCHED AND t.deviceId < 20 THEN UPDATE SET speed = s.speed WHEN NOT MATCHED THEN INSERT *",
    )
    assert merged["num_updated_rows"] > 0
    assert merged["num_inserted_rows"] > 0
    changed = read_delta(delta(streamed))
    assert rows_of(validated(changed)) != registered(first)
    found = sql(
        streamed,
        f"SELECT count(*) AS rows, count_if(speed < 0) AS changed, (SELECT count_if(speed < 0) FROM TABLE) AS there, "
        f"(SELECT count(*) FROM TABLE VERSION AS OF {pinned}) AS before FROM {VIEW}",
    )
    there = sum(speed < 0 for speed in changed["speed"].to_pylist())
    assert found == {"rows": registered(first).total(), "changed": 0, "there": there, "before": before.num_rows}

    second = streamed.interval("gps_positions", SECOND)
    version = second["delta"]["version"]
    assert rows_of(validated(read_delta(delta(streamed), version))) == registered(first, second)
    assert rows_of(read_delta(delta(streamed))) == registered(first, second)
    again = streamed.interval("gps_positions", FIRST)
    assert again["registered"] == first["registered"]
    assert rows_of(validated(read_delta(delta(streamed), again["delta"]["version"]))) == registered(first, second)


def test_two_instances_append_at_once_each_row_once_and_a_column_of_the_newer_one_appears(
    streamed: Home, first: dict[str, Any]
) -> None:
    """Each appends every micro-batch twice, as after a kill, and one has newer code with a column more."""
    before = read_delta(delta(streamed))
    job = submission("stream", name="instance", short=True, delta=True)
    command = [*job.command()[:-1], str(REPOSITORY / "tests" / "support" / "append_to_delta.py")]
    instances = [
        subprocess.Popen(
            [*command, *arguments],
            env={**os.environ, **job.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for arguments in (["0", "6"], ["1", "6", "heading INT"])
    ]
    try:
        for instance in instances:
            said, _ = instance.communicate(timeout=300)
            assert instance.returncode == 0, said[-3000:]
    finally:
        for instance in instances:
            end_of(instance)
    after = read_delta(delta(streamed))
    appended = {("other-gps", partition, offset, 0): 1 for partition in (0, 1) for offset in range(120)}
    assert audit.identities(after) == audit.identities(before) + Counter(appended)
    of_newer = after.filter(pc.is_valid(after["heading"]))
    assert set(of_newer["heading"].to_pylist()) == {7}
    assert audit.identities(of_newer).keys() == {each for each in appended if each[1] == 1}
    found = sql(streamed, f"SELECT count(*) AS rows, (SELECT count(heading) FROM TABLE) AS headings FROM {VIEW}")
    assert found == {"rows": validated(before).num_rows, "headings": 120}


@contextmanager
def appending_all_the_time(home: Home) -> Iterator[list[int]]:
    """Commit appends more often than any replacement is fast, waiting as a stream does; yields their versions."""
    table, versions, is_over = delta(home), list[int](), threading.Event()
    row = read_delta(table).slice(0, 1).drop(["interval"])
    topic = row.column_names.index("kafka_topic")
    pq.write_table(row.set_column(topic, "kafka_topic", pa.array(["other-gps"])), table / "row.parquet")
    size = (table / "row.parquet").stat().st_size

    def append() -> None:
        while not is_over.wait(0.2):
            await_replaced_rows("gps_positions")
            version = latest_version(table) + 1
            (table / f"row-{version}.parquet").hardlink_to(table / "row.parquet")
            add = {"path": f"row-{version}.parquet", "size": size, "modificationTime": 0, "dataChange": True}
            lines = (
                {"commitInfo": {"operation": "WRITE", "userMetadata": OWN}},
                {"add": {**add, "partitionValues": {"interval": None}}},
            )
            (table / "commit").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
            with suppress(FileExistsError):
                (table / "_delta_log" / f"{version:020}.json").hardlink_to(table / "commit")
                versions.append(version)
            (table / "commit").unlink()

    stream = threading.Thread(target=append)
    stream.start()
    try:
        yield versions
    finally:
        is_over.set()
        stream.join()


def test_interval_is_published_when_a_stream_appends_all_the_time(streamed: Home, first: dict[str, Any]) -> None:
    with appending_all_the_time(streamed) as appended:
        again = streamed.interval("gps_positions", FIRST)
        wait_for("another append", lambda: appended[-1] > again["delta"]["version"])
    assert again["registered"] == first["registered"]
    assert appended[0] < again["delta"]["version"]
    assert said_by(streamed, again["delta"]["version"])["tidemark.from"] == first["interval"]["from"]
    of_interval = pc.field("interval") == f"{FIRST:%Y-%m-%dT%H}"
    shown = validated(read_delta(delta(streamed), again["delta"]["version"])).filter(of_interval)
    own = [name for name in shown.column_names if name != "heading"]
    assert rows_of(shown.select(own)) == registered(first)


def lacking(home: Home) -> list[dict[str, Any]]:
    findings = home.json("doctor", "--json", expect=None)["findings"]
    return [each for each in findings if each["kind"] == "Delta table lacks rows"]


def test_doctor_puts_an_interval_into_the_table_when_its_publication_was_killed_before_it(
    streamed: Home, first: dict[str, Any]
) -> None:
    bounds = ("--from", iso(FIRST), "--to", iso(SECOND))
    killed = streamed.run("interval", "gps_positions", *bounds, expect=None, TIDEMARK_CRASH_AT="registration_finished")
    assert killed.returncode != 0
    before = latest_version(delta(streamed))
    (finding,) = lacking(streamed)
    assert finding["what"].startswith(f"{VIEW} lacks the registered rows of ")
    streamed.run("doctor", "--repair", expect=None)
    assert lacking(streamed) == []
    assert latest_version(delta(streamed)) > before
    said = said_by(streamed, latest_version(delta(streamed)))
    assert (said["tidemark.from"], said["tidemark.to"]) == (first["interval"]["from"], first["interval"]["to"])
    of_interval = validated(read_delta(delta(streamed))).filter(pc.field("interval") == f"{FIRST:%Y-%m-%dT%H}")
    # Newer code may have given the table a column more.
    own = [name for name in of_interval.column_names if name != "heading"]
    assert rows_of(of_interval.select(own)) == registered(first)


def test_doctor_writes_the_rows_again_when_the_table_was_put_back_from_an_older_copy(
    streamed: Home, first: dict[str, Any], tmp_path: Path
) -> None:
    table, copy = delta(streamed), tmp_path / "copy"
    shutil.copytree(table, copy)
    version = streamed.interval("gps_positions", FIRST)["delta"]["version"]
    shutil.rmtree(table)
    shutil.copytree(copy, table)
    (finding,) = lacking(streamed)
    assert finding["what"] == f"the view {VIEW} shows version {version}, which is gone, or is another commit by now"
    streamed.run("doctor", "--repair", expect=None)
    assert lacking(streamed) == []
    assert said_by(streamed, latest_version(table))["tidemark.restored"]
    assert rows_of(validated(read_delta(table))) == rows_of(validated(read_delta(copy)))
    assert sql(streamed, f"SELECT count(*) AS rows FROM {VIEW}")["rows"] == validated(read_delta(table)).num_rows


def test_housekeeping_and_doctor_leave_the_table_alone(streamed: Home, first: dict[str, Any]) -> None:
    before = sorted(path for path in delta(streamed).rglob("*"))
    (done,) = streamed.json("housekeeping", "gps_positions", "--older-than", "0s", "--json")
    assert done["deleted"]["files"] > 0
    assert not [path for path in done["orphans"] if "delta" in path]
    findings = json.loads(streamed.run("doctor", "--json", expect=None).stdout)["findings"]
    assert not [each for each in findings if each["kind"]]
    assert sorted(path for path in delta(streamed).rglob("*")) == before
