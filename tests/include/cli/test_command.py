"""The command line's edge: one clear line and the exit code of the contract."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from include.cli import VERBS, live
from include.cli import __main__ as command
from include.cli.demo import _report
from include.cli.output import has_reader
from include.errors import UsageError
from include.services.process import free_port
from tests.conftest import REPOSITORY, Home

FILLED = {"--from": "2026-11-20T05:00:00Z", "--to": "2026-11-20T06:00:00Z", "partition": "0", "offset": "0"}
"""Values of required parameters; of others it is any text."""


@cache
def commands() -> dict[tuple[str, ...], Any]:
    """Every command by its words: verbs, and those of the verbs that are groups."""
    root: Any = typer.main.get_command(command.app)
    verbs = {verb: root.get_command(typer.Context(root), verb) for verb in VERBS}
    groups = {verb: getattr(found, "commands", {}) for verb, found in verbs.items()}
    alone = {(verb,): found for verb, found in verbs.items() if not groups[verb]}
    return alone | {(verb, name): each for verb, group in groups.items() for name, each in group.items()}


def filled(words: tuple[str, ...], pipeline: str) -> list[str]:
    """The command's arguments with this pipeline and whatever else it requires."""
    arguments, options = [], []
    for each in commands()[words].params:
        name = each.opts[0]
        if each.param_type_name == "argument" and (each.required or name == "pipeline"):
            arguments.append(pipeline if name == "pipeline" else FILLED.get(name, "x"))
        elif each.required:
            options += [name, FILLED.get(name, "x")]
    return [*words, *options, *arguments]


def run(home: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return Home(home, own_drivers=True).run(*arguments, expect=None, **extra)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["stream", "no_such"], "unknown pipeline 'no_such'"),
        (["interval", "nest_cameras", "--from", "noon", "--to", "2026-01-01T01:00:00Z"], "not a time"),
        (
            ["interval", "nest_cameras", "--from", "2026-01-01T00:30:00Z", "--to", "2026-01-01T01:30:00Z"],
            "not a boundary",
        ),
        (["interval", "nest_cameras", "--from", "2999-01-01T00:00:00Z", "--to", "2999-01-01T01:00:00Z"], "not passed"),
        (["produce", "nest_cameras", "--events", "0"], "--events"),
        (["produce", "nest_cameras"], "--events"),
        (["produce", "nest_cameras", "--events", "1", "--start", "9999-12-31T23:00:00Z"], "after the year 9999"),
        (["top", "wiki_changes", "--since", "99999999999h"], "too long a duration"),
        (["no-such-verb"], "no-such-verb"),
        (["up", "no_such"], "unknown service"),
        (["explain", "no_such", "x"], "unknown table"),
        (["ranges", "nest_cameras", "--to", "garbage"], "not a time"),
        (["ranges", "nest_cameras", "--from", ""], "not a time"),
        (["verify", "http://example.org/proof.json"], "name the file of a proof"),
        (
            ["interval", "nest_cameras", "--from", "9999-12-31T23:00:00Z", "--to", "9999-12-31T23:00:00Z"],
            "has not passed",
        ),
        (["bench", "no_such"], "invalid choice: 'no_such'"),
        pytest.param(["bench", "archive", "--events", "x"], "invalid int value: 'x'", marks=pytest.mark.slow),
    ],
)
def test_error_is_one_line_with_exit_code_64_when_usage_is_wrong(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    result = run(tmp_path, *arguments)
    assert result.returncode == 64, result.stderr
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["erase", "nest_cameras", "--resume", "--whole-records"], "--whole-records has no effect with --resume"),
        (["erase", "nest_cameras", "--resume", "--column", "mac"], "--column has no effect with --resume"),
        (["erase", "nest_cameras", "--resume", "--reason", "x"], "--reason has no effect with --resume"),
        (["erase", "nest_cameras", "--resume", "--key", "x"], "--key has no effect with --resume"),
        (["erase", "nest_cameras", "--resume", "--dry-run"], "--dry-run has no effect with --resume"),
        (["produce", "nest_cameras", "--events", "1", "--until", "1"], "--until has no effect with --events"),
        (["produce", "nest_cameras", "--events", "1", "--seconds", "1"], "--seconds has no effect with --events"),
        (["produce", "nest_cameras", "--events", "1", "--contact", "a@b.c"], "--contact has no effect with --events"),
        (
            ["produce", "nest_cameras", "--events", "1", "--accept-gap", "present"],
            "--accept-gap has no effect with --events",
        ),
        # Also where it equals the default.
        (["produce", "wiki_changes", "--from-stream", "http://h", "--seed", "1"], "--seed has no effect with"),
        (["produce", "wiki_changes", "--from-stream", "http://h", "--rate", "1"], "--rate has no effect with"),
        (["produce", "wiki_changes", "--from-stream", "http://h", "--span", "3h"], "--span has no effect with"),
        (
            ["produce", "wiki_changes", "--from-stream", "http://h", "--start", "2026-01-01T00:00:00Z"],
            "--start has no effect with",
        ),
        (
            ["produce", "wiki_changes", "--from-stream", "http://h", "--bad-fraction", "0"],
            "--bad-fraction has no effect with",
        ),
        (["lag", "--json", "--metrics"], "--json and --metrics are two formats"),
        (["top", "wiki_changes", "--port", "0"], "--port has no effect without --serve"),
        (["new", "door_events", "--sample", "x", "--format", "avro"], "'--format'"),
    ],
)
def test_option_is_refused_when_it_would_have_no_effect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    monkeypatch.setattr("sys.argv", ["tidemark", *arguments])
    assert command.main() == 64
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["quarantine", "show", "nest_cameras", "nest-cameras", "--", "-1", "0"], "greater than or equal to 0"),
        (["quarantine", "show", "nest_cameras", "nest-cameras", "--", "0", "-1"], "greater than or equal to 0"),
        (["produce", "nest_cameras", "--events", "1", "--start", "1970-01-01T00:00:00Z"], "before 1970"),
        (["produce", "nest_cameras", "--events", "1", "--start", "1969-12-31T23:00:00Z"], "before 1970"),
        (["produce", "nest_cameras", "--events", "1", "--span", "36000d"], "a shorter --span"),
    ],
)
def test_number_or_time_is_refused_when_no_record_can_have_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    monkeypatch.setattr("sys.argv", ["tidemark", *arguments])
    assert command.main() == 64
    assert words in capsys.readouterr().err


def test_error_is_one_line_with_exit_code_6_when_a_service_is_missing(tmp_path: Path) -> None:
    result = run(tmp_path, "produce", "nest_cameras", "--events", "1")
    assert result.returncode == 6
    assert "tidemark up kafka" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_error_is_one_line_when_the_home_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run(tmp_path / "file" / "home", "up")
    assert result.returncode == 1
    assert "Not a directory" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_broker_is_named_with_exit_code_6_when_it_is_unreachable(tmp_path: Path) -> None:
    result = run(tmp_path, "produce", "nest_cameras", "--events", "1", TIDEMARK_KAFKA_BOOTSTRAP="127.0.0.1:1")
    assert result.returncode == 6
    assert "127.0.0.1:1" in result.stderr


@pytest.mark.parametrize(
    ("closed", "arguments", "code"),
    [(">&-", ["pipelines"], 0), (">&- 2>&-", ["pipelines"], 0), ("2>&-", ["no-such-verb"], 64)],
)
def test_exit_code_is_kept_when_the_caller_has_closed_its_output(
    tmp_path: Path, closed: str, arguments: list[str], code: int
) -> None:
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "include.cli", *arguments]
    environment = {**os.environ, "TIDEMARK_HOME": str(tmp_path)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (code, "", "")


@pytest.mark.parametrize(
    ("closed", "arguments", "code"),
    [
        ("stdout", ["pipelines"], 0),
        ("stdout", ["pipelines", "--json"], 0),
        ("stdout", ["pipelines", "--help"], 0),
        ("stderr", ["no-such-verb"], 64),
    ],
)
def test_exit_code_is_kept_when_the_reader_of_its_output_has_gone(
    tmp_path: Path, closed: str, arguments: list[str], code: int
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        [sys.executable, "-m", "include.cli", *arguments],
        env={**os.environ, "TIDEMARK_HOME": str(tmp_path)},
        cwd=REPOSITORY,
        check=False,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, closed: writer},
    )
    os.close(writer)
    assert (result.returncode, result.stdout or b"", result.stderr or b"") == (code, b"", b"")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_line_is_written_at_once_when_python_is_told_not_to_buffer(stream: str) -> None:
    opened = "import os, sys; from include.cli.__main__ import _open_streams; _open_streams()"
    program = f"{opened}; print('a', file=sys.{stream}); os._exit(0)"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, cwd=REPOSITORY, check=True
    )
    assert result.stdout + result.stderr == "a\n"


def test_live_table_ends_when_its_reader_has_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    assert has_reader(writer)
    os.close(reader)
    assert not has_reader(writer)
    monkeypatch.setattr(live, "has_reader", lambda: has_reader(writer))
    shown: list[str] = []
    look = live._at_changes(tmp_path / "top.json", shown.append)
    assert look()
    (tmp_path / "top.json").write_text("{}")
    assert not look()
    os.close(writer)
    assert shown == ["{}"]


def test_argument_is_wrong_usage_when_it_is_not_utf_8(tmp_path: Path) -> None:
    environment = {**os.environ, "TIDEMARK_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "include.cli", "sql", b"SELECT '\xfc'"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert (result.returncode, result.stderr) == (64, "tidemark: argument 2 is not UTF-8 — encode it in UTF-8\n")


def test_report_opens_in_a_browser_when_its_path_has_a_blank() -> None:
    assert _report("", "p", "/srv/my löke/reports/p/1.html") == "file:///srv/my%20l%C3%B6ke/reports/p/1.html"


def test_exit_code_is_64_when_a_setting_is_wrong(tmp_path: Path) -> None:
    result = run(tmp_path, "status", TIDEMARK_LEASE_SECONDS="soon")
    assert result.returncode == 64
    assert "TIDEMARK_LEASE_SECONDS" in result.stderr


@pytest.mark.parametrize("lake", ["foo://x", "s3a://", "s3a:///", "s3://B"])
def test_exit_code_is_64_when_the_lake_is_no_store(tmp_path: Path, lake: str) -> None:
    result = run(tmp_path, "pipelines", TIDEMARK_LAKE=lake)
    assert (result.returncode, result.stdout) == (64, "")
    assert result.stderr.startswith("tidemark: TIDEMARK_LAKE: ")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"no.such.option=1\n", "No such configuration property"), (b"client.id=\xff\n", "is not UTF-8")],
)
@pytest.mark.parametrize("command", [("lag",), ("produce", "nest_cameras", "--events", "1")])
def test_exit_code_is_64_when_an_option_of_kafka_s_client_is_wrong(
    tmp_path: Path, content: bytes, words: str, command: tuple[str, ...]
) -> None:
    options = tmp_path / "client.properties"
    options.touch(0o600)
    options.write_bytes(content)
    result = run(tmp_path, *command, TIDEMARK_KAFKA_PROPERTIES=str(options), TIDEMARK_KAFKA_BOOTSTRAP="127.0.0.1:1")
    assert result.returncode == 64, result.stderr
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_exit_code_is_64_when_the_monitor_s_token_is_no_text(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_bytes(b"\xff" * 40)
    result = run(tmp_path, "monitor", "--token-file", str(token))
    assert result.returncode == 64, result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_exit_code_is_6_when_databases_are_set_up_on_a_server_that_is_away(tmp_path: Path) -> None:
    result = run(tmp_path, "setup-database", TIDEMARK_DATABASE_URL="postgresql://u:canary@127.0.0.1:1")
    assert result.returncode == 6, result.stderr
    assert "PostgreSQL at 127.0.0.1:1: " in result.stderr
    assert "canary" not in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stream_ends_with_0_when_it_is_asked_to_stop_before_it_has_a_driver(tmp_path: Path, number: int) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as silent:
        broker = f"127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "include.cli", "stream", "nest_cameras", "--until-caught-up"],
            env={**os.environ, "TIDEMARK_HOME": str(tmp_path), "TIDEMARK_KAFKA_BOOTSTRAP": broker},
            stderr=subprocess.PIPE,
            cwd=REPOSITORY,
        )
        # It asks for the topic's offsets, and gets no answer.
        silent.accept()[0].close()
        process.send_signal(number)
        assert (process.communicate(timeout=60)[1], process.returncode) == (b"", 0)


_WHILE_A_READING_HANGS = """
import signal, sys, threading
from include.cli.__main__ import main
from include.monitor.ledger_patience import _READERS

# As when a page has asked: the reading's thread inherits the mask.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
_READERS.submit(threading.Event().wait)
sys.exit(main())
"""


def test_monitor_ends_at_a_signal_when_a_reading_of_the_ledger_hangs(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _WHILE_A_READING_HANGS, "monitor", "--port", "0"],
        env={**os.environ, "TIDEMARK_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=REPOSITORY,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()


_ASKED_WHILE_IMPORTING = """
import os, sys
from include.cli import __main__ as command

def interrupted(name):
    os.kill(os.getpid(), {number})
    raise SystemExit(9)

command.import_module = interrupted
sys.exit(command.main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("arguments", "ends_in_order"),
    [
        (("stream", "nest_cameras"), True),
        (("--debug", "stream", "nest_cameras"), True),
        (("stream", "nest_cameras", "--stop"), False),
        (("lag",), False),
    ],
)
def test_only_a_stream_ends_with_0_when_it_is_asked_to_stop_while_its_verb_is_imported(
    tmp_path: Path, number: int, arguments: tuple[str, ...], ends_in_order: bool
) -> None:
    result = subprocess.run(
        [sys.executable, "-c", _ASKED_WHILE_IMPORTING.format(number=int(number)), *arguments],
        env={**os.environ, "TIDEMARK_HOME": str(tmp_path)},
        capture_output=True,
        cwd=REPOSITORY,
        check=False,
    )
    assert (result.returncode == 0) == ends_in_order
    assert result.returncode != 9


@pytest.mark.parametrize(
    ("arguments", "passed_on"),
    [
        (["status"], ["status"]),
        (["sql", "SELECT 1", "--debug", "--json"], ["--debug", "sql", "SELECT 1", "--json"]),
        (["--debug", "status"], ["--debug", "status"]),
        (["quarantine", "list", "p", "--debug"], ["--debug", "quarantine", "list", "p"]),
        (["sql", "--", "--debug"], ["sql", "--", "--debug"]),
        (["test", "--debug"], ["test", "--debug"]),
        (["--debug", "airflow", "--debug"], ["--debug", "airflow", "--debug"]),
        (["no-such-verb", "--debug"], ["no-such-verb", "--debug"]),
        ([], []),
    ],
)
def test_debug_is_taken_after_the_verb_unless_it_is_another_program_s(
    arguments: list[str], passed_on: list[str]
) -> None:
    assert command._with_debug_first(arguments) == passed_on


def test_traceback_is_shown_when_debug_follows_the_verb(tmp_path: Path) -> None:
    result = run(tmp_path, "ranges", "no_such", "--debug")
    assert result.returncode == 64
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("tidemark: unknown pipeline 'no_such'")


@pytest.mark.parametrize(
    "words", [words for words in commands() if words not in {("airflow",), ("bench",)}], ids=" ".join
)
def test_help_is_printed_when_it_is_asked_of_any_command(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    # The other two pass it on to another program.
    assert not command.app([*words, "--help"], standalone_mode=False, prog_name="tidemark")
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith(f"Usage: tidemark {' '.join(words)} ")
    assert commands()[words].help.splitlines()[0] in shown


@pytest.mark.parametrize(
    "words",
    [words for words, each in commands().items() if any(param.name == "pipeline" for param in each.params)],
    ids=" ".join,
)
def test_unknown_pipeline_is_wrong_usage_when_any_command_takes_one(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="unknown pipeline 'no_such'"):
        command.app(filled(words, "no_such"), standalone_mode=False, prog_name="tidemark")


def test_format_is_taken_but_not_shown_when_a_pipeline_is_written(tmp_path: Path) -> None:
    assert "--format" not in run(tmp_path, "new", "--help").stdout
    result = run(tmp_path, "new", "door_events", "--sample", str(tmp_path / "gone"), "--format", "json")
    assert f"{tmp_path}/gone" in result.stderr


_WITH_A_DEFECT = """
import sys
from include.cli import __main__ as command

def fail(*arguments, **options):
    raise {raised}

command.app = fail
sys.exit(command.main())
"""


def main_that_ends_with(home: Path, raised: str, **extra: str) -> subprocess.CompletedProcess[str]:
    script = _WITH_A_DEFECT.format(raised=raised)
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TIDEMARK_HOME": str(home), **extra},
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=False,
    )


def test_error_is_one_line_with_exit_code_1_when_nobody_foresaw_it(tmp_path: Path) -> None:
    result = main_that_ends_with(tmp_path, "ZeroDivisionError('of two\\nlines')")
    assert result.returncode == 1
    [line] = result.stderr.splitlines()
    assert line.startswith("tidemark: ZeroDivisionError: of two — ")
    assert "--debug" in line
    traced = main_that_ends_with(tmp_path, "ZeroDivisionError('x')", TIDEMARK_DEBUG="1")
    assert "Traceback" in traced.stderr
    assert traced.stderr.splitlines()[-1].startswith("tidemark: ZeroDivisionError: x")


def test_help_of_the_tests_is_the_verb_s_own(tmp_path: Path) -> None:
    result = run(tmp_path, "test", "--help")
    assert result.returncode == 0
    assert "four modules at a time" in result.stdout


def test_help_documents_a_verb_when_it_exists(tmp_path: Path) -> None:
    listing = run(tmp_path, "--help").stdout
    for verb in ("demo", "test", "up", "down", "status", "pipelines", "produce", "stream", "interval", "ranges"):
        assert f" {verb} " in listing
    assert "--json" in run(tmp_path, "status", "--help").stdout
