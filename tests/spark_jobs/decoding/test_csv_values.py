"""What each declared type of CSV makes of hostile texts: the value that was written, or quarantine."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import functions as F

from include.pipelines.spec import Csv
from spark_jobs.decoding import strict_csv

pytestmark = pytest.mark.spark

REFUSED = object()

NO_NUMBER = (
    "null", "NULL", r"\N", "NaN", "1_000", "1 000", "0x10", "5L", "1,5", "--5", "+-5", "5-", "−5", "\ufeff5", "true",
    "5\N{NO-BREAK SPACE}", "∞", '""5', '"5"5', "5 5", "2026-02-03",
)  # fmt: skip
BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
NO_TIME = (
    "null", "now", "today", "epoch", "2026-13-01", "2026-02-30", "2026-00-01", "2026-02-03x", "20260203", "2026/02/03",
    "03.02.2026", "1795000000", "-1", "5", "٢٠٢٦-٠٢-٠٣",
)  # fmt: skip
NO_TIME_OF_A_DAY = (
    "2026-02-03T24:00:00", "2026-06-30T23:59:60Z", "2026-02-03T05:60", "2026-02-03T05:02:03+19:00",
    "2026-02-03T05:02:03 CEST", "2026-02-03T", "2026-02-03T05:02:03Zx",
)  # fmt: skip
NAIVE = {
    "2026-2-3": datetime(2026, 2, 3),
    " 2026-02-03 ": datetime(2026, 2, 3),
    "2026-02-03T5:2:3": datetime(2026, 2, 3, 5, 2, 3),
    "2026-02-03 05:02:03.000001": datetime(2026, 2, 3, 5, 2, 3, 1),
    "0001-01-01": datetime(1, 1, 1),
    "1582-10-10": datetime(1582, 10, 10),
    "9999-12-31 23:59:59.999999": datetime(9999, 12, 31, 23, 59, 59, 999_999),
}
ZONED = {
    "2026-02-03T05:02:03Z": datetime(2026, 2, 3, 5, 2, 3),
    "2026-02-03T05:02:03+02:00": datetime(2026, 2, 3, 3, 2, 3),
    "2026-02-03T05:02:03-0330": datetime(2026, 2, 3, 8, 32, 3),
    "2026-02-03T05:02:03-00:00": datetime(2026, 2, 3, 5, 2, 3),
    "2026-02-03T05:02:03 Europe/Zurich": datetime(2026, 2, 3, 4, 2, 3),
    "2026-02-03T05:02:03UTC+1": datetime(2026, 2, 3, 4, 2, 3),
}
TEXTS = {
    '"a"': "a", '"a" ': "a", " a ": " a ", '" a "': " a ", '"  "': "  ", '"a,b"': "a,b", '"a""b"': 'a"b', '""""': '"',
    'a"b': 'a"b', 'a"': 'a"', '"a\\"': "a\\", "\\": "\\", "a\\nb": "a\\nb", "'a'": "'a'", "#a": "#a", "null": "null",
    "NULL": "NULL", r"\N": r"\N", "a\0b": "a\0b", "\0": "\0", "\ufeff": "\ufeff", "\u2028": "\u2028", "\x85": "\x85",
    "\x1a": "\x1a", "e\u0301": "e\u0301", "é": "é", "\U0001f600": "\U0001f600", "": None, '"null"': "null",
    '"': REFUSED, '"a': REFUSED, '"""': REFUSED, '"a""': REFUSED, "a,b": REFUSED, "a\rb": REFUSED, '"a\nb"': REFUSED,
    '"a\\""': REFUSED, "a\n": REFUSED, "a\r": REFUSED, '"a\r\n': REFUSED,
}  # fmt: skip


def whole(bits: int) -> dict[str, Any]:
    last = 2 ** (bits - 1) - 1
    taken = {str(each): each for each in (0, 1, -1, 127, last, -last - 1) if abs(each) <= last + 1}
    taken |= {"-0": 0, "+5": 5, "007": 7, "٣": 3, "５": 5, '"5"': 5, '""': None, "": None}
    beyond = (last + 1, -last - 2, 2 * last + 1, 2 * last + 2, 2**64, 2**64 + 5)
    return taken | dict.fromkeys(
        [*map(str, beyond), *NO_NUMBER, " 5", "5 ", "1e3", "1E3", "5.0", "5.", '" 5"'], REFUSED
    )


def expected() -> Iterator[tuple[str, str, Any]]:
    """Type, text of a column, and the value that it is, or `REFUSED`."""
    not_numbers = dict.fromkeys(NO_NUMBER, REFUSED)
    for kind, bits in BITS.items():
        yield from ((kind, text, value) for text, value in whole(bits).items())
    floats = {"0.5": 0.5, "-0": 0.0, "1e3": 1000.0, " 5": 5.0, "5 ": 5.0, "+5": 5.0, ".5": 0.5,
              "Infinity": float("inf"), "-Inf": float("-inf"), "": None, "٣": REFUSED, "infinity": REFUSED,
              "nan": REFUSED}  # fmt: skip
    for kind in ("FLOAT", "DOUBLE"):
        yield from ((kind, text, value) for text, value in ({**not_numbers, **floats}).items() if text != "NaN")
    yield from (
        ("DOUBLE", text, float(text)) for text in ("0.1", "9007199254740993", "5e-324", "1.7976931348623157e308")
    )
    decimals = {"999.99": Decimal("999.99"), "-999.99": Decimal("-999.99"), "-0": Decimal(0), "5.": Decimal(5),
                "1E2": Decimal(100), ".5": Decimal("0.5"), "0.10": Decimal("0.1"), "": None}  # fmt: skip
    beyond = ("1000", "-1000", "999.995", "1E3", "+5", " 5", "5 ", "1e2", "12,50", "1'000", "Infinity")
    yield from (("DECIMAL(5, 2)", text, value) for text, value in (not_numbers | decimals).items())
    yield from (("DECIMAL(5, 2)", text, REFUSED) for text in beyond)
    nines = "9" * 38
    yield from (("DECIMAL(38, 0)", text, Decimal(text)) for text in (nines, "-" + nines, "1" + "0" * 37))
    yield from (("DECIMAL(38, 0)", text, REFUSED) for text in ("1" + nines, "1" + "0" * 38, "1" + "0" * 400))
    yield from (("BOOLEAN", text, text.lower() == "true") for text in ("true", "TRUE", "True", "false", "FALSE"))
    yield from (
        ("BOOLEAN", text, REFUSED) for text in ("t", "f", "1", "0", "yes", "on", " true", "true ", "null", "tru")
    )
    for kind in ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ"):
        yield from ((kind, text, REFUSED) for text in NO_TIME)
        # A DATE is what stands before the blank.
        beyond = ("294248-01-01", "2026-02-03 Mars/Olympus") if kind != "DATE" else ("5881581-01-01",)
        yield from ((kind, text, REFUSED) for text in beyond)
        times = NAIVE | (ZONED if kind == "TIMESTAMP" else {})
        yield from ((kind, text, at.date() if kind == "DATE" else at) for text, at in times.items())
    for kind in ("TIMESTAMP", "TIMESTAMP_NTZ"):
        yield from ((kind, text, REFUSED) for text in NO_TIME_OF_A_DAY)
    yield from (("TIMESTAMP_NTZ", text, REFUSED) for text in ZONED)
    times = {"12:30": time(12, 30), "23:59:59.999999": time(23, 59, 59, 999_999)}
    yield from (("TIME", text, at) for text, at in times.items())
    yield from (("TIME", text, REFUSED) for text in ("24:00:00", "23:59:60", "12", "12:30+01:00", "noon"))
    for text, value in TEXTS.items():
        yield "STRING", text, value
        yield "BINARY", text, value.encode() if isinstance(value, str) else value


def literal(value: Any) -> str | None:
    """Return a value as Spark's cast to a text has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.isoformat(" ").rstrip("0").rstrip(".") if value.microsecond else value.isoformat(" ")
    return value.decode() if isinstance(value, bytes) else None if value is None else str(value)


def same(kind: str, found: str | None, value: Any) -> bool:
    if value is None or found is None:
        return found is value
    if kind in ("FLOAT", "DOUBLE"):
        return float(found.replace("Infinity", "inf")) == value
    if kind.startswith("DECIMAL"):
        return Decimal(found) == value
    return found == (
        value.isoformat() if isinstance(value, date) and not isinstance(value, datetime) else literal(value)
    )


def test_value_is_the_one_that_was_written_or_in_quarantine_when_a_text_is_hostile(spark: Any) -> None:
    """Each line has one text, in the column of its type."""
    cells = list(expected())
    kinds = list(dict.fromkeys(kind for kind, _, _ in cells))
    decoder = Csv(", ".join(["first INT", *(f"v{at} {kind}" for at, kind in enumerate(kinds)), "last STRING"]))
    lines = []
    for kind, text, _ in cells:
        lines.append(",".join(["7", *(text if each == kind else "" for each in kinds), "z"]))
    wrong = []
    for (kind, text, value), (reason, first, last, *values) in zip(cells, read(spark, decoder, lines), strict=True):
        found = values[kinds.index(kind)]
        is_right = (
            (first, last) == (7, "z") and same(kind, found, value) and sum(each is not None for each in values) <= 1
        )
        if (value is REFUSED) != (reason is not None) or (value is not REFUSED and not is_right):
            wrong.append((kind, text, found, reason))
    assert not wrong


def read(spark: Any, decoder: Csv, lines: list[str]) -> list[Any]:
    """Return why a line is refused, or else the first, the last, and all other columns as texts."""
    frame = spark.createDataFrame([(n, each.encode()) for n, each in enumerate(lines)], "n INT, value BINARY")
    frame = frame.coalesce(1).withColumn("line", strict_csv.parsable(decoder, F.col("value")))
    parsed = frame.withColumn("parsed", strict_csv.parse(decoder, F.col("line")))
    failure = strict_csv.failure(decoder, F.col("value"), F.col("parsed"))
    message = F.when(failure.isNull(), strict_csv.message(F.col("parsed")))
    first, *names, last = [
        each.split(" ")[0] for each in decoder.schema.replace("(5, 2)", "").replace("(38, 0)", "").split(", ")
    ]
    others = (message[name].cast("string") for name in names)
    rows = parsed.select("n", failure["reason"], message[first], message[last], *others).collect()
    return [tuple(row)[1:] for row in sorted(rows, key=lambda row: row.n)]


@pytest.mark.parametrize("separator", [",", "||", "\t", r"\t", "é", " "])
def test_line_is_malformed_when_it_was_cut_inside_of_quotes(spark: Any, separator: str) -> None:
    decoder = Csv("a STRING, b STRING", separator=separator)
    between = "\t" if separator == r"\t" else separator
    line = between.join(["x", f'"y{between}z"'])
    cut = [line[:length] for length in range(len(line) - 1, len(between) + 1, -1)]
    whole, *others = read(spark, decoder, [line, *cut, line + between + '"'])
    assert whole == (None, "x", f"y{between}z")
    assert {reason for reason, *_ in others} == {"malformed_csv"}
