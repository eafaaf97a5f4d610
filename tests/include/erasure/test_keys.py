"""Where a key occurs, and where only something that looks like it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from include.erasure.keys import FORGOTTEN, Keys, hashes_of, read_keys
from include.errors import UsageError


@pytest.mark.parametrize(
    ("value", "occurs"),
    [
        (b'{"user": "cam-1"}', True),
        (b"cam-1", True),
        (b"cam-10", False),
        (b"xcam-1", False),
        (b"cam-10 and cam-1", True),
        (b"\x00\x01cam-1\xff", True),
        (b"", False),
        (None, False),
    ],
)
def test_key_is_not_found_when_it_only_begins_another_word(value: bytes | None, occurs: bool) -> None:
    assert Keys(["cam-1"]).named_in_bytes(value) is occurs


@pytest.mark.parametrize(
    "key",
    [
        "Zoë",
        'a "quoted" name',
        "back\\slash",
        "日本",
        "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    ],
)
def test_key_occurs_when_json_escapes_it(key: str) -> None:
    keys = Keys([key])
    for is_ascii in (True, False):
        assert keys.named_in_bytes(json.dumps({"user": key}, ensure_ascii=is_ascii).encode())
    assert not keys.named_in_bytes(b'{"user": "nobody"}')


def test_only_the_key_is_replaced_when_a_text_names_it() -> None:
    told = {"rows": [["cam-1", 3], ["cam-10", 1]], "note": "of cam-1", "cam-1": None, "ok": True, "share": 0.5}
    assert Keys(["cam-1"]).without(told) == {
        "rows": [[FORGOTTEN, 3], ["cam-10", 1]],
        "note": FORGOTTEN,
        FORGOTTEN: None,
        "ok": True,
        "share": 0.5,
    }
    assert Keys(["17"]).without({"id": 17, "other": 170}) == {"id": FORGOTTEN, "other": 170}


def test_key_counts_once_when_file_and_command_line_name_it(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("a b\n\nc\na b\n", encoding="utf-8")
    assert read_keys(["c", "d"], file) == ("c", "d", "a b")


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe"])
def test_file_is_refused_when_it_has_no_keys(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(UsageError):
        read_keys([], file)


def test_hash_is_the_same_only_when_the_key_is() -> None:
    salt = "00ff" * 8
    assert hashes_of(["b", "a"], salt) == hashes_of(["a", "b"], salt)
    assert hashes_of(["a"], salt) != hashes_of(["a"], "11ff" * 8)
    assert "a" not in hashes_of(["a"], salt)
