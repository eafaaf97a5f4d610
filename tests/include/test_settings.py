from __future__ import annotations

from pathlib import Path

import pytest

from include.errors import ServiceUnreachable, UsageError
from include.settings import read_properties, settings, write_private


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings.cache_clear()
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path / "home"))


def test_wrong_setting_is_named_when_it_does_not_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_DATABASE_URL", "mysql://user:secret@host/db")
    with pytest.raises(UsageError) as raised:
        settings()
    assert "TIDEMARK_DATABASE_URL" in str(raised.value)
    assert "secret" not in str(raised.value)


def test_missing_service_is_named_when_it_was_never_started() -> None:
    with pytest.raises(ServiceUnreachable, match="tidemark up kafka"):
        settings().kafka_address()


def test_secret_does_not_show_when_settings_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_DATABASE_URL", "postgresql://user:hunter2@host:5432")
    assert "hunter2" not in repr(settings())
    assert settings().database("catalog").database == "catalog"


def test_properties_are_refused_when_others_may_read_them(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("sasl.password=secret\n")
    path.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        read_properties(path)
    path.chmod(0o600)
    assert read_properties(path) == {"sasl.password": "secret"}


def test_properties_name_the_line_when_one_is_malformed(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    write_private(path, "# comment\na=b\nno value\n")
    with pytest.raises(UsageError, match=":3:"):
        read_properties(path)


def test_private_file_is_readable_only_by_its_owner_when_it_is_written(tmp_path: Path) -> None:
    write_private(tmp_path / "deep" / "secret", "x")
    assert (tmp_path / "deep" / "secret").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("contact", ["me@example.org", "https://example.org/~me  me+wiki@sub.example.org", ""])
def test_contact_is_kept_when_somebody_can_be_reached(monkeypatch: pytest.MonkeyPatch, contact: str) -> None:
    monkeypatch.setenv("TIDEMARK_CONTACT", contact)
    assert settings().contact == " ".join(contact.split())


@pytest.mark.parametrize(
    "contact", ["me", "me@host", "a@b.c (x)", "https://", "mé@example.org", "me@example.org)\r\nX: y", "ftp://a.org"]
)
def test_contact_is_refused_when_nobody_can_be_reached(monkeypatch: pytest.MonkeyPatch, contact: str) -> None:
    monkeypatch.setenv("TIDEMARK_CONTACT", contact)
    with pytest.raises(UsageError, match="TIDEMARK_CONTACT: not a contact"):
        settings()


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("LEASE_SECONDS", "soon", "valid number"),
        ("LEASE_SECONDS", "1.5", "greater than or equal to 2"),
        ("LEASE_SECONDS", "nan", "greater than or equal to 2"),
        ("MAX_OFFSETS_PER_TRIGGER", "1.5", "valid integer"),
        ("MAX_OFFSETS_PER_TRIGGER", "0", "greater than or equal to 1"),
        ("SPARK_UI", "perhaps", "valid boolean"),
        ("UNUSUAL", "loud", "'info', 'warn' or 'fail'"),
        ("SPARK_SUBMIT", "/nowhere/spark-submit", "not an executable file"),
        ("LAKE", "s3a://a bucket/x", "not a path in a bucket"),
        ("REGISTRY_URL", "ftp://hunter2@host", "not a URL"),
        ("ALERT_SMTP", "https://hunter2@host", "not a URL"),
        ("OPENLINEAGE_URL", "file://", "not a URL"),
        ("DATABASE_URL", "postgresql://u:hunter2@host:port", "not a URL"),
    ],
)
def test_variable_is_named_when_its_text_is_no_value_of_it(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, says: str
) -> None:
    monkeypatch.setenv(f"TIDEMARK_{variable}", text)
    with pytest.raises(UsageError, match=f"TIDEMARK_{variable}: .*{says}") as raised:
        settings()
    assert "hunter2" not in str(raised.value)


def test_values_have_their_kinds_when_they_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_HOME", "~/home")
    monkeypatch.setenv("TIDEMARK_LEASE_SECONDS", "3")
    monkeypatch.setenv("TIDEMARK_MAX_OFFSETS_PER_TRIGGER", "7")
    monkeypatch.setenv("TIDEMARK_REGISTRY_URL", "")
    monkeypatch.setenv("TIDEMARK_SPARK_UI", "Yes")
    found = settings()
    assert (found.home, found.lease_seconds) == (Path.home() / "home", 3.0)
    assert (found.max_offsets_per_trigger, found.registry_url, found.spark_ui) == (7, None, True)
    assert (found.unusual, found.lake_uri) == ("info", (Path.home() / "home" / "lake").as_uri())


def test_secret_setting_shows_nothing_when_it_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    urls = {
        "database_url": "postgresql://u:hunter2@h",
        "registry_url": "https://u:hunter2@h",
        "alert_webhook": "https://u:hunter2@h",
        "alert_smtp": "smtp://u:hunter2@h",
        "openlineage_url": "https://:hunter2@h",
    }
    for name, url in urls.items():
        monkeypatch.setenv(f"TIDEMARK_{name.upper()}", url)
    found = settings()
    assert {name for name, each in found.declared().items() if each.metadata["secret"]} == urls.keys()
    for name, url in urls.items():
        assert getattr(found, name).get_secret_value() == url
        assert "hunter2" not in f"{found} {found!r} {getattr(found, name)} {getattr(found, name)!r}"
