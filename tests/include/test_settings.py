from __future__ import annotations

from pathlib import Path

import pytest

from include.errors import ServiceUnreachable, UsageError
from include.settings import Settings, read_properties, settings, write_private


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
        Settings().kafka_address()


def test_secret_does_not_show_when_settings_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_DATABASE_URL", "postgresql://user:hunter2@host:5432")
    assert "hunter2" not in repr(Settings())
    assert Settings().database("catalog").database == "catalog"


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


def test_private_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
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
    with pytest.raises(UsageError, match="TIDEMARK_CONTACT: nobody can be reached"):
        settings()
