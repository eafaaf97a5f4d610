"""A speed view's newest windows, from messages as its topic has them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from include.monitor.streams.live_windows import EVER, WIDTH, WINDOWS, LiveWindows
from include.pipelines import load_pipeline
from include.times import format_time

BEGIN = datetime(2026, 11, 20, 5, 2, tzinfo=UTC)
BY_ZIP = load_pipeline("isp_hits").views[0]


def key(start: datetime, **names: object) -> bytes:
    window = {"end": format_time(start + timedelta(minutes=10)), "start": format_time(start)}
    return json.dumps({"window": window, **names}).encode()


def value(version: int, **measures: object) -> bytes:
    return json.dumps({**measures, "version": version}).encode()


def windows() -> LiveWindows:
    return LiveWindows(BY_ZIP)


def test_last_value_counts_when_a_key_has_several_and_null_deletes_it() -> None:
    live, at = windows(), (BEGIN, BEGIN + timedelta(minutes=10))
    live.note(key(BEGIN, zipcode="10001"), value(1, hits=3))
    live.note(key(BEGIN, zipcode="10001"), value(2, hits=8))
    # From another topic partition, which is read later.
    live.note(key(BEGIN, zipcode="10001"), value(1, hits=99), partition=1)
    live.note(key(BEGIN, zipcode="20002"), value(1, hits=4))
    live.note(key(BEGIN, zipcode="30003"), value(1, hits=1))
    live.note(key(BEGIN, zipcode="30003"), None)
    rows = live.top(at, "hits")
    assert [(row.key, row.value, row.width) for row in rows] == [(("10001",), "8", WIDTH), (("20002",), "4", WIDTH / 2)]


def test_last_value_of_a_topic_partition_counts_when_a_lost_ledger_wrote_a_higher_version() -> None:
    live, at = windows(), (BEGIN, BEGIN + timedelta(minutes=10))
    live.note(key(BEGIN, zipcode="10001"), value(30, hits=99))
    live.note(key(BEGIN, zipcode="10001"), value(1, hits=3))
    assert [row.value for row in live.top(at, "hits")] == ["3"]
    live.note(key(BEGIN, zipcode="10001"), value(2, hits=5), partition=1)
    live.note(key(BEGIN, zipcode="10001"), None)
    assert live.top(at, "hits") == ()


def test_value_stays_when_an_older_deletion_of_another_topic_partition_is_read_after_it() -> None:
    live, at = windows(), (BEGIN, BEGIN + timedelta(minutes=10))
    live.note(key(BEGIN, zipcode="10001"), value(11, hits=7))
    live.note(key(BEGIN, zipcode="10001"), None, 10, partition=1)
    assert [(row.key, row.value) for row in live.top(at, "hits")] == [(("10001",), "7")]
    live.note(key(BEGIN, zipcode="10001"), None, 12)
    assert (live.top(at, "hits"), live.distribution("hits"), live.newest_full(BEGIN)) == ((), (), None)


def test_key_stays_deleted_when_an_older_value_of_another_topic_partition_is_read_after_the_deletion() -> None:
    live, at = windows(), (BEGIN, BEGIN + timedelta(minutes=10))
    live.note(key(BEGIN, zipcode="10001"), None, 10)
    live.note(key(BEGIN, zipcode="10001"), value(9, hits=7), partition=1)
    live.note(key(BEGIN, zipcode="20002"), value(9, hits=1))
    assert [row.key for row in live.top(at, "hits")] == [("20002",)]
    assert [(bar.total, bar.keys) for bar in live.distribution("hits")] == [("1", 1)]
    live.note(key(BEGIN, zipcode="10001"), value(11, hits=8))
    assert [row.value for row in live.top(at, "hits")] == ["8", "1"]


def test_key_is_shown_when_its_parts_are_structures_or_arrays() -> None:
    live, at = windows(), (BEGIN, BEGIN + timedelta(minutes=10))
    parts: tuple[object, ...] = ({"city": "Rome", "at": 1.50}, {"at": 1.50, "city": "Rome"}, ["a", None])
    for number, part in enumerate(parts):
        live.note(key(BEGIN, zipcode=part), value(number, hits=number + 1))
    rows = live.top(at, "hits")
    assert [(row.key, row.value) for row in rows] == [(('["a", null]',), "3"), (('{"at": 1.5, "city": "Rome"}',), "2")]


def test_key_is_written_without_separators_when_it_is_a_number() -> None:
    live, at = windows(), (BEGIN, BEGIN + timedelta(minutes=10))
    for number, device in enumerate((-5 * 10**18, 1234567)):
        live.note(key(BEGIN, zipcode=device), value(number, hits=number + 1000))
    assert [(row.key, row.value) for row in live.top(at, "hits")] == [
        (("1234567",), "1,001"),
        (("-5000000000000000000",), "1,000"),
    ]


def test_equal_counts_are_in_the_order_of_their_keys_when_these_are_numbers() -> None:
    live, at = windows(), (BEGIN, BEGIN + timedelta(minutes=10))
    for device in (10, 9, None, 1, -2, 2.5, "1"):
        live.note(key(BEGIN, zipcode=device), value(1, hits=3))
    live.note(key(BEGIN, zipcode="of nulls"), value(1, hits=None))
    live.note(key(BEGIN, zipcode="of none"), value(1, hits=0))
    shown = [row.key for row in live.top(at, "hits")]
    assert shown == [("–",), ("-2",), ("1",), ("2.5",), ("9",), ("10",), ("1",), ("of none",), ("of nulls",)]


def test_only_the_newest_windows_stay_with_their_sums_when_more_come() -> None:
    live = windows()
    for number in range(WINDOWS + 3):
        live.note(key(BEGIN + number * timedelta(minutes=5), zipcode="10001"), value(1, hits=number))
        live.note(key(BEGIN + number * timedelta(minutes=5), zipcode="20002"), value(1, hits=1))
    live.forget_old()
    bars = live.distribution("hits")
    assert [bar.total for bar in bars] == [str(number + 1) for number in range(3, WINDOWS + 3)]
    assert (bars[-1].height, bars[0].keys, bars[0].x) == (100, 2, 0)
    last = BEGIN + (WINDOWS + 2) * timedelta(minutes=5)
    assert live.newest_full(last + timedelta(minutes=6)) == (last - timedelta(minutes=5), last + timedelta(minutes=5))
    assert live.newest_full(BEGIN) == (last, last + timedelta(minutes=10))


def test_one_window_holds_all_keys_when_a_view_has_none() -> None:
    declared = next(view for view in load_pipeline("isp_hits").views if view.name == "zip_totals")
    live = LiveWindows(declared)
    for number in range(WINDOWS + 3):
        live.note(json.dumps({"zipcode": f"{number:05}"}).encode(), value(1, hits=number))
        live.forget_old()
    shown = live.newest_full(BEGIN)
    assert shown == EVER
    assert live.span is None
    assert [row.key for row in live.top(EVER, "hits")[:2]] == [("00026",), ("00025",)]
    assert len(live.values[EVER]) == WINDOWS + 3


def test_null_sum_is_the_smallest_value_and_shown_as_none() -> None:
    live, at = windows(), (BEGIN, BEGIN + timedelta(minutes=10))
    live.note(key(BEGIN, zipcode="10001"), value(1, hits=None))
    live.note(key(BEGIN, zipcode="20002"), value(1, hits=4))
    assert [(row.key, row.value, row.width) for row in live.top(at, "hits")] == [
        (("20002",), "4", WIDTH),
        (("10001",), "–", 0),
    ]
    assert [bar.total for bar in live.distribution("hits")] == ["4"]


def test_sums_are_exact_and_keys_cleaned_when_values_are_decimals_and_keys_hostile() -> None:
    pipeline = load_pipeline("auction_bids")
    live, at = LiveWindows(pipeline.views[0]), (BEGIN, BEGIN + timedelta(minutes=10))
    for currency in ("EUR", "CHF"):
        told = b'{"amount": 0.10, "amount_squared": 0.01, "bids": 1, "version": 1}'
        live.note(key(BEGIN, category="\x1b[31mred", currency=currency), told)
    assert [bar.total for bar in live.distribution("amount")] == ["0.20"]
    assert live.top(at, "amount")[0].key == ("[31mred", "CHF")


def test_sums_and_order_have_all_digits_when_decimals_have_more_than_python_s_own_28() -> None:
    live, at = LiveWindows(load_pipeline("auction_bids").views[0]), (BEGIN, BEGIN + timedelta(minutes=10))
    for currency, last in (("CHF", 1), ("EUR", 2)):
        told = f'{{"amount": 1{"0" * 30}.{last}, "amount_squared": 0.01, "bids": 1, "version": 1}}'
        live.note(key(BEGIN, category="a", currency=currency), told.encode())
    assert [bar.total.replace(",", "") for bar in live.distribution("amount")] == [f"2{'0' * 30}.3"]
    assert [row.key[1] for row in live.top(at, "amount")] == ["EUR", "CHF"]


@pytest.mark.parametrize(
    ("foreign_key", "foreign_value"),
    [
        (b"camera-7", b'{"hits": 1, "version": 9}'),
        (b"\xff\xfe\xff", None),
        (b"[1, 2]", b'{"hits": 1, "version": 9}'),
        (None, b'{"hits": 1, "version": 9}'),
        (b'{"window": "now", "zipcode": "10001"}', b'{"hits": 1, "version": 9}'),
        (b'{"window": {"start": "soon", "end": "later"}, "zipcode": "10001"}', b'{"hits": 1, "version": 9}'),
        (key(BEGIN, zipcode="10001"), b"hello"),
        (key(BEGIN, zipcode="10001"), b"null"),
        (key(BEGIN, zipcode="10001"), b"[" * 100_000),
        (key(BEGIN, zipcode="10001"), b'{"hits": "many", "version": 9}'),
        (key(BEGIN, zipcode="10001"), b'{"hits": 1, "version": "x"}'),
        (key(BEGIN, zipcode="10001"), b'{"hits": NaN, "version": 9}'),
        (key(BEGIN, zipcode="10001"), b'{"hits": 1E+9999999, "version": 9}'),
    ],
)
def test_message_is_left_out_when_another_program_wrote_it(
    foreign_key: bytes | None, foreign_value: bytes | None
) -> None:
    live, at = windows(), (BEGIN, BEGIN + timedelta(minutes=10))
    assert live.note(key(BEGIN, zipcode="10001"), value(1, hits=7))
    assert not live.note(foreign_key, foreign_value)
    live.forget_old()
    assert [(row.key, row.value) for row in live.top(at, "hits")] == [(("10001",), "7")]
    assert [bar.total for bar in live.distribution("hits")] == ["7"]


def test_nothing_is_shown_when_nothing_was_written() -> None:
    assert windows().newest_full(BEGIN) is None
    assert windows().distribution("hits") == ()
