"""Bisecting: single records that throw are found, in few reads, and nothing else is blamed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from include.errors import TidemarkError
from include.offsets import OffsetRange, TopicPartition
from spark_jobs.decoding.poison import CONFIRMED, MOST, find_poison, halves

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
RANGES = [OffsetRange(ZERO, 100, 1_124), OffsetRange(ONE, 0, 0), OffsetRange(TopicPartition("t", 2), 7, 8)]


class Decoder:
    """Throws whenever its ranges hold a record that throws; counts its reads."""

    def __init__(self, throwing: set[tuple[str, int, int]]) -> None:
        self.throwing = throwing
        self.reads = 0

    def __call__(self, ranges: Sequence[OffsetRange]) -> str | None:
        self.reads += 1
        for topic, partition, offset in sorted(self.throwing):
            for each in ranges:
                if each.holds(TopicPartition(topic, partition), offset):
                    return f"threw at {offset}"
        return None


def reads(_: Sequence[OffsetRange]) -> str | None:
    """Every record can be read, undecoded."""


class Outage(Decoder):
    """Every decoding throws until `reads` reads have been made."""

    def __init__(self, throwing: set[tuple[str, int, int]], until: int, kind: str = "IOException") -> None:
        super().__init__(throwing)
        self.until, self.kind = until, kind

    def __call__(self, ranges: Sequence[OffsetRange]) -> str | None:
        thrown = super().__call__(ranges)
        return f"{self.kind}: no worker, try {self.reads}" if self.reads <= self.until else thrown


def test_record_is_found_in_a_few_reads_when_it_throws() -> None:
    throwing = {("t", 0, 100), ("t", 0, 1_123), ("t", 2, 7)}
    decoder = Decoder(throwing)
    assert find_poison(RANGES, decoder, reads) == {c: f"threw at {c[2]}" for c in throwing}
    assert decoder.reads <= 1 + 2 * 3 * 11 + 4 * CONFIRMED


def test_nothing_is_blamed_when_the_whole_decodes() -> None:
    decoder = Decoder(set())
    assert find_poison(RANGES, decoder, reads) == {}
    assert decoder.reads == 1


def test_nothing_is_blamed_when_no_single_record_throws() -> None:
    assert find_poison(RANGES, lambda ranges: "too much" if sum(map(len, ranges)) > 200 else None, reads) == {}


def test_search_ends_with_an_error_when_all_records_throw() -> None:
    decoder = Decoder({("t", 0, offset) for offset in range(100, 1_124)})
    with pytest.raises(TidemarkError, match="the transform or the decoder"):
        find_poison(RANGES, decoder, reads)
    assert decoder.reads <= 4 * MOST


@pytest.mark.parametrize("throwing", [set(), {("t", 0, 101)}], ids=["none throws", "one throws"])
@pytest.mark.parametrize("until", range(1, 40))
def test_nothing_else_is_blamed_when_a_failure_passes_while_records_are_searched(
    until: int, throwing: set[tuple[str, int, int]]
) -> None:
    outage = Outage(throwing, until)
    found = find_poison([OffsetRange(ZERO, 100, 108)], outage, reads)
    # The failure lasted longer than the search, in which every record threw.
    assert found.keys() <= throwing or (len(found) == 8 and outage.reads <= until)


def test_search_ends_with_an_error_when_a_record_cannot_be_read_undecoded() -> None:
    with pytest.raises(TidemarkError, match="cannot be read, undecoded: IOException: no disk; no record is blamed"):
        find_poison(RANGES, Decoder({("t", 0, 500)}), lambda _: "IOException: no disk")


def test_error_names_the_record_when_it_alone_cannot_be_read() -> None:
    def read(ranges: Sequence[OffsetRange]) -> str | None:
        return (
            "ArithmeticException: long overflow"
            if any(each.from_offset <= 500 < each.until_offset for each in ranges)
            else None
        )

    with pytest.raises(
        TidemarkError, match=r"^t-0 offset 500 cannot be read by Spark, undecoded: ArithmeticException: long"
    ):
        find_poison(RANGES, Decoder({("t", 0, 500)}), read)


def test_halves_hold_every_offset_once_when_ranges_are_split() -> None:
    first, second = halves(RANGES)
    assert first == [OffsetRange(ZERO, 100, 612)]
    assert second == [OffsetRange(ZERO, 612, 1_124), OffsetRange(TopicPartition("t", 2), 7, 8)]
