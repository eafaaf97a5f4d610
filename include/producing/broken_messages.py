"""Messages whose bytes are malformed, each with the reason code that quarantine must give it."""

from __future__ import annotations

import random

_NO_ID = 2_147_000_000
"""Lowest of the schema ids that no registry has given out: registries count from 1."""


def broken_json(value: bytes, max_bytes: int, rng: random.Random) -> list[tuple[str, bytes | None]]:
    """Return malformed variants of a JSON message as (reason, value); the last one is too large."""
    return [
        ("null_value", None),
        ("empty_value", b""),
        ("empty_value", b"  \n"),
        ("malformed_json", value[: rng.randint(1, len(value) - 1)]),
        ("malformed_json", b"not json at all"),
        ("malformed_json", value.replace(b'"', b"'")),
        ("trailing_content", value + value),
        ("trailing_content", value + b"," + value),
        ("trailing_content", value + b" and so on"),
        ("trailing_content", value + b"}"),
        ("not_utf8", value.replace(b'"', b'"\xff\xfe', 1)),
        ("wrong_type", b"[1, 2, 3]"),
        ("wrong_type", b"null"),
        ("too_large", b'{"metadata": "' + b"x" * max_bytes + b'"}'),
    ]


def broken_avro(value: bytes, max_bytes: int, rng: random.Random) -> list[tuple[str, bytes | None]]:
    """Return malformed variants of an Avro message in wire format as (reason, value); the last one is too large."""
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
