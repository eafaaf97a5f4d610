"""Generate hits of users of internet providers, skewed over zip codes and providers."""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta

from include.producing.messages import format_milliseconds

ZIP_CODES = ("94103", "10001", "60601", "73301", "98101", "02108", "33101", "80202", "30303", "97201")
PROVIDERS = ("Northwind Cable", "Fibre & Sons", "Hill Valley Telecom", "BlueLine", "Municipal Net")


def _hit(moment: datetime, rng: random.Random) -> dict[str, object]:
    skewed = min(int(rng.expovariate(0.4)), len(ZIP_CODES) - 1)
    return {
        "zipcode": ZIP_CODES[skewed],
        "hittime": format_milliseconds(moment),
        "isp": PROVIDERS[min(int(rng.expovariate(0.7)), len(PROVIDERS) - 1)],
        "user": f"user-{rng.randint(1, 2000):04d}",
    }


def _encoded(hit: dict[str, object]) -> bytes:
    return json.dumps(hit, separators=(",", ":")).encode()


def message(moment: datetime, rng: random.Random) -> tuple[bytes, bytes]:
    """Return key and value of one hit at `moment`."""
    hit = _hit(moment, rng)
    return str(hit["zipcode"]).encode(), _encoded(hit)


def bad_messages(moment: datetime, rng: random.Random) -> list[tuple[str, bytes]]:
    """Return well-formed JSON messages that break a rule of the pipeline, as (reason, value)."""
    hit = _hit(moment, rng)

    def changed(**fields: object) -> bytes:
        return _encoded({**hit, **fields})

    return [
        ("required_missing", changed(zipcode=None)),
        ("required_missing", _encoded({name: value for name, value in hit.items() if name != "zipcode"})),
        ("required_missing", _encoded({name: value for name, value in hit.items() if name != "hittime"})),
        ("unsafe_partition_value", changed(zipcode="../../etc/passwd")),
        ("unsafe_partition_value", changed(zipcode="__HIVE_DEFAULT_PARTITION__")),
        ("required_missing", changed(zipcode="")),
        ("required_missing", changed(hittime=None)),
        ("value_too_long", changed(isp="x" * 201)),
        ("wrong_type", changed(hittime="yesterday")),
        ("event_time_out_of_bounds", changed(hittime=(moment + timedelta(days=365)).isoformat())),
        ("event_time_out_of_bounds", changed(hittime="0001-01-01T00:00:00Z")),
        ("event_time_out_of_bounds", changed(hittime="9999-12-31T23:59:59Z")),
    ]
