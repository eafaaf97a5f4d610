"""The driver's log on a page: no secret of the settings, no control character, and only its end."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.ledger.streams.launches import UNSUBMITTED, Launch
from include.monitor.streams.driver_log import LINES, driver_log
from include.spark.driver_lines import END
from tests.conftest import SetSettings

CANARY = "canary-{}-9f8e7d"


def launched(path: Path) -> Launch:
    return Launch("abc", "nest_cameras", datetime(2026, 11, 20, tzinfo=UTC), "host", str(path), 1, None)


@pytest.fixture
def secrets(tmp_path: Path, set_settings: SetSettings) -> list[str]:
    names = ("database", "kafka", "jaas", "registry", "aws", "airflow", "jdbc", "lineage")
    values = [CANARY.format(name) for name in names]
    database, kafka, jaas, registry, aws, airflow, jdbc, lineage = values
    connections = tmp_path / "jdbc.properties"
    connections.touch(0o600)
    connections.write_text(f"crm.password={jdbc}\n")
    properties = tmp_path / "client.properties"
    properties.touch(0o600)
    properties.write_text(
        f"sasl.password={kafka}\nssl.key.password={kafka}x\n"
        f'sasl.jaas.config=o.a.k.PlainLoginModule required username="u" password="{jaas}";\n'
    )
    set_settings(
        AWS_SECRET_ACCESS_KEY=aws,
        AIRFLOW__API_AUTH__JWT_SECRET=airflow,
        TIDEMARK_OPENLINEAGE_URL=f"https://:{lineage}@h",
        TIDEMARK_JDBC_PROPERTIES=str(connections),
        TIDEMARK_DATABASE_URL=f"postgresql://u:{database}@h:5432",
        TIDEMARK_REGISTRY_URL=f"http://u:{registry}@h:8081",
        TIDEMARK_KAFKA_PROPERTIES=str(properties),
    )
    return values


def test_secret_of_the_settings_is_masked_when_a_line_has_it(tmp_path: Path, secrets: list[str]) -> None:
    log = tmp_path / "driver.log"
    log.write_text("".join(f"before {each} after\nx={each}\n{{'k': '{each}'}}\n" for each in secrets))
    shown = "\n".join(driver_log(launched(log)).lines)
    assert "canary" not in shown
    assert shown.count("before ******** after") == len(secrets)


@pytest.mark.parametrize("variable", ["TIDEMARK_KAFKA_PROPERTIES", "TIDEMARK_JDBC_PROPERTIES"])
def test_log_is_not_shown_when_a_file_of_secrets_cannot_be_read(
    tmp_path: Path, set_settings: SetSettings, secrets: list[str], variable: str
) -> None:
    log = tmp_path / "driver.log"
    log.write_text(f"read with {secrets[1]}")
    set_settings(**{variable: str(tmp_path / "gone.properties")})
    shown = driver_log(launched(log))
    assert shown.lines == ()
    why = f"{variable}: {tmp_path}/gone.properties: No such file"
    assert shown.note.startswith(f"The log is not shown: {why}")
    refused = driver_log(replace(launched(log), log="", exit_code=64, ended_for=UNSUBMITTED, error=f"of {secrets[1]}"))
    assert (refused.path, refused.lines) == ("", ())
    assert refused.note.startswith(f"The newest driver could not be submitted. Its error is not shown: {why}")


@pytest.mark.parametrize(
    "line",
    [
        "sasl.password=canary",
        "--conf spark.hadoop.javax.jdo.option.ConnectionPassword=canary end",
        'jaas required username="u" password="canary canary";',
        '{"token": "canary", "x": 1}',
        "fs.s3a.secret.key: canary",
        "postgresql://tidemark:canary@127.0.0.1:5432/ledger",
        "AWS_ACCESS_KEY=canary",
    ],
)
def test_value_is_masked_when_its_name_is_like_a_secret_s(tmp_path: Path, line: str) -> None:
    log = tmp_path / "driver.log"
    log.write_text(line)
    (shown,) = driver_log(launched(log)).lines
    assert "canary" not in shown
    assert "********" in shown


@pytest.mark.parametrize("word", ["a", "token", "token ", 'token="', "a://", "a://b:"])
def test_log_is_shown_at_once_when_one_word_fills_it(tmp_path: Path, word: str) -> None:
    """Spark quotes a value that it cannot cast whole, and the process that serves the page does nothing else."""
    log = tmp_path / "driver.log"
    log.write_text(f"{word * (20_000 // len(word))}\n{'a' * 2_000}.token=canary\npassword=canary")
    begun = time.thread_time()
    *_, long, last = driver_log(launched(log)).lines
    assert time.thread_time() - begun < 1
    assert long.startswith("aaa")
    assert last == "password=********"


def test_control_characters_are_removed_and_lines_cut_when_they_are_shown(tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    log.write_bytes(b"\x1b[31mred\x1b[0m \xe2\x80\xaeturned\x00\n" + b"x" * 5000 + b"\n\xff\xfe\n")
    first, second, _ = driver_log(launched(log)).lines
    assert first == "[31mred[0m turned"
    assert len(second) <= 400


def test_only_the_end_is_read_when_a_log_is_large(tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    with log.open("w") as written:
        for number in range(100_000):
            written.write(f"line {number}\n")
    lines = driver_log(launched(log)).lines
    assert len(lines) == LINES
    assert lines[-1] == "line 99999"


def test_error_is_told_without_secrets_when_the_log_is_on_another_host(tmp_path: Path, secrets: list[str]) -> None:
    launch = replace(launched(tmp_path / "gone.log"), error=f"Kafka refuses {secrets[1]} — correct it")
    log = driver_log(launch)
    assert log.path == f"{tmp_path}/gone.log on host"
    assert log.note.endswith("The driver ended with: Kafka refuses ******** — correct it")


def test_note_replaces_the_lines_when_the_log_is_missing(tmp_path: Path) -> None:
    assert "cannot be read" in driver_log(launched(tmp_path / "gone.log")).note
    assert driver_log(None).note


@pytest.mark.parametrize("after", [["after"], []])
def test_line_is_left_out_when_what_is_read_begins_within_its_secret(
    tmp_path: Path, secrets: list[str], after: list[str]
) -> None:
    log = tmp_path / "driver.log"
    rest = "".join(f"{line}\n" for line in after)
    log.write_text(f"before\nKafka refuses {secrets[1]} {'.' * (END - len(rest) - 10)}\n{rest}")
    assert driver_log(launched(log)).lines == tuple(
        after or [f"… the end of a line of more than {END} bytes is not shown"]
    )
