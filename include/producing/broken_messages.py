"""Ways in which an Avro message in the registry's wire format can be broken in its form."""

from __future__ import annotations

import random

_NO_ID = 2_147_000_000
"""Schema ids from here on are given to nobody: registries count from 1."""


def broken_avro(value: bytes, max_bytes: int, rng: random.Random) -> list[tuple[str, bytes | None]]:
    """Reason and value; the last one is too large."""
    header, body = value[:5], value[5:]
    return [
        ("null_value", None),
        ("too_short", b""),
        ("too_short", value[: rng.randint(1, 4)]),
        ("wrong_magic_byte", b"\x01" + value[1:]),
        ("wrong_magic_byte", b'{"deviceId": 1}'),
        ("unknown_schema", b"\0" + (_NO_ID + rng.randrange(3)).to_bytes(4, "big") + body),
        ("truncated", value[:-1]),
        ("truncated", header + body[: rng.randrange(len(body))]),
        ("malformed_avro", header + b"\xff" * len(body)),
        ("trailing_bytes", value + b"\0"),
        ("trailing_bytes", value + value),
        ("too_large", value + bytes(max_bytes)),
    ]
