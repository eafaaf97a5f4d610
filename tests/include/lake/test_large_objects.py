"""Objects above what S3 copies in one request, with the limit lowered: copied by the store itself, part by part."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from include import lake
from include.errors import ServiceUnreachable
from include.lake import large_objects, object_store
from tests.conftest import SetSettings
from tests.support import s3_server
from tests.support.watched_store import Watched, watching

pytestmark = [pytest.mark.slow, pytest.mark.services]

MEBIBYTE = 1024**2
LIMIT = 5 * MEBIBYTE
"""The smallest part that S3 accepts."""
LARGE = random.Random(1).randbytes(3 * LIMIT + 12_345)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3_server.S3Server]:
    with s3_server.serving(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def watched(
    server: s3_server.S3Server, set_settings: SetSettings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Watched]:
    """The traffic between this process and the store, where more than 5 MiB is too large for a single copy."""
    with watching(server.endpoint) as listener:
        where = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{listener.port}", "AWS_MAX_ATTEMPTS": "1"}
        lake_uri = {"TIDEMARK_LAKE": f"s3a://{s3_server.BUCKET}/lake"}
        set_settings(**{**server.environment, **where, **lake_uri})
        monkeypatch.setattr(large_objects, "COPIED_AT_ONCE", LIMIT)
        monkeypatch.setattr(large_objects, "PART_BYTES", LIMIT)
        object_store._store.cache_clear()
        yield listener
    object_store._store.cache_clear()


def parts_of(watched: Watched) -> list[int]:
    """Numbers of the parts that were asked for."""
    found = (re.search(r"^PUT .*[?&]partNumber=(\d+)", each) for each in watched.asked)
    return sorted(int(each[1]) for each in found if each)


def test_large_object_is_copied_by_the_store_part_by_part_when_it_is_moved(
    server: s3_server.S3Server, watched: Watched
) -> None:
    source, target = lake.uri("tables", "t", "large.parquet"), lake.uri("moved", "to", "large.parquet")
    lake.write_bytes(source, LARGE)
    watched.forget()
    lake.move(source, target)
    assert parts_of(watched) == [1, 2, 3, 4]
    # 15 MiB were moved; only requests and answers passed through here.
    assert watched.bytes < 64 * 1024
    store = server.filesystem()
    assert store.open_input_stream(target.removeprefix("s3a://")).read() == LARGE
    assert not lake.exists(source)


def test_folder_with_large_and_small_objects_is_moved_whole(watched: Watched) -> None:
    folder = lake.uri("tables", "both")
    for name, content in (("large.parquet", LARGE), ("deep/small.parquet", b"small"), ("limit", LARGE[:LIMIT])):
        lake.write_bytes(f"{folder}/{name}", content)
    watched.forget()
    lake.move(folder, lake.uri("moved", "both"))
    assert parts_of(watched) == [1, 2, 3, 4]
    assert watched.bytes < 128 * 1024
    moved = {file.name: file.bytes for file in lake.list_files(lake.uri("moved", "both"))}
    assert moved == {"large.parquet": len(LARGE), "deep/small.parquet": 5, "limit": LIMIT}
    assert lake.read_bytes(lake.uri("moved", "both", "large.parquet")) == LARGE
    assert lake.list_files(folder) == []


def test_large_file_is_copied_in_parts_when_its_footer_is_changed(watched: Watched) -> None:
    location = lake.uri("tables", "t", "large-footer.parquet")
    with lake.filesystem(location)[0].open_output_stream(location.removeprefix("s3a://")) as file:
        pq.write_table(pa.table({"value": [LARGE[:LIMIT], LARGE[LIMIT:]]}), file, compression="none")
    before = lake.size(location)
    watched.forget()
    lake.change_footer(location, lambda footer: footer)
    # Some are those of the new file, which is written from here in larger parts.
    assert {*parts_of(watched)} == {1, 2, 3, 4}
    assert lake.size(location) == before
    assert not lake.exists(f"{location}.tmp")


def test_object_stays_where_it_is_and_no_upload_is_left_when_the_store_fails_in_the_middle(
    server: s3_server.S3Server, watched: Watched
) -> None:
    source, target = lake.uri("tables", "t", "kept.parquet"), lake.uri("moved", "never.parquet")
    lake.write_bytes(source, LARGE)
    watched.refuse = b"partNumber=3"
    with pytest.raises(ServiceUnreachable) as raised:
        lake.move(source, target)
    watched.refuse = b""
    assert source in str(raised.value)
    assert server.secret_key not in str(raised.value)
    assert raised.value.exit_code == 6
    assert not lake.exists(target)
    assert lake.read_bytes(source) == LARGE
    assert uploads(server) == []
    lake.move(source, target)
    assert lake.read_bytes(target) == LARGE


def test_object_stays_where_it_is_when_the_store_refuses_the_credentials(
    server: s3_server.S3Server, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = lake.uri("tables", "t", "refused.parquet")
    lake.write_bytes(source, LARGE)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-canary")
    path = source.removeprefix("s3a://")
    with pytest.raises(ServiceUnreachable) as raised:
        large_objects.copy_in_parts(path, f"{path}.copy")
    assert "wrong-canary" not in str(raised.value)
    assert server.filesystem().get_file_info(path).size == len(LARGE)


def test_file_keeps_its_content_when_the_store_fails_while_it_is_written_again(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = lake.uri("reports", "hour.html")
    watched.forget()
    lake.write_text(location, "first")
    # Nothing is copied or deleted: a put is atomic, and a store may deny deletes.
    assert "DELETE" not in {each.split(" ", 1)[0] for each in watched.asked}
    monkeypatch.setattr(object_store, "TRIES", 2)
    object_store._store.cache_clear()
    watched.refuse = b"partNumber="
    for content in (b"second", LARGE):
        with pytest.raises(ServiceUnreachable):
            lake.write_bytes(location, content)
    watched.refuse = b""
    assert lake.read_text(location) == "first"


def uploads(server: s3_server.S3Server) -> list[Any]:
    """Return the uploads that were begun and neither completed nor aborted."""
    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
    )
    return list(client.list_multipart_uploads(Bucket=s3_server.BUCKET).get("Uploads", []))
