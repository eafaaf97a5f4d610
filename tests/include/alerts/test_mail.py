"""Alerts are sent by Airflow's SMTP provider: a password only by TLS, and later when the server was away."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from include import alerts
from include.alerts import mail
from include.ledger import connection
from include.ledger.alerts import Alert
from include.ledger.alerts.noted import close_alert
from include.ledger.database import engine, session
from include.ledger.models import AlertRow
from include.services.airflow import airflow_environment
from include.services.process import free_port
from tests.conftest import REPOSITORY, Home, settings_of
from tests.support.canaries import dump_of
from tests.support.receivers import Received, listening, mail_server, tls_in

pytestmark = pytest.mark.services

CANARY = "c4nary-of-mail-5e21"
SINCE = datetime(2026, 11, 20, 5, 20, tzinfo=UTC)


@pytest.fixture(scope="module", autouse=True)
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Airflow is imported before a test looks at the log: importing it configures logging anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))
        import_module("airflow.providers.smtp.hooks.smtp")


@pytest.fixture
def received() -> Iterator[Received]:
    with listening() as made:
        yield made


def tell(home: Home, url: str, key: str, receivers: str = "on-call@example.org", **settings: str) -> None:
    """Send an alert, and its end, by mail."""
    channels = {"TIDEMARK_ALERT_SMTP": url, "TIDEMARK_ALERT_EMAIL_TO": receivers, **settings}
    with settings_of(home, **channels):
        alerts.raise_alert(
            Alert(f"mail/{key}", key, "the archive is behind", "interval 05", SINCE, "look at the stream")
        )


def with_password(url: str, host: str = "127.0.0.1") -> str:
    return url.replace("//127.0.0.1", f"//eve:{CANARY}@{host}")


def test_password_is_sent_by_tls_when_the_server_s_certificate_is_trusted(
    postgres: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    context, certificate = tls_in(tmp_path)
    received = Received()
    with mail_server(received, context):
        url = with_password(received.smtp, "localhost")
        # Its issuer is unknown here.
        tell(postgres, url, "trusted")
        assert (received.mails, received.logins) == ([], [])
        assert "not sent by email, it is tried again: SSLCertVerificationError" in caplog.text
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        tell(postgres, url, "trusted", TIDEMARK_ALERT_EMAIL_FROM="tidemark@example.org")
    assert received.logins == [("eve", CANARY, True)]
    [mail] = received.mails
    assert (mail["From"], mail["To"]) == ("tidemark@example.org", "on-call@example.org")
    assert CANARY not in caplog.text + mail.as_string()


def test_password_stays_here_when_the_server_offers_no_tls_unless_that_is_wanted(
    postgres: Home, received: Received, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    tell(postgres, with_password(received.smtp), "plain")
    assert (received.mails, received.logins) == ([], [])
    assert "not sent by email, it is tried again: SMTPNotSupportedError" in caplog.text
    url = f"{with_password(received.smtp)}/?disable_tls=true&from_email=here@example.org"
    tell(postgres, url, "plain", receivers="a@example.org, b@example.org")
    assert received.logins == [("eve", CANARY, False)]
    [mail] = received.mails
    assert (mail["From"], mail["To"]) == ("here@example.org", "a@example.org, b@example.org")
    assert CANARY not in caplog.text


def test_installation_is_named_by_the_sender_when_that_has_a_name(postgres: Home, received: Received) -> None:
    sender = "Tidemark test <tidemark@example.org>"
    tell(postgres, received.smtp, "named", TIDEMARK_ALERT_EMAIL_FROM=sender)
    assert [mail["From"] for mail in received.mails] == [sender]


def test_mail_is_sent_once_when_a_server_that_was_away_is_back(
    postgres: Home, caplog: pytest.LogCaptureFixture
) -> None:
    received = Received()
    with mail_server(received):
        url = received.smtp
    tell(postgres, url, "away")
    assert "not sent by email, it is tried again: ConnectionRefusedError" in caplog.text
    with mail_server(received, port=int(url.rpartition(":")[2])):
        for _ in range(2):
            tell(postgres, url, "away")
    assert [mail["Subject"] for mail in received.mails] == ["[tidemark] away raised: the archive is behind"]


def test_log_of_a_process_stays_on_standard_error_when_it_has_sent_a_mail(postgres: Home, received: Received) -> None:
    program = """
import logging, os
from datetime import UTC, datetime
from include import alerts

logging.basicConfig(format="said: %(message)s")
alerts.raise_alert(alerts.Alert("mail/log", "log", "it is late", "interval 05", datetime.now(UTC), "look at it"))
logging.getLogger("include").error("%s afterwards", os.environ.get("_AIRFLOW__AS_LIBRARY"))
"""
    environment = postgres.environment(TIDEMARK_ALERT_SMTP=received.smtp, TIDEMARK_ALERT_EMAIL_TO="a@example.org")
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert [mail["Subject"] for mail in received.mails] == ["[tidemark] log raised: it is late"], done.stderr
    assert (done.stdout, done.stderr.splitlines()[-1]) == ("", "said: None afterwards")


def test_way_of_airflow_to_log_stays_as_it_was_when_a_process_has_chosen_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("_AIRFLOW__AS_LIBRARY", "false")
    mail._hook()
    assert os.environ["_AIRFLOW__AS_LIBRARY"] == "false"


def test_connection_is_found_by_its_name_when_airflow_keeps_it(
    postgres: Home, received: Received, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tell(postgres, "airflow://operators_mail", "kept")
    assert received.mails == []
    assert "Airflow's connection operators_mail of TIDEMARK_ALERT_SMTP is not known here" in caplog.text
    plain = "disable_ssl=true&disable_tls=true&from_email=kept@example.org"
    monkeypatch.setenv("AIRFLOW_CONN_OPERATORS_MAIL", f"{with_password(received.smtp)}/?{plain}")
    tell(postgres, "airflow://operators_mail", "kept")
    assert received.logins == [("eve", CANARY, False)]
    assert [mail["From"] for mail in received.mails] == ["kept@example.org"]
    assert CANARY not in caplog.text


def test_server_is_waited_for_as_airflow_does_when_it_keeps_the_connection(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_KEPT_MAIL", "smtp://mail.example.org")
    monkeypatch.setenv("AIRFLOW_CONN_HASTY_MAIL", "smtp://mail.example.org/?timeout=3&retry_limit=0")
    found = {}
    for name in ("kept_mail", "hasty_mail"):
        with settings_of(postgres, TIDEMARK_ALERT_SMTP=f"airflow://{name}"):
            hook = mail._hook()
            hook.smtp_connection = hook.get_connection("")
            found[name] = (hook.timeout, hook.smtp_retry_limit)
    # One that drops the first connection is asked again, and one that hangs does not use up a task's time.
    assert found == {"kept_mail": (30, 1), "hasty_mail": (3, 0)}


@pytest.fixture
def soon_idle(postgres: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PostgreSQL ends a transaction that is idle for a second; no alert of another test is left."""
    with session() as ledger:
        ledger.query(AlertRow).delete()
    monkeypatch.setattr(connection, "IDLE_SECONDS", 1)
    engine().dispose()
    yield
    engine().dispose()


@pytest.mark.usefixtures("soon_idle")
def test_webhook_gets_the_alert_when_the_mail_server_never_greets_for_longer_than_a_transaction_waits(
    postgres: Home, received: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = {"TIDEMARK_ALERT_WEBHOOK": received.webhook}
    with socket.create_server(("127.0.0.1", free_port())) as silent:
        url = f"smtp://127.0.0.1:{silent.getsockname()[1]}/?disable_ssl=true&timeout=2"
        monkeypatch.setenv("AIRFLOW_CONN_SILENT_MAIL", url)
        tell(postgres, "airflow://silent_mail", "silent", **hook)
    assert [each["pipeline"] for each in received.posts] == ["silent"]
    with session() as ledger:
        row = ledger.query(AlertRow).filter_by(key="mail/silent").one()
    assert "email" in row.failed
    assert set(row.told) == {"webhook"}


@pytest.mark.usefixtures("soon_idle")
def test_mail_is_sent_once_when_its_server_is_slow_and_the_alert_ends_meanwhile(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    def send_slowly(alert: Alert) -> None:
        sent.append(alert.state)
        # Another process neither waits for this one nor sends the same.
        assert alerts.send_unsent() == 0
        if alert.over_at is None:
            close_alert(alert.key)
        time.sleep(1.5)

    monkeypatch.setattr(alerts, "configured_channels", lambda: {"slow": send_slowly})
    alerts.raise_alert(Alert("mail/slow", "slow", "the archive is behind", "interval 05", SINCE, "look at the stream"))
    # Nobody else may look for a long time.
    assert sent == ["raised", "recovered"]
    assert alerts.send_unsent() == 0


@pytest.mark.slow
@pytest.mark.airflow
def test_dag_watch_mails_by_the_connection_in_airflows_database_what_a_command_could_not(
    postgres: Home, received: Received
) -> None:
    kept = "airflow://operators_mail"
    tell(postgres, kept, "in the database")
    assert received.mails == []
    server, extra = urlsplit(received.smtp), json.dumps({"disable_ssl": True, "disable_tls": True})
    facts = {"type": "smtp", "host": str(server.hostname), "port": str(server.port), "login": "eve", "extra": extra}
    named = [part for name, value in facts.items() for part in (f"--conn-{name}", value)]
    settings = {"TIDEMARK_ALERT_SMTP": kept, "TIDEMARK_ALERT_EMAIL_TO": "on-call@example.org"}
    with settings_of(postgres, **settings):
        environment = airflow_environment(1)

    def airflow(*arguments: str) -> str:
        command = [str(Path(sys.executable).with_name("airflow")), *arguments]
        done = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        return done.stdout + done.stderr

    airflow("db", "migrate")
    airflow("connections", "add", "operators_mail", *named, "--conn-password", CANARY)
    log = airflow("dags", "test", "watch")
    assert received.logins == [("eve", CANARY, False)]
    assert [mail["Subject"] for mail in received.mails] == ["[tidemark] in the database raised: the archive is behind"]
    assert CANARY not in log + dump_of(postgres, "airflow")


def test_command_imports_airflow_only_when_it_sends_a_mail(tmp_path: Path) -> None:
    code = (
        "import sys; from include import alerts; from include.alerts.mail import connection_of; "
        "before = 'airflow' in sys.modules; "
        "made = connection_of('smtps://eve:p%40ss@mail.example.org'); "
        "print(before, made.host, made.password, made.extra_dejson)"
    )
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    extras = {"disable_ssl": False, "disable_tls": True, "timeout": 10, "retry_limit": 0}
    assert done.stdout.strip().splitlines()[-1] == f"False mail.example.org p@ss {extras}"
