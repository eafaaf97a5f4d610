"""nest_cameras with its lake in a bucket: every step against a real S3-compatible server, audited from outside."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from tests.conftest import Home, end_of, iso, last_hours
from tests.support import audit, hits, s3_server

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(2400)]

START = last_hours(3)
EVENTS = 3000
STREAM = ("stream", "nest_cameras", "--until-caught-up")
KILLED_AT = ("landing_written", "speed_written")
LEFT_BY_A_KILLED_DRIVER = "landing unknown to the ledger"


@dataclass
class S3Home(s3_server.BucketHome):
    """A home in the bucket whose processes were watched."""

    seen: set[str] = field(default_factory=set)
    """Command lines of a stream's processes, and its output."""

    def watch(self, stream: subprocess.Popen[str]) -> None:
        """Wait for a stream's end, and keep what others could see of it meanwhile."""
        try:
            while stream.poll() is None:
                with suppress(psutil.NoSuchProcess, subprocess.TimeoutExpired):
                    self.seen |= {" ".join(p.cmdline()) for p in psutil.Process(stream.pid).children(recursive=True)}
                    stream.wait(1)
            _, errors = stream.communicate()
            assert stream.returncode == 0, errors
            self.seen.add(errors)
        finally:
            end_of(stream)

    def audit_landing(self) -> int:
        bucket = PurePosixPath(s3_server.BUCKET) / "tidemark"
        return audit.check_archive(self.kafka, self.database, bucket, store=self.server.filesystem())

    def audit_tables(self, verdicts: list[dict[str, Any]]) -> None:
        every = audit.read_topic(self.kafka, "nest-logs")
        records = {c: r for v in verdicts for c, r in audit.in_ranges(every, v["ranges"]).items()}
        locations = [r["location"] for v in verdicts for r in v["registered"] if r["table"] == "nest_cameras"]
        assert all(each.startswith(f"s3a://{s3_server.BUCKET}/tidemark/tables/nest_cameras/") for each in locations)
        table = audit.read_parquet(locations, self.server.filesystem())
        assert audit.identities(table) == Counter(audit.expected(records).rows.keys())
        assert table.num_rows


@pytest.fixture(scope="module")
def landed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Home]:
    """Two hours landed in a bucket by drivers of which some were killed in the middle of a micro-batch."""
    with s3_server.serving(tmp_path_factory.mktemp("s3")) as server:
        made = S3Home(tmp_path_factory.mktemp("home"), server, own_drivers=True)
        made.run("up")
        made.produce("nest_cameras", EVENTS, START, "2h", bad=0.03)
        for point in KILLED_AT:
            assert made.run(*STREAM, expect=None, TIDEMARK_CRASH_AT=point).returncode
        made.watch(made.start(*STREAM))
        yield made
        made.run("down", expect=None)


@pytest.fixture(scope="module")
def verdicts(landed: S3Home) -> list[dict[str, Any]]:
    """The two hours published, the second after a publish that was killed between two tables."""
    first, second = START, START + timedelta(hours=1)
    verdicts = [landed.interval("nest_cameras", first)]
    bounds = ("--from", iso(second), "--to", iso(second + timedelta(hours=1)))
    killed = landed.run("interval", "nest_cameras", *bounds, expect=None, TIDEMARK_CRASH_AT="partition_registered")
    assert killed.returncode
    return [*verdicts, landed.interval("nest_cameras", second)]


def test_each_record_is_archived_once_when_drivers_were_killed_in_their_micro_batches(landed: S3Home) -> None:
    assert landed.audit_landing() == EVENTS
    # All of it is in the bucket: a driver on another machine would find it.
    assert not landed.lake.exists()


def test_each_row_is_in_the_registered_tables_once_when_intervals_were_published(
    landed: S3Home, verdicts: list[dict[str, Any]]
) -> None:
    assert [v["reconciliation"]["unexplained"] for v in verdicts] == [0, 0]
    assert all(v["validation"]["success"] for v in verdicts)
    landed.audit_tables(verdicts)
    assert verdicts[0]["report"].startswith(f"s3a://{s3_server.BUCKET}/tidemark/reports/nest_cameras/")
    page = landed.server.filesystem().open_input_stream(verdicts[0]["report"].partition("://")[2]).read().decode()
    assert "<html" in page


def test_rerun_keeps_hash_and_revision(landed: S3Home, verdicts: list[dict[str, Any]]) -> None:
    again = landed.interval("nest_cameras", START)
    assert again["registered"] == verdicts[0]["registered"]
    hashes = landed.ledger(
        "SELECT table_name, count(DISTINCT content_hash), count(*) FROM revisions r JOIN intervals i "
        f"ON i.id = r.interval_id WHERE i.from_time = '{iso(START)}' GROUP BY 1"
    )
    assert {(distinct, count) for _, distinct, count in hashes} == {(1, 2)}


def test_explain_sql_and_doctor_read_the_bucket(landed: S3Home, verdicts: list[dict[str, Any]]) -> None:
    archive = next(r for r in verdicts[0]["registered"] if r["table"] == "nest_cameras")
    explained = landed.json("explain", "nest_cameras", archive["partition"], "--json")
    assert archive["location"] in json.dumps(explained)
    rows = landed.json("sql", "SELECT count(*) AS n FROM lake.nest_cameras", "--json")
    registered = [r for v in verdicts for r in v["registered"] if r["table"] == "nest_cameras"]
    assert rows == [{"n": sum(r["rows"] for r in registered)}]
    assert kinds(landed) == {LEFT_BY_A_KILLED_DRIVER}


def test_foreign_file_is_moved_aside_by_the_doctor(landed: S3Home, verdicts: list[dict[str, Any]]) -> None:
    store = landed.server.filesystem()
    location = verdicts[0]["registered"][0]["location"].partition("://")[2]
    own = next(e.path for e in store.get_file_info(audit.fs.FileSelector(location)) if e.path.endswith(".parquet"))
    store.copy_file(own, f"{location}/foreign.parquet")
    assert kinds(landed) == {"extra file", LEFT_BY_A_KILLED_DRIVER}
    landed.run("doctor", "--repair", expect=None)
    assert kinds(landed) == set()
    landed.audit_tables(verdicts)
    below = audit.fs.FileSelector(f"{s3_server.BUCKET}/tidemark/lost+found", recursive=True)
    moved = [e.path for e in store.get_file_info(below) if e.is_file]
    assert [path for path in moved if path.endswith("/foreign.parquet")]
    assert [path for path in moved if "/landing/nest_cameras/" in path]


def test_tables_stay_whole_when_housekeeping_removed_the_landing(
    landed: S3Home, verdicts: list[dict[str, Any]]
) -> None:
    done = landed.json("housekeeping", "nest_cameras", "--older-than", "0s", "--json")[0]
    assert done["deleted"]["files"] > 0
    below = audit.fs.FileSelector(f"{s3_server.BUCKET}/tidemark/landing", recursive=True)
    files = {e.path for e in landed.server.filesystem().get_file_info(below) if e.is_file}
    noted = {path for (path,) in landed.ledger("SELECT path FROM landing_files WHERE removed_at IS NULL")}
    # Leftovers of killed drivers are gone, too: every file is named by a commit.
    assert {path.removeprefix(f"{s3_server.BUCKET}/tidemark/") for path in files} <= noted
    landed.audit_tables(verdicts)
    archive = next(r for r in verdicts[0]["registered"] if r["table"] == "nest_cameras")
    rebuilt = landed.json("rebuild", "nest_cameras", archive["partition"], "--source", "archive", "--json")
    assert rebuilt["equal"] is True


def test_lines_of_files_land_in_the_bucket_too(landed: S3Home, tmp_path: Path) -> None:
    lines = hits.good(START, 200, seed=5)
    hits.move_in(tmp_path, "hits.jsonl", lines)
    landed.run("stream", "isp_hits", "--from", tmp_path.as_uri(), "--until-caught-up")
    wanted = "SELECT path FROM landing_files f JOIN micro_batches b ON b.id = f.micro_batch_id"
    paths = landed.ledger(f"{wanted} WHERE pipeline = 'isp_hits_files' AND fate = 'archived'")
    store, bucket = landed.server.filesystem(), f"{s3_server.BUCKET}/tidemark"
    found = [
        row["source_line"]
        for (path,) in paths
        for row in pq.read_table(f"{bucket}/{path}", filesystem=store).to_pylist()
    ]
    assert sorted(found) == list(range(1, len(lines) + 1))
    told = hits.told_by_topic(landed.kafka, "isp-hits-by-zip-files", "zipcode")
    assert told == hits.counts_by_zip(hits.rows_of(lines))
    checkpoint = audit.fs.FileSelector(f"{bucket}/checkpoints/isp_hits_files", recursive=True)
    assert [e for e in store.get_file_info(checkpoint) if e.base_name == "0" and "commits" in e.path]


def test_secret_is_on_no_command_line_and_in_no_file(landed: S3Home, verdicts: list[dict[str, Any]]) -> None:
    assert any("stream.py" in each and "java" in each for each in landed.seen)
    assert [each for each in landed.seen if landed.server.secret_key in each] == []
    assert [path for path in landed.path.rglob("*") if holds(path, landed.server.secret_key)] == []


def test_command_says_which_store_does_not_answer_with_exit_code_6(
    landed: S3Home, verdicts: list[dict[str, Any]]
) -> None:
    archive = next(r for r in verdicts[0]["registered"] if r["table"] == "nest_cameras")
    explain = ("explain", "nest_cameras", archive["partition"])
    refused = landed.run(*explain, expect=6, AWS_SECRET_ACCESS_KEY="wrong-canary")
    assert f"the lake s3a://{s3_server.BUCKET}/tidemark: " in refused.stderr
    assert "wrong-canary" not in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    assert "AWS_ENDPOINT_URL" in landed.run(*explain, expect=6, AWS_ENDPOINT_URL="http://127.0.0.1:1").stderr
    assert "AWS_ENDPOINT_URL" in landed.run(*STREAM, expect=6, AWS_SECRET_ACCESS_KEY="wrong-canary").stderr


def holds(path: Path, secret: str) -> bool:
    # Some are gone before they are read: services are running.
    with suppress(OSError):
        return path.is_file() and secret.encode() in path.read_bytes()
    return False


def kinds(home: Home) -> set[str]:
    """Return the disagreements that doctor finds."""
    findings = json.loads(home.run("doctor", "--json", expect=None).stdout)["findings"]
    return {each["kind"] for each in findings if each.get("kind")}
