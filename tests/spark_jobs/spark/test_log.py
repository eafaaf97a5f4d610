"""Lines of drivers: one form, pipeline and query in each, nothing that a terminal acts upon, no secret."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.times import parse_time
from spark_jobs.spark.log import configure, log_of
from tests.conftest import SetSettings

pytestmark = pytest.mark.usefixtures("empty_home")


def test_line_names_pipeline_and_query_when_it_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    log_of("nest_cameras", "archive").info("micro-batch %s committed", 3)
    log_of("nest_cameras").warning("caught up")
    log_of().error("no pipeline")
    assert capsys.readouterr().err.splitlines() == [
        "tidemark: nest_cameras.archive: micro-batch 3 committed",
        "tidemark: nest_cameras: caught up",
        "tidemark: no pipeline",
    ]


def test_line_is_one_and_harmless_when_data_is_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    log_of("p", "q").info("threw: %s", "a\x1b[31mred\x07\ntidemark: forged\r\u2028line")
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "tidemark: p.q: threw: a [31mred tidemark: forged line"


def test_secret_is_masked_when_a_line_has_it(
    capsys: pytest.CaptureFixture[str], set_settings: SetSettings, tmp_path: Path
) -> None:
    properties = tmp_path / "kafka.properties"
    properties.touch(mode=0o600)
    properties.write_text("sasl.username=reader\nsasl.password=k4fka-canary\n")
    connections = tmp_path / "jdbc.properties"
    connections.touch(mode=0o600)
    connections.write_text("crm.url=jdbc:postgresql://h/db?password=url-canary\ncrm.password=jdbc-canary\n")
    set_settings(
        AWS_SECRET_ACCESS_KEY="aw5-canary",
        TIDEMARK_KAFKA_PROPERTIES=str(properties),
        TIDEMARK_JDBC_PROPERTIES=str(connections),
        TIDEMARK_DATABASE_URL="postgresql://u:d4tabase%2Dcanary@127.0.0.1:1",
        TIDEMARK_REGISTRY_URL="https://u:r3gistry-canary@registry.invalid",
    )
    configure()
    try:
        raise ValueError("in a traceback: d4tabase-canary")
    except ValueError:
        told = "k4fka-canary, r3gistry-canary, aw5-canary, jdbc-canary, jdbc:postgresql://h/db?password=url-canary"
        log_of("p").error(told, exc_info=True)
    said = capsys.readouterr().err
    assert "canary" not in said
    assert said.splitlines()[0] == "tidemark: p: ***, ***, ***, ***, ***"
    assert said.splitlines()[-1] == "ValueError: in a traceback: ***"


def test_quoted_password_is_masked_when_the_options_have_a_jaas_line(
    capsys: pytest.CaptureFixture[str], set_settings: SetSettings, tmp_path: Path
) -> None:
    properties = tmp_path / "kafka.properties"
    properties.touch(mode=0o600)
    properties.write_text(r"""sasl.jaas.config=Module required username="u" password="ja\"s-canary";""")
    set_settings(TIDEMARK_KAFKA_PROPERTIES=str(properties))
    configure()
    log_of("p").error(r"""refused ja\"s-canary and ja"s-canary of u""")
    assert capsys.readouterr().err == "tidemark: p: refused *** and *** of u\n"


def test_secrets_of_one_file_are_masked_when_the_other_cannot_be_read(
    capsys: pytest.CaptureFixture[str], set_settings: SetSettings, tmp_path: Path
) -> None:
    connections = tmp_path / "jdbc.properties"
    connections.touch(mode=0o600)
    connections.write_text("crm.password=jdbc-canary\n")
    set_settings(
        TIDEMARK_KAFKA_PROPERTIES=str(tmp_path / "gone.properties"),
        TIDEMARK_JDBC_PROPERTIES=str(connections),
        AIRFLOW__API_AUTH__JWT_SECRET="airflow-canary",
    )
    configure()
    log_of("p").error("jdbc-canary airflow-canary")
    assert capsys.readouterr().err == "tidemark: p: *** ***\n"


def test_debugging_lines_are_logged_only_when_requested(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for off in ("", "0"):
        monkeypatch.setenv("TIDEMARK_DEBUG", off)
        configure()
        log_of("p").debug("quiet")
    monkeypatch.setenv("TIDEMARK_DEBUG", "1")
    configure()
    log_of("p").debug("loud")
    assert capsys.readouterr().err == "tidemark: p: loud\n"


def test_line_has_its_time_when_airflow_has_launched_the_driver(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_LAUNCH", "1a2b")
    before = datetime.now(UTC).replace(microsecond=0)
    configure()
    log_of("nest_cameras", "archive").info("micro-batch 3 committed")
    prefix, time, *said = capsys.readouterr().err.split(maxsplit=2)
    assert (prefix, said) == ("tidemark:", ["nest_cameras.archive: micro-batch 3 committed\n"])
    assert before <= parse_time(time) <= datetime.now(UTC)
