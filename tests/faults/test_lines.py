"""Streams from files and a socket that are killed or cut off: what was noted is there once, what was not is told."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from include.pipelines import load_pipeline
from include.services.process import free_port
from tests.conftest import Home, end_of, last_hours, wait_for
from tests.support import hits
from tests.support.hits import archived, check_archive, fates, move_in
from tests.support.killed import was_killed
from tests.support.looked_at import those

pytestmark = [pytest.mark.services, pytest.mark.own_drivers, pytest.mark.faults, pytest.mark.slow]

START = last_hours(3)
GOOD = [*hits.good(START, 600, seed=3), *hits.naughty(START)]
BAD = hits.bad(START)
QUERIES = ("archive", *(view.name for view in load_pipeline("isp_hits").views))


def committed(home: Home, name: str) -> int:
    """Lines that the archive has committed, once all views have read them too; 0 before that."""
    of = f"JOIN micro_batches b ON b.id = micro_batch_id WHERE pipeline = '{name}'"
    reached = home.ledger(f"SELECT query, max(until_file) FROM line_spans {of} GROUP BY query")
    lines = home.ledger(f"SELECT sum(until_line - from_line)::int FROM line_counts {of}")
    everywhere = len(reached) == len(QUERIES) and len({until for _, until in reached}) == 1
    return lines[0][0] if everywhere else 0


@contextmanager
def server(*connections: bytes) -> Iterator[tuple[str, threading.Event]]:
    """A server that sends one content after the other, each to one client, and closes; the last time on demand."""
    hang_up = threading.Event()

    def serve() -> None:
        for number, content in enumerate(connections, 1):
            client, _ = listener.accept()
            with client:
                client.sendall(content)
                if number == len(connections):
                    hang_up.wait(300)

    with socket.create_server(("127.0.0.1", free_port())) as listener:
        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield f"socket://127.0.0.1:{listener.getsockname()[1]}", hang_up
        hang_up.set()
        serving.join(60)


def kill(stream: subprocess.Popen[str]) -> None:
    """Kill the stream's processes, Python before the JVM, so that the driver cannot clean up."""
    below = psutil.Process(stream.pid).children(recursive=True)
    java = those(below, lambda process: process.name() == "java")
    for process in (*(each for each in below if each not in java), *java):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    end_of(stream)


def test_each_line_of_a_folder_is_there_once_when_the_driver_is_killed_and_files_keep_coming(
    home: Home, tmp_path: Path
) -> None:
    source = ("--from", tmp_path.as_uri())
    for number, at in enumerate(("landing_written", "batch_committed", "speed_written")):
        # A new file before each kill, so that every kill hits a micro-batch with work in it.
        move_in(tmp_path, f"a{number}", GOOD[100 * number : 100 * number + 100])
        killed = home.run("stream", "isp_hits", *source, "--until-caught-up", expect=None, TIDEMARK_CRASH_AT=at)
        assert was_killed(killed), killed.stderr[-2000:]
    stream = home.start("stream", "isp_hits", *source)
    try:
        wait_for("the first files", lambda: committed(home, "isp_hits_files") == 300)
        move_in(tmp_path, "b", BAD)
        wait_for("the second file", lambda: committed(home, "isp_hits_files") == 300 + len(BAD))
        move_in(tmp_path, "c", GOOD[300:])
        wait_for("the third file to be noted", lambda: home.ledger("SELECT count(*) FROM line_files") == [(5,)])
        kill(stream)
    finally:
        end_of(stream)
    home.run("stream", "isp_hits", *source, "--until-caught-up")
    check_archive(home, "isp_hits_files", GOOD, BAD)
    found = fates(home, "isp_hits_files")
    assert {name.rpartition("/")[2]: fate[:2] for name, fate in found.items()} == {
        **{f"a{number}": (1, 101) for number in range(3)},
        "b": (1, len(BAD) + 1),
        "c": (1, len(GOOD) - 299),
    }
    # A new generation archives nothing again and counts everything anew.
    home.run("new-generation", "isp_hits_files", "--reason", "a test")
    again = home.run("stream", "isp_hits", *source, "--until-caught-up")
    assert "0 records committed" in again.stderr
    check_archive(home, "isp_hits_files", GOOD, BAD)


def test_socket_is_connected_again_and_the_ledger_tells_what_was_cut_off(home: Home) -> None:
    cut = GOOD[-1][:20]
    first, second = [*GOOD[:300], *BAD], GOOD[300:]
    with server(b"\n".join([*first, cut]), b"\n".join([*second, b""])) as (address, _):
        stream = home.start("stream", "isp_hits", "--from", address)
        try:
            total = len(GOOD) + len(BAD)
            wait_for("all lines", lambda: committed(home, "isp_hits_socket") == total)
            stream.send_signal(signal.SIGTERM)
            _, said = stream.communicate(timeout=120)
            assert stream.returncode == 0, said[-2000:]
        finally:
            end_of(stream)
    check_archive(home, "isp_hits_socket", GOOD, BAD)
    connections = home.ledger("SELECT id, address, lines, cut_bytes, ended FROM line_connections ORDER BY id")
    (one, *told), (two, *told_then) = connections
    assert told == [address, len(first), len(cut), "closed by the other side"]
    assert told_then == [address, len(second), 0, "stopped"]
    assert {name: fate[:2] for name, fate in fates(home, "isp_hits_socket").items()} == {
        f"{address}#{one}": (1, len(first) + 1),
        f"{address}#{two}": (1, len(second) + 1),
    }
    ((guarantee,),) = home.ledger("SELECT guarantee FROM line_sources WHERE kind = 'socket'")
    assert guarantee.startswith("at most once")


def test_connection_of_a_killed_driver_is_told_and_what_was_noted_is_there_once(home: Home) -> None:
    before = committed(home, "isp_hits_socket")
    more = hits.good(START, 200, seed=9)
    with server(b"\n".join([*more, b""])) as (address, _):
        stream = home.start("stream", "isp_hits", "--from", address)
        try:
            noted = "SELECT lines FROM line_connections WHERE closed_at IS NULL"
            wait_for("the lines to be noted", lambda: home.ledger(noted) == [(len(more),)])
            kill(stream)
        finally:
            end_of(stream)
    with server(b"") as (address, hang_up):
        hang_up.set()
        done = home.run("stream", "isp_hits", "--from", address, "--until-caught-up")
    assert "at most once" in done.stderr
    assert committed(home, "isp_hits_socket") == before + len(more)
    check_archive(home, "isp_hits_socket", GOOD + more, BAD)
    connections = home.ledger("SELECT lines, ended FROM line_connections ORDER BY id")[2:]
    assert connections == [
        (len(more), "the driver ended before it closed the connection: what it received last may be lost"),
        (0, "closed by the other side"),
    ]


def test_stream_ends_with_exit_code_6_when_nobody_listens(home: Home) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
    refused = home.run("stream", "isp_hits", "--from", f"socket://127.0.0.1:{port}", "--until-caught-up", expect=6)
    assert f"socket://127.0.0.1:{port}" in refused.stderr


def test_stream_goes_on_and_each_line_is_there_once_when_postgresql_is_killed(home: Home) -> None:
    before = committed(home, "isp_hits_socket")
    rows = len(archived(home, "isp_hits_socket"))
    more = [hits.good(START, 100, seed=seed) for seed in (11, 12)]
    with socket.create_server(("127.0.0.1", free_port())) as listener:
        address = f"socket://127.0.0.1:{listener.getsockname()[1]}"
        stream = home.start("stream", "isp_hits", "--from", address, TIDEMARK_LEASE_SECONDS="120")
        try:
            listener.settimeout(120)
            client, _ = listener.accept()
            with client:
                client.sendall(b"\n".join([*more[0], b""]))
                wait_for("the first lines", lambda: committed(home, "isp_hits_socket") == before + 100)
                server = psutil.Process(home.process_id("postgres"))
                every = [server, *server.children(recursive=True)]
                for process in every:
                    process.kill()
                psutil.wait_procs(every, timeout=30)
                client.sendall(b"\n".join([*more[1], b""]))
                # Meanwhile the feed and each query's source ask the ledger.
                with suppress(subprocess.TimeoutExpired):
                    stream.wait(5)
                home.run("up", "postgres")
                wait_for("all lines", lambda: committed(home, "isp_hits_socket") == before + 200)
                stream.send_signal(signal.SIGTERM)
                _, errors = stream.communicate(timeout=120)
        finally:
            end_of(stream)
    assert stream.returncode == 0, errors
    assert "the ledger answers again after" in errors
    assert "Traceback" not in errors, errors
    landed = archived(home, "isp_hits_socket")
    assert len({(row["source_name"], row["source_line"]) for row in landed}) == len(landed) == rows + 200
    connections = home.ledger("SELECT lines, ended FROM line_connections ORDER BY id DESC LIMIT 1")
    assert connections == [(200, "stopped")]
