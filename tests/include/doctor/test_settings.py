"""What `doctor` says of settings that nobody set."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from include.doctor.machine import close_secrets, effective_settings, examine_secrets, examine_settings
from include.errors import UsageError
from include.schemas.registry import registry
from include.setting_values import masked
from include.settings import settings, write_private
from tests.conftest import SetSettings


def test_settings_without_a_service_are_none_when_nobody_set_them(empty_home: Path) -> None:
    shown = effective_settings()

    embedded = {name for name, value in shown.items() if value == "(embedded, never started)"}
    assert embedded == {"TIDEMARK_KAFKA_BOOTSTRAP", "TIDEMARK_DATABASE_URL", "TIDEMARK_REGISTRY_URL"}
    assert shown["TIDEMARK_CONTACT"] == shown["TIDEMARK_OPENLINEAGE_URL"] == "(none)"
    assert shown["TIDEMARK_SPARK_UI"] == "false"


def test_address_of_an_embedded_service_is_shown_without_its_password_when_it_was_started(empty_home: Path) -> None:
    for name, address in {
        "kafka": "127.0.0.1:19092",
        "postgres": "postgresql://tidemark:canary@127.0.0.1:15432",
    }.items():
        write_private(empty_home / "services" / f"{name}.json", json.dumps({"address": address, "pid": 1}))
    shown = effective_settings()

    assert shown["TIDEMARK_KAFKA_BOOTSTRAP"] == "127.0.0.1:19092 (embedded)"
    assert shown["TIDEMARK_DATABASE_URL"] == "postgresql://tidemark:***@127.0.0.1:15432 (embedded)"
    assert shown["TIDEMARK_REGISTRY_URL"] == "(embedded, never started)"


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://someone:canary@127.0.0.1:5432/postgres",
        "postgresql://someone:can/ary:canary@h1,h2:5432/ledger?sslmode=require",
        "postgresql://h:5432/ledger?user=a&password=canary&sslpassword=canary",
        "postgresql://someone:42?canary@h:5432",
        "postgresql://someone:canary@canary@h:5432/ledger?sslmode=require",
        "https://someone:canary@registry:8081",
    ],
)
def test_only_the_password_is_masked_when_an_address_has_one(address: str) -> None:
    shown = masked(address)

    assert "canary" not in shown
    assert "***" in shown
    assert shown.split("://")[0] == address.split("://")[0]
    assert masked("127.0.0.1:9092,h:1") == "127.0.0.1:9092,h:1"
    assert masked("postgresql://someone@h:5432/ledger") == "postgresql://someone@h:5432/ledger"


def test_secret_of_a_setting_is_masked_when_it_is_shown(set_settings: SetSettings) -> None:
    set_settings(TIDEMARK_DATABASE_URL="postgresql://someone:canary@127.0.0.1:5432/ledger")
    shown = effective_settings()

    assert "canary" not in str(shown)
    assert "(embedded" not in shown["TIDEMARK_DATABASE_URL"]


def test_variable_is_noted_when_it_is_no_setting(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KAFKA_BOOTSTRAP_SERVERS", "LAKE_URI", "lease_seconds", "DEBUG", "UNUSUAL"):
        monkeypatch.setenv(f"TIDEMARK_{name}", "warn")
    found = {each.what: each.remedy for each in examine_settings() if "no setting" in each.what}
    assert found == {
        "TIDEMARK_KAFKA_BOOTSTRAP_SERVERS is no setting: it has no effect": "do you mean TIDEMARK_KAFKA_BOOTSTRAP?",
        "TIDEMARK_LAKE_URI is no setting: it has no effect": "do you mean TIDEMARK_LAKE?",
        "TIDEMARK_lease_seconds is no setting: it has no effect": "include/docs/deployment.md lists the settings",
    }


@pytest.mark.parametrize(("there", "missing"), [("ALERT_SMTP", "ALERT_EMAIL_TO"), ("ALERT_EMAIL_TO", "ALERT_SMTP")])
def test_mail_is_noted_when_its_server_or_its_receivers_are_not_set(
    empty_home: Path, set_settings: SetSettings, there: str, missing: str
) -> None:
    set_settings(**{f"TIDEMARK_{there}": "smtp://mail.example.org"})
    (note,) = examine_settings()
    assert note.what == f"TIDEMARK_{there} is set and TIDEMARK_{missing} is not: no mail is sent"
    set_settings(**{f"TIDEMARK_{missing}": "smtp://mail.example.org"})
    assert not [*examine_settings()]


def test_files_with_secrets_are_named_and_closed_when_others_can_read_them(
    empty_home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("kafka.client.properties", "kafka.json", "kafka.p12", "kafka.properties", "registry.properties")
    files = [empty_home / "services" / name for name in names]
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for variable, path in {
        "KAFKA_PROPERTIES": files[0],
        "JDBC_PROPERTIES": elsewhere / "jdbc.properties",
        "PROOF_KEY": elsewhere / "proof.key",
    }.items():
        monkeypatch.setenv(f"TIDEMARK_{variable}", str(path))
        files += [path] if path.parent == elsewhere else []
    for path in files:
        write_private(path, "")
        path.chmod(0o644)
    (empty_home / "services" / "kafka.certificate.pem").touch()

    (found,) = examine_secrets()
    assert (found.ok, found.remedy) == (False, "./tidemark doctor --repair")
    assert found.what.startswith("0 of 7 files with secrets are private, not ")
    close_secrets(lambda _: None)
    assert [path.stat().st_mode & 0o777 for path in files] == [0o600] * 7
    (found,) = examine_secrets()
    assert (found.ok, found.what) == (True, "7 of 7 files with secrets are private")


def test_file_with_secrets_is_named_when_another_account_has_to_close_it(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = empty_home / "services" / "registry.properties"
    write_private(path, "")
    path.chmod(0o640)

    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    monkeypatch.setattr(Path, "chmod", refuse)
    told: list[str] = []
    close_secrets(told.append)
    assert told == [f"chmod 600 {path}", f"not closed: [Errno 1] Operation not permitted: '{path}'"]


@pytest.mark.parametrize("user", ["canary", "canary:canary"])
def test_user_of_a_registry_is_not_shown_when_its_address_has_one(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    monkeypatch.setenv("TIDEMARK_REGISTRY_URL", f"https://{user}@registry:8081/a")
    assert effective_settings()["TIDEMARK_REGISTRY_URL"] == "https://registry:8081/a"
    # As errors name it.
    assert registry().address == "https://registry:8081/a"


@pytest.mark.parametrize("end", ["?token=canary", "/a?token=canary", "/a#canary"])
def test_address_of_a_registry_is_refused_unshown_when_no_path_can_follow_it(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setenv("TIDEMARK_REGISTRY_URL", f"https://registry{end}")
    with pytest.raises(UsageError, match=r"without \? and #") as refused:
        settings()
    assert "canary" not in str(refused.value)
