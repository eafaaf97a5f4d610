"""SASL_SSL from produce to the table: the password is asked for, and appears nowhere."""

from __future__ import annotations

import json
import subprocess
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from include.settings import read_properties
from tests.conftest import Home, iso, last_hours

pytestmark = [pytest.mark.services, pytest.mark.spark]

HOUR, ONE_HOUR = last_hours(3), timedelta(hours=1)


@pytest.fixture(scope="module")
def options(home: Home) -> Path:
    """The client options that the embedded broker's user gets."""
    return home.path / "services" / "kafka.client.properties"


def changed(options: Path, folder: Path, **changes: str) -> str:
    """A copy of the file with other values, 0600; its path."""
    values = {**read_properties(options), **{name.replace("_", "."): value for name, value in changes.items()}}
    copy = folder / "client.properties"
    copy.touch(mode=0o600)
    copy.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return str(copy)


def lines_of(failed: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in failed.stderr.splitlines() if line.startswith("tidemark: ")]


def test_exit_code_is_6_with_one_clear_line_when_the_password_is_wrong(
    home: Home, options: Path, tmp_path: Path
) -> None:
    wrong = changed(options, tmp_path, sasl_password="wr0ng-c4nary")
    failed = home.run("produce", "nest_cameras", "--events", "10", expect=6, TIDEMARK_KAFKA_PROPERTIES=wrong)
    (line,) = lines_of(failed)
    assert "Invalid username or password" in line
    assert "TIDEMARK_KAFKA_PROPERTIES" in line
    assert "wr0ng-c4nary" not in failed.stdout + failed.stderr
    assert "Traceback" not in failed.stderr


def test_listener_lets_nobody_in_when_password_or_certificate_is_unknown(
    home: Home, options: Path, tmp_path: Path
) -> None:
    state = json.loads((home.path / "services" / "kafka.json").read_text())
    home.run("produce", "nest_cameras", "--events", "10", expect=6, TIDEMARK_KAFKA_BOOTSTRAP=state["secured_address"])
    certificate = changed(options, tmp_path, ssl_ca_location="/etc/ssl/certs/ca-certificates.crt")
    failed = home.run("produce", "nest_cameras", "--events", "10", expect=6, TIDEMARK_KAFKA_PROPERTIES=certificate)
    (line,) = lines_of(failed)
    assert "TIDEMARK_KAFKA_PROPERTIES" in line


def test_file_is_refused_when_others_may_read_it(home: Home, options: Path, tmp_path: Path) -> None:
    opened = Path(changed(options, tmp_path))
    opened.chmod(0o644)
    failed = home.run("produce", "nest_cameras", "--events", "10", expect=64, TIDEMARK_KAFKA_PROPERTIES=str(opened))
    assert "chmod 600" in failed.stderr


@pytest.mark.slow
def test_produce_stream_and_interval_run_over_it_and_the_password_is_nowhere(home: Home, options: Path) -> None:
    """Bad records included: some make Spark print what it ran."""
    home.run("up", "registry")
    password = read_properties(options)["sasl.password"]
    secured = {"TIDEMARK_KAFKA_PROPERTIES": str(options)}
    times = ("--start", iso(HOUR), "--span", "1h", "--bad-fraction", "0.1")
    said = [home.run("produce", "gps_positions", "--events", "600", *times, **secured)]

    stream = home.start("stream", "gps_positions", "--until-caught-up", **secured)
    arguments: set[str] = set()
    while stream.poll() is None:
        for process in psutil.process_iter(["cmdline"]):
            arguments.add(" ".join(process.info["cmdline"] or []))
        try:
            output, errors = stream.communicate(timeout=1)
        except subprocess.TimeoutExpired:
            continue
    assert stream.returncode == 0, errors[-3000:]
    assert any("spark_jobs/stream.py" in each for each in arguments)

    wrong = home.path / "wrong.properties"
    wrong.touch(mode=0o600)
    wrong.write_text(options.read_text().replace(password, "wr0ng-c4nary"))
    for verb in (
        ("stream", "gps_positions", "--until-caught-up"),
        ("interval", "gps_positions", "--from", iso(HOUR), "--to", iso(HOUR + ONE_HOUR)),
    ):
        failed = home.run(*verb, expect=6, TIDEMARK_KAFKA_PROPERTIES=str(wrong))
        assert "Invalid username or password" in lines_of(failed)[-1]
        said.append(failed)
    wrong.unlink()

    done = home.run("interval", "gps_positions", "--from", iso(HOUR), "--to", iso(HOUR + ONE_HOUR), **secured)
    verdict = json.loads(done.stdout)
    assert verdict["records"]["in_ranges"] == 600
    assert verdict["reconciliation"]["unexplained"] == 0
    assert verdict["registered"]
    said += [done, home.run("doctor", expect=None, **secured), home.run("status", **secured)]

    texts = [output, errors, *arguments, *(each.stdout + each.stderr for each in said)]
    assert [text for text in texts if password in text or "wr0ng-c4nary" in text] == []
    holders = [path for path in home.path.rglob("*") if path.is_file() and password.encode() in path.read_bytes()]
    assert {path.name for path in holders} == {"kafka.client.properties", "kafka.properties"}
    assert [path for path in holders if path.stat().st_mode & 0o077] == []
