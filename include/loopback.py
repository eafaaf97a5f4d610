"""Requests to this machine's own loopback: no proxy reaches it, and httpx would ask one all the same."""

from __future__ import annotations

from collections.abc import Mapping

HOSTS = ("127.0.0.1", "localhost")

PAST_PROXY: Mapping[str, None] = {f"all://{host}": None for host in (*HOSTS, "[::1]")}
"""`mounts` of an httpx client that asks loopback addresses itself, all others as the environment says."""


def no_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which programs ask loopback addresses themselves, beside those named already."""
    named = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    # A star means every address, and only alone.
    hosts = [each.strip() for each in named.split(",") if each.strip()]
    value = "*" if "*" in hosts else ",".join(dict.fromkeys((*hosts, *HOSTS)))
    return {"no_proxy": value, "NO_PROXY": value}
