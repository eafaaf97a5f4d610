"""What `doctor` says of settings that nobody set."""

from __future__ import annotations

import pytest

from include.doctor.examine import effective_settings
from include.settings import settings


def test_settings_without_a_service_are_none_when_nobody_set_them() -> None:
    shown = effective_settings()

    embedded = {name for name, value in shown.items() if value == "(embedded)"}
    assert embedded == {"TIDEMARK_KAFKA_BOOTSTRAP", "TIDEMARK_DATABASE_URL", "TIDEMARK_REGISTRY_URL"}
    assert shown["TIDEMARK_CONTACT"] == shown["TIDEMARK_OPENLINEAGE_URL"] == "(none)"
    assert shown["TIDEMARK_SPARK_UI"] == "false"


def test_secret_of_a_setting_is_masked_when_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_DATABASE_URL", "postgresql://someone:canary@127.0.0.1:5432/ledger")
    settings.cache_clear()
    try:
        shown = effective_settings()
    finally:
        settings.cache_clear()

    assert "canary" not in str(shown)
    assert shown["TIDEMARK_DATABASE_URL"] != "(embedded)"
