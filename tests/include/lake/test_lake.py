"""File operations of the lake, on a disk and in a bucket of a real S3-compatible server."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from pyarrow import fs

from include import lake
from include.errors import ServiceUnreachable, UsageError
from include.lake import files, object_store, scan
from include.lake.scan import scan_landing
from include.settings import settings
from tests.conftest import SetSettings
from tests.support import s3_server

STATUSES = (301, 307, 400, 401, 403, 408, 429, 500, 503, 507)
"""Of stores that refuse or limit requests, or cannot manage them."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3_server.S3Server]:
    with s3_server.serving(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture(params=["disk", pytest.param("bucket", marks=[pytest.mark.slow, pytest.mark.services])])
def root(request: pytest.FixtureRequest, set_settings: SetSettings, tmp_path: Path) -> Iterator[str]:
    """An empty lake."""
    where = tmp_path.as_uri()
    if request.param == "bucket":
        set_settings(**request.getfixturevalue("server").environment)
        where = f"s3a://{s3_server.BUCKET}/{tmp_path.name}"
    set_settings(TIDEMARK_LAKE=where)
    object_store._store.cache_clear()
    yield where
    object_store._store.cache_clear()


def test_text_is_replaced_whole_when_written_again(root: str) -> None:
    location = lake.uri("reports", "nest_cameras", "2026-11-20T05.html")
    lake.write_text(location, "first")
    lake.write_text(location, "second")
    assert lake.read_text(location) == "second"
    assert [entry.name for entry in lake.list_entries(lake.uri("reports")) if not entry.is_folder] == [
        "nest_cameras/2026-11-20T05.html"
    ]


def test_files_below_a_hidden_folder_are_no_data(root: str) -> None:
    """Spark and Hive pass over them: a committer may leave its pending uploads there."""
    for name in ("fate=empty/x.parquet", "__magic_job-1/tasks/a/x.parquet.pending", ".hidden/x.parquet", "_SUCCESS"):
        lake.write_text(f"{root}/landing/_p/{name}", "x")
    assert [file.name for file in lake.list_files(f"{root}/landing/_p")] == ["fate=empty/x.parquet"]


def test_file_is_whole_when_two_write_it_at_once(
    own_lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location, opened = lake.uri("reports", "hour.html"), files.filesystem

    class Slow:
        """The file system of a writer that another one overtakes before its last step."""

        def __getattr__(self, name: str) -> object:
            return getattr(opened(location)[0], name)

        def move(self, source: str, target: str) -> None:
            monkeypatch.setattr(files, "filesystem", opened)
            lake.write_text(location, "a report")
            opened(location)[0].move(source, target)

    monkeypatch.setattr(files, "filesystem", lambda location: (Slow(), opened(location)[1]))
    lake.write_text(location, "a report")
    assert lake.read_text(location) == "a report"
    assert [each.name for each in (tmp_path / "reports").iterdir()] == ["hour.html"]


def test_object_is_whole_when_a_signal_comes_as_it_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_settings: SetSettings
) -> None:
    """The stream that a signal leaves behind completes its object, without content."""
    set_settings(TIDEMARK_LAKE="s3a://lake")
    disk, path = fs.LocalFileSystem(), str(tmp_path / "proof.json")

    class Interrupted:
        def open_output_stream(self, name: str) -> object:
            stream = disk.open_output_stream(name)
            signal.raise_signal(signal.SIGINT)
            return stream

    monkeypatch.setattr(files, "filesystem", lambda _: (disk, path))
    lake.write_text("s3a://lake/proof.json", "first")
    monkeypatch.setattr(files, "filesystem", lambda _: (Interrupted(), path))
    with pytest.raises(KeyboardInterrupt):
        lake.write_text("s3a://lake/proof.json", "second")
    assert Path(path).read_text() == "second"


def test_folder_keeps_all_its_files_when_moved(root: str) -> None:
    for name in ("a.parquet", "deep/b.parquet", ".hidden"):
        lake.write_text(f"{root}/tables/t/date=2026-11-20/{name}", name)
    lake.move(f"{root}/tables/t/date=2026-11-20", f"{root}/lost+found/x/tables/t")
    assert not lake.exists(f"{root}/tables/t/date=2026-11-20")
    moved = {entry.name for entry in lake.list_entries(f"{root}/lost+found/x/tables/t") if not entry.is_folder}
    assert moved == {"a.parquet", "deep/b.parquet", ".hidden"}
    assert lake.read_text(f"{root}/lost+found/x/tables/t/deep/b.parquet") == "deep/b.parquet"


def test_nothing_but_the_folder_goes_when_it_is_deleted(root: str) -> None:
    for name in ("landing/p/one/x.parquet", "landing/p/one-more/x.parquet"):
        lake.write_text(f"{root}/{name}", "x")
    lake.delete(f"{root}/landing/p/one")
    lake.delete(f"{root}/landing/p/none")
    assert [file.name for file in lake.list_files(f"{root}/landing")] == ["p/one-more/x.parquet"]
    assert lake.size(f"{root}/landing/p/one-more/x.parquet") == 1


def test_missing_file_is_said_to_be_missing(root: str) -> None:
    assert not lake.exists(f"{root}/none")
    assert lake.list_files(f"{root}/none") == []
    with pytest.raises(FileNotFoundError):
        lake.read_text(f"{root}/none")


def test_folder_goes_when_tasks_still_make_and_remove_files_in_it(own_lake: Path) -> None:
    """Like tasks of a failed job: Spark cancels them without waiting for their end."""
    folder, ended = own_lake / "landing" / "p" / "one", Event()

    def make_and_remove() -> None:
        for number in count():
            if ended.is_set():
                return
            with suppress(OSError):
                (folder / "_temporary").mkdir(parents=True, exist_ok=True)
                (folder / "_temporary" / f"{number}.parquet").touch()
                (folder / "_temporary" / f"{number - 1}.parquet").unlink(missing_ok=True)

    task = Thread(target=make_and_remove)
    task.start()
    try:
        for _ in range(50):
            lake.delete(folder.as_uri())
    finally:
        ended.set()
        task.join()
    lake.delete(folder.as_uri())
    assert not folder.exists()


def test_file_outside_of_the_lake_is_not_deleted(root: str) -> None:
    with pytest.raises(UsageError):
        lake.delete(f"{root}-other/file")


def test_age_of_a_folder_is_that_of_its_newest_file_when_scanned(root: str) -> None:
    # Due files are deleted by it, and folders of a store have no age of their own.
    before = datetime.now(UTC) - timedelta(seconds=2)
    lake.write_text(f"{root}/landing/p/00000000-000000001-1/fate=empty/x.parquet", "x")
    ((folder,),) = scan_landing("p")
    assert before < folder.newest < datetime.now(UTC) + timedelta(seconds=2)


def test_each_landing_folder_is_listed_once_when_they_are_more_than_a_portion(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "_AT_ONCE", 2)
    for number in range(5):
        for name in ("fate=empty/x.parquet", "fate=empty/.x.parquet.crc", "fate=archived/date=1/y.parquet"):
            lake.write_text(f"{root}/landing/p/{number}/{name}", "x")
    lake.write_text(f"{root}/landing/p/compacted/empty/x.parquet", "x")
    portions = [*scan_landing("p")]
    assert [len(folders) for folders in portions] == [2, 2, 1]
    found = {folder.location: folder for folders in portions for folder in folders}
    assert found.keys() == {f"{root}/landing/p/{number}" for number in range(5)}
    for folder in found.values():
        assert folder.files == {"fate=empty/x.parquet": 1, "fate=archived/date=1/y.parquet": 1}
        assert folder.bytes == 3


def test_table_is_the_same_when_it_is_scanned_in_parts(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_ENTRIES", 6)
    names = ["date=1/zip=2/r1/p.parquet", "date=1/zip=2/r1/.p.crc", "date=1/zip=3/r2/p.parquet", "date=1/stray"]
    names += ["date=2/zip=2/r3/p.parquet", "r4/p.parquet", "_staging-7/date=1/p.parquet", "stray"]
    for name in names:
        lake.write_text(f"{root}/tables/t/{name}", "x")
    whole, parts = scan.scan_table("t"), [*scan.scan_table_parts("t")]
    assert len(whole.revisions) == 4
    for kind in ("revisions", "unfinished", "strays"):
        found = [item for part in parts for item in getattr(part, kind).items()]
        assert sorted(at for at, _ in found) == sorted(getattr(whole, kind))
        assert dict(found) == getattr(whole, kind)
    assert [len(part.revisions) for part in parts] == [2, 2, 0]


def test_only_old_folders_without_files_go_however_deep_they_are(tmp_path: Path, set_settings: SetSettings) -> None:
    root = tmp_path.as_uri()
    set_settings(TIDEMARK_LAKE=root)
    for name in ("old/a/b/x", "new/a/b/x", "held/a/x", "held/b/x"):
        lake.write_text(f"{root}/landing/p/{name}", "x")
    for name in ("old/a/b/x", "new/a/b/x", "held/b/x"):
        lake.delete_file(f"{root}/landing/p/{name}")
    for name in ("old", "old/a", "old/a/b", "new", "new/a", "held", "held/a", "held/b"):
        os.utime(tmp_path / "landing" / "p" / name, (0, 0))
    gone = lake.delete_empty_folders(f"{root}/landing/p", datetime.now(UTC) - timedelta(hours=1))
    assert sorted(each.removeprefix(f"{root}/landing/p/") for each in gone) == ["held/b", "old", "old/a", "old/a/b"]
    left = {entry.name for entry in lake.list_entries(f"{root}/landing/p")}
    assert left == {"new", "new/a", "new/a/b", "held", "held/a", "held/a/x"}


def test_folder_with_a_file_stays_when_empty_ones_are_pruned(root: str) -> None:
    lake.write_text(f"{root}/landing/p/kept/x.parquet", "x")
    lake.write_text(f"{root}/landing/p/emptied/x.parquet", "x")
    lake.delete_file(f"{root}/landing/p/emptied/x.parquet")
    lake.delete_empty_folders(f"{root}/landing/p", datetime.now(UTC) + timedelta(minutes=1))
    assert lake.read_text(f"{root}/landing/p/kept/x.parquet") == "x"
    assert {file.name for file in lake.list_files(f"{root}/landing/p")} == {"kept/x.parquet"}


@pytest.mark.slow
@pytest.mark.services
def test_store_that_refuses_is_named_without_its_secret(server: s3_server.S3Server, set_settings: SetSettings) -> None:
    where = f"s3a://{s3_server.BUCKET}/x"
    object_store._store.cache_clear()
    set_settings(**{**server.environment, "AWS_SECRET_ACCESS_KEY": "wrong-canary", "TIDEMARK_LAKE": where})
    with pytest.raises(ServiceUnreachable) as raised:
        lake.read_footer(f"{where}/file.parquet")
    object_store._store.cache_clear()
    error = raised.value
    assert f"the lake {where}: " in str(error)
    assert "wrong-canary" not in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "When getting information for key 'q' in bucket 'b': AWS Error ACCESS_DENIED during HeadObject operation: No.",
        "java.net.ConnectException: open s3a://b/q: software.amazon.awssdk.core.exception.SdkClientException: "
        "Unable to execute HTTP request: Connect to 127.0.0.1:1 failed: Connection refused",
        "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file s3a://b/q.\n"
        "S3Exception: null (Service: S3, Status Code: 503, Request ID: 1)",
        *(
            f"When reading information for key 'x/y' in bucket 'b': AWS Error UNKNOWN (HTTP status {status}) during "
            "HeadObject operation: No response body."
            for status in STATUSES
        ),
        "Got the following 2 errors when deleting objects in S3 bucket 'b':\n"
        "- key 'lake/x': AccessDenied: no\n- key 'lake/y': SlowDown: later\n",
        *(
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file s3a://b/q.\n"
            f"S3Exception: slow down (Service: S3, Status Code: {status}, Request ID: 1)"
            for status in STATUSES
        ),
    ],
)
def test_lake_is_blamed_when_its_store_does_not_answer(text: str) -> None:
    error = object_store.unreachable_error("s3a://b/lake", text)
    assert error is not None
    assert error.exit_code == 6
    assert object_store.unreachable_error("file:///srv/lake", text) is None


@pytest.mark.parametrize(
    "text",
    [
        "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file s3a://b/lake/x.parquet.",
        *(
            f"When reading information for key 'x/y' in bucket 'b': AWS Error UNKNOWN (HTTP status {status}) during "
            "HeadObject operation: No response body."
            for status in (404, 412, 416)
        ),
        *(f"S3Exception: null (Service: S3, Status Code: {status}, Request ID: 1)" for status in (404, 412, 416)),
    ],
)
def test_store_is_not_blamed_when_a_file_is_missing_or_damaged(text: str) -> None:
    assert object_store.unreachable_error("s3a://b/lake", text) is None


@pytest.mark.parametrize("lake_uri", ["s3://bucket/lake/", "s3a://bucket/lake"])
def test_bucket_has_one_name_when_spark_and_others_use_it(set_settings: SetSettings, lake_uri: str) -> None:
    set_settings(TIDEMARK_LAKE=lake_uri)
    assert settings().lake_uri == "s3a://bucket/lake"


@pytest.mark.parametrize(
    "lake_uri", ["s3a://key:hunter2@bucket/lake", "s3a:///lake", "s3a://bucket/a//b", "s3a://b/.x"]
)
def test_location_is_refused_when_it_is_not_in_a_bucket(set_settings: SetSettings, lake_uri: str) -> None:
    set_settings(TIDEMARK_LAKE=lake_uri)
    with pytest.raises(UsageError, match="TIDEMARK_LAKE") as raised:
        settings()
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_python_waits_for_a_store_that_restarts(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for each in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(each)
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(fs, "S3FileSystem", lambda **options: made.append(options))
    object_store._store.cache_clear()
    object_store.filesystem("s3a://bucket/lake")
    object_store._store.cache_clear()
    (options,) = made
    # Arrow's own gives up after six seconds.
    assert options.pop("retry_strategy").max_attempts == object_store.TRIES
    assert options == {"endpoint_override": "http://127.0.0.1:9", "region": "eu-central-1"}


def test_spark_reaches_the_store_when_the_environment_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    assert not any("endpoint" in name for name in object_store.spark_properties())
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    properties = object_store.spark_properties()
    assert properties["spark.hadoop.fs.s3a.endpoint"] == "http://127.0.0.1:9000"
    assert properties["spark.hadoop.fs.s3a.path.style.access"] == "true"
    assert "hunter2" not in json.dumps(properties)
    # As Python's clients, also with a profile and the role of a service account.
    provider = properties["spark.hadoop.fs.s3a.aws.credentials.provider"]
    assert provider == "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
