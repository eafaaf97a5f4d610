"""Where a key occurs, and where only something that looks like it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from include.erasure.keys import FORGOTTEN, Keys, hashes_of, read_keys
from include.errors import UsageError
from include.ledger.listings import key_of


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


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Jürgen", rb'{"user": "J\u00FCrgen"}'),
        ("Jürgen", rb'{"user": "J\u00fcrgen"}'),
        ("O'Brien", rb'{"user": "O\u0027Brien"}'),
        ("a/b", rb'{"user": "a\/b"}'),
        ("cam-1", rb'{"note": "seen by\ncam-1\tand others"}'),
        ("cam-1", rb'{"user": "\u0063am-1"}'),
        ("\U0001f600", rb'{"user": "\uD83D\uDE00"}'),
        ("C:\\new", rb"C:\new"),
        ("C:\\new", rb'{"path": "C:\\new"}'),
        ("Jürgen", json.dumps(json.dumps({"user": "Jürgen"})).replace("fc", "FC").encode()),
        ("Jürgen", b"\xff\xfe{" + rb'"user": "J\u00FCrgen"}'),
    ],
)
def test_key_occurs_whichever_way_json_spells_its_escapes(key: str, value: bytes) -> None:
    assert Keys([key]).named_in_bytes(value)
    assert Keys([key]).named_in(value.decode("utf-8", "surrogateescape"))


@pytest.mark.parametrize(
    ("value", "occurs"),
    [
        ("Joséphine", False),
        (json.dumps("Joséphine"), False),
        ("chez José.", True),
        ("ÉJosé", False),
        ("José_2", False),
        ("José2", False),
        ("José\u0301", False),
        (json.dumps({"user": "José"}), True),
    ],
)
def test_key_is_a_word_of_its_own_when_letters_are_not_ascii(value: str, occurs: bool) -> None:
    assert Keys(["José"]).named_in_bytes(value.encode()) is occurs


@pytest.mark.parametrize(
    ("key", "value"), [("田中", "昨日田中さんが来た"), ("สมชาย", "คุณสมชายมา"), ("Müller", "客Müller様")]
)
def test_key_occurs_inside_a_sentence_of_a_script_without_spaces(key: str, value: str) -> None:
    for spelling in (value.encode(), json.dumps(value).encode()):
        assert Keys([key]).named_in_bytes(spelling)


def test_letter_that_json_escapes_continues_a_word() -> None:
    keys = Keys(["Jos"])
    for value in ("José", "éJos", "\U00010400Jos"):
        assert not keys.named_in_bytes(json.dumps(value).encode())
    assert keys.named_in_bytes(json.dumps("\U0001f600Jos\U0001f600").encode())


def test_key_occurs_between_bytes_that_are_no_text() -> None:
    for key in ("cam-1", "José", "Éva"):
        for before, after in ((b"\x0a", b"\x06"), (b"\xc3", b"\xff"), (b"\xe3\x81", b"\xf0\x9f"), (b"\x80\x01", b"")):
            assert Keys([key]).named_in_bytes(before + key.encode() + after)


def test_time_grows_with_the_bytes_alone_when_a_value_is_full_of_escapes() -> None:
    keys = Keys(["aaaa", "Jürgen"])
    values = [rb"\u00FC" * 50_000, rb"\\" * 50_000, b"aaaab" * 50_000, rb"\naaaab" * 50_000]
    begun = time.process_time()
    assert not any(keys.named_in_bytes(each) for each in values)
    assert time.process_time() - begun < 20


def test_only_the_key_is_replaced_when_a_text_names_it() -> None:
    told = {"rows": [["cam-1", 3], ["cam-10", 1]], "note": "of cam-1", "cam-1": None, "ok": True, "share": 0.5}
    assert Keys(["cam-1"]).without(told) == {
        "rows": [[FORGOTTEN, 3], ["cam-10", 1]],
        "note": FORGOTTEN,
        "cam-1": None,
        "ok": True,
        "share": 0.5,
    }
    assert Keys(["17"]).without({"17": 17, "said": "17"}) == {"17": 17, "said": FORGOTTEN}


def test_key_is_no_word_when_it_is_a_short_number() -> None:
    given = ["cam-1", "12", "-0.5", "07", "4915112345678", "1e3"]
    assert Keys(given).words.keys == ("cam-1", "07", "4915112345678", "1e3")


def test_key_counts_once_when_file_and_command_line_name_it(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("a b\n\nc\na b\n", encoding="utf-8")
    assert read_keys(["c", "d"], file) == ("c", "d", "a b")


def test_first_key_is_itself_when_its_file_begins_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("cam-1\r\ncam-2\r\n", encoding="utf-8-sig")
    assert read_keys([], file) == ("cam-1", "cam-2")


def test_key_is_whole_when_it_holds_a_character_that_python_takes_for_the_end_of_a_line(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes("a\u2028b\r\nc\x85\n".encode())
    assert read_keys([], file) == ("a\u2028b", "c\x85")


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


def test_long_key_is_found_when_a_report_has_recorded_it_abbreviated() -> None:
    long, other = "ä" * 2_500, "ä" * 2_501
    recorded = {"key": key_of({"name": long}, ["name"])}
    assert Keys([long]).without(recorded) != recorded
    assert "ää" not in str(Keys([long]).without(recorded))
    assert Keys([other]).without(recorded) == recorded
    many = {f"c{number}": f"{number} {'x' * 240}" for number in range(16)}
    recorded = {"key": key_of(many, list(many))}
    assert Keys([many["c7"]]).without(recorded) != recorded


@pytest.mark.parametrize(
    ("value", "is_one"),
    [
        ("cam-1", True),
        ("next to cam-1", False),
        ("cam-10", False),
        (1, True),
        (10, False),
        (None, False),
        (True, False),
    ],
)
def test_value_of_a_key_is_only_what_equals_an_erased_one(value: object, is_one: bool) -> None:
    assert Keys(["cam-1", "1", "null"]).is_one(value) is is_one


def test_value_of_a_key_is_an_erased_one_when_it_is_abbreviated() -> None:
    long = "a person with a long name, " * 200
    (abbreviated,) = json.loads(key_of({"user": long}, ["user"])).values()
    assert abbreviated != long
    assert Keys([long]).is_one(abbreviated)
    assert not Keys([f"{long}."]).is_one(abbreviated)
