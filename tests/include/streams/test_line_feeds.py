"""What a folder and a socket bring into the ledger, on a real ledger and real connections; no Spark."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import delete, select, text

from include import lake
from include.errors import AnotherWriter, ServiceUnreachable, TidemarkError, UsageError
from include.ledger.database import session
from include.ledger.models import LineConnection, LineFile
from include.ledger.streams import lines, writers
from include.ledger.streams.lines import DRIVER_ENDED, NotedFile
from include.pipelines import load_line_pipeline
from include.pipelines.spec.lines import SocketLines, TextFiles
from include.services.process import free_port
from include.streams.line_feeds import Feed, FolderFeed, SocketFeed, check_unchanged
from tests.conftest import Home, settings_of, wait_for
from tests.support.leases import held_lease

pytestmark = pytest.mark.services


@pytest.fixture(scope="module", autouse=True)
def in_this_process(postgres: Home) -> Iterator[None]:
    with settings_of(postgres, TIDEMARK_LEASE_SECONDS="60"):
        yield


@pytest.fixture
def lease(request: pytest.FixtureRequest) -> Iterator[writers.Lease]:
    """The lease of a pipeline of the test's own."""
    with held_lease(request.node.name[:60]) as held:
        yield held


def noted(lease: writers.Lease) -> list[NotedFile]:
    return lines.files_between(lease.pipeline, 0, 2**62)


def connections(lease: writers.Lease) -> list[tuple[int, int, str | None]]:
    with session() as ledger:
        wanted = select(LineConnection).where(LineConnection.pipeline == lease.pipeline).order_by(LineConnection.id)
        return [(row.lines, row.cut_bytes, row.ended) for row in ledger.scalars(wanted)]


def test_files_are_noted_once_and_in_order_when_they_are_whole(lease: writers.Lease, tmp_path: Path) -> None:
    for number, name in enumerate(("b", "a", "with blank & ü", ".hidden", "_begun")):
        (tmp_path / name).write_bytes(b"x\n" * number)
        os.utime(tmp_path / name, (1_000_000 + number, 1_000_000 + number))
    (tmp_path / "folder").mkdir()
    source = TextFiles(tmp_path.as_uri())
    for _ in range(2):
        FolderFeed(source, lease, until_end=True).feed()
        names = [file.location.rpartition("/")[2] for file in noted(lease)]
        assert names == ["b", "a", "with%20blank%20%26%20%C3%BC"]
    assert [file.bytes for file in noted(lease)] == [0, 2, 4]
    for file in noted(lease):
        check_unchanged(file, lease.pipeline)


def test_file_is_noted_when_it_no_longer_grows(lease: writers.Lease, tmp_path: Path) -> None:
    feed = FolderFeed(TextFiles(tmp_path.as_uri()), lease, until_end=False)
    (tmp_path / "a").write_bytes(b"x")
    feed._look()
    (tmp_path / "a").write_bytes(b"xy")
    feed._look()
    assert noted(lease) == []
    feed._look()
    assert [file.bytes for file in noted(lease)] == [2]


def test_feed_fails_when_a_noted_file_changes_or_the_folder_goes(lease: writers.Lease, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a").write_bytes(b"x\n")
    feed = FolderFeed(TextFiles(folder.as_uri()), lease, until_end=False)
    feed.start()
    [file] = wait_for("the file", lambda: noted(lease))
    (folder / "a").write_bytes(b"x\ny\n")
    wait_for("the feed's end", lambda: not feed.is_alive())
    with pytest.raises(TidemarkError, match=r"a was changed after it was noted \(2 bytes .*now 4"):
        feed.check()
    with pytest.raises(TidemarkError, match="a was changed after it was noted"):
        check_unchanged(file, lease.pipeline)
    (folder / "a").unlink()
    with pytest.raises(TidemarkError, match="is gone before it was read"):
        check_unchanged(file, lease.pipeline)
    folder.rmdir()
    with pytest.raises(UsageError, match="there is no folder"):
        FolderFeed(TextFiles(folder.as_uri()), lease, until_end=False)


@pytest.mark.parametrize("until_end", [False, True])
def test_feed_fails_and_names_the_file_when_a_name_is_not_utf_8(
    lease: writers.Lease, tmp_path: Path, until_end: bool
) -> None:
    (tmp_path / "a").write_bytes(b"x\n")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/b\xff")).write_bytes(b"y\n")
    feed = FolderFeed(TextFiles(tmp_path.as_uri()), lease, until_end=until_end)
    feed.start()
    wait_for("the feed's end", lambda: not feed.is_alive())
    with pytest.raises(TidemarkError, match=r"is not UTF-8: 'b\\xff'.*rename it"):
        feed.check()
    assert noted(lease) == []


@pytest.mark.parametrize("until_end", [False, True])
def test_feed_fails_when_it_ends_by_an_error_that_nobody_foresaw(lease: writers.Lease, until_end: bool) -> None:
    class Defective(Feed):
        def feed(self) -> None:
            raise ZeroDivisionError("division by zero")

    feed = Defective(lease, "file:///in", until_end=until_end)
    feed.start()
    wait_for("the feed's end", lambda: not feed.is_alive())
    with pytest.raises(TidemarkError, match="no longer be taken in: ZeroDivisionError: division by zero") as failed:
        feed.check()
    assert isinstance(failed.value.__cause__, ZeroDivisionError)


def test_nothing_is_noted_when_the_driver_lost_its_lease(lease: writers.Lease, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x\n")
    writers.release(lease)
    with held_lease(lease.pipeline) as other:
        with pytest.raises(AnotherWriter):
            FolderFeed(TextFiles(tmp_path.as_uri()), lease, until_end=True).feed()
        assert noted(other) == []


@dataclass
class Server:
    """Sends one content after the other, each to the next client, and hangs up."""

    contents: list[bytes]

    def __post_init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", free_port()))
        self.source = SocketLines(*self.listener.getsockname())
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        with self.listener:
            for content in self.contents:
                client, _ = self.listener.accept()
                with client:
                    client.sendall(content)


def received(lease: writers.Lease) -> bytes:
    found = b""
    for file in noted(lease):
        system, path = lake.filesystem(file.location)
        with system.open_input_stream(path) as stream:
            found += bytes(stream.read())
    return found


def test_lines_are_numbered_per_connection_when_a_socket_is_connected_again(lease: writers.Lease) -> None:
    hostile = b"\xff\xfe\x00\r\n\n" + b"y" * 9_000_000 + b"\n"
    server = Server([hostile + b"cut of", b"a\nb\n"])
    feed = SocketFeed(server.source, lease, until_end=False)
    feed.start()
    wait_for("both connections", lambda: [each[0] for each in connections(lease)] == [3, 2])
    server.thread.join(30)
    wait_for("the second one's end", lambda: connections(lease)[1][2])
    feed.end()
    feed.check()
    assert received(lease) == hostile + b"a\nb\n"
    assert connections(lease) == [(3, 6, "closed by the other side"), (2, 0, "closed by the other side")]
    firsts: dict[str, list[int]] = {}
    for file in noted(lease):
        firsts.setdefault(file.source_name, []).append(file.first_line)
    assert [each[0] for each in firsts.values()] == [1, 1]
    assert all(str(server.source) in name for name in firsts)


def test_socket_ends_with_its_first_connection_when_asked_to_catch_up(lease: writers.Lease) -> None:
    server = Server([b"a\nb\nc"])
    SocketFeed(server.source, lease, until_end=True).feed()
    assert received(lease) == b"a\nb\n"
    assert connections(lease) == [(2, 1, "closed by the other side")]


def test_connection_is_given_up_when_a_line_does_not_end(lease: writers.Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("include.streams.received_lines.MOST_BYTES", 1_000_000)
    server = Server([b"a\n" + b"x" * 5_000_000])
    with pytest.raises(TidemarkError, match="given up: a line of more than 1000000 bytes: 1 lines were received"):
        SocketFeed(server.source, lease, until_end=True).feed()
    [(count, cut, ended)] = connections(lease)
    assert (count, ended) == (1, "given up: a line of more than 1000000 bytes")
    assert 1_000_000 < cut < 5_000_000
    assert received(lease) == b"a\n"


def test_lines_in_a_file_are_noted_by_the_next_driver_when_the_first_one_could_not(
    lease: writers.Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server([b"a\nb\n", b"c\n"])
    pipeline: Any = SimpleNamespace(name=lease.pipeline, code="a_test")
    with monkeypatch.context() as away:
        away.setattr(lines, "note_received", Mock(side_effect=ServiceUnreachable("the ledger is away")))
        with pytest.raises(ServiceUnreachable):
            SocketFeed(server.source, lease, until_end=True).feed()
    assert noted(lease) == []
    for _ in range(2):
        lines.note_source(lease, pipeline, SocketLines.kind, SocketLines.guarantee)
        SocketFeed(server.source, lease, until_end=True).feed()
        assert received(lease) == b"a\nb\nc\n"
        assert connections(lease)[:2] == [(2, 0, DRIVER_ENDED), (1, 0, "closed by the other side")]
        server = Server([b""])
    assert [file.first_line for file in noted(lease)] == [1, 1]
    assert len({file.source_name for file in noted(lease)}) == 2


def test_received_files_stay_when_a_restored_ledger_gives_their_connection_s_number_again(lease: writers.Lease) -> None:
    SocketFeed(Server([b"a\n"]).source, lease, until_end=True).feed()
    [before] = noted(lease)
    number = before.source_name.rpartition("#")[2]
    with session() as ledger:
        for table in (LineFile, LineConnection):
            ledger.execute(delete(table).where(table.pipeline == lease.pipeline))
        ledger.execute(text(f"SELECT setval('line_connections_id_seq', {number}, false)"))
    SocketFeed(Server([b"b\n"]).source, lease, until_end=True).feed()
    [after] = noted(lease)
    assert after.source_name.rpartition("#")[2] == number
    assert lake.read_bytes(before.location) == b"a\n"
    assert received(lease) == b"b\n"


def test_stream_is_told_when_nobody_listens(lease: writers.Lease) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ServiceUnreachable, match=f"socket://127.0.0.1:{port}"):
        SocketFeed(SocketLines("127.0.0.1", port), lease, until_end=False).feed()


def test_open_connection_is_told_as_cut_when_the_next_driver_starts() -> None:
    pipeline = load_line_pipeline("isp_hits_socket")
    assert pipeline is not None
    with held_lease(pipeline.name) as held:
        lines.note_source(held, pipeline, SocketLines.kind, SocketLines.guarantee)
        lines.open_connection(held, "socket://127.0.0.1:1")
    with held_lease(pipeline.name) as held:
        lines.note_source(held, pipeline, SocketLines.kind, SocketLines.guarantee)
        assert connections(held) == [(0, 0, DRIVER_ENDED)]
        assert lines.sources_of("isp_hits") == ["isp_hits_socket"]


def test_at_least_one_file_is_read_when_it_is_larger_than_the_limit(lease: writers.Lease) -> None:
    at = datetime(2026, 11, 20, tzinfo=UTC)
    lines.note_files(lease, [NotedFile(f"file:///{n}", 10, at, f"file:///{n}") for n in range(5)])
    reached, spans = 0, []
    while (until := lines.noted_until(lease.pipeline, reached, 25)) > reached:
        spans.append([file.location[-1] for file in lines.files_between(lease.pipeline, reached, until)])
        reached = until
    assert spans == [["0", "1"], ["2", "3"], ["4"]]
    assert len(lines.files_between(lease.pipeline, 0, lines.noted_until(lease.pipeline, 0, 1))) == 1


def test_micro_batch_has_no_more_files_than_the_limit_when_they_are_small(
    lease: writers.Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MOST_FILES", 2, raising=False)
    at = datetime(2026, 11, 20, tzinfo=UTC)
    lines.note_files(lease, [NotedFile(f"file:///{n}", 0, at, f"file:///{n}") for n in range(5)])
    found = [
        each.location[-1] for each in lines.files_between(lease.pipeline, 0, lines.noted_until(lease.pipeline, 0, 25))
    ]
    assert found == ["0", "1"]
    assert len(lines.files_between(lease.pipeline, 0, lines.noted_until(lease.pipeline, 0, None))) == 5
