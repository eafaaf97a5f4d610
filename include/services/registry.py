"""The schema registry: a configured Confluent-compatible one; the embedded one is not built yet."""

from __future__ import annotations

import httpx

from include.errors import UsageError
from include.services.process import ServiceStatus
from include.settings import settings


def up() -> None:
    """Raise UsageError: this version embeds no registry."""
    raise UsageError(
        "this version embeds no schema registry, and no shipped pipeline needs one",
        remedy="set TIDEMARK_REGISTRY_URL to a Confluent-compatible registry",
    )


def status() -> ServiceStatus:
    """The configured registry; healthy means that it lists its subjects."""
    url = settings().registry_url
    if not url:
        return ServiceStatus("", False, None, detail="not configured")
    try:
        healthy = httpx.get(f"{url.rstrip('/')}/subjects", timeout=5).status_code == httpx.codes.OK
    except httpx.HTTPError:
        healthy = False
    return ServiceStatus(url, healthy, None, external=True)


def down() -> None:
    """Nothing of ours runs."""
