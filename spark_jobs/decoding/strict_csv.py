"""Strict CSV: one line per message, with exactly the declared columns, each of its type.

`from_csv` alone accepts a last column whose quotes do not end, as of a line that was cut. Here another separator
follows the line, and so an empty column. Inside of quotes it is part of their text, and one column is missing.
"""

from __future__ import annotations

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from include.pipelines.spec import Csv
from spark_jobs.decoding.reasons import because, first_of, unreadable
from spark_jobs.spark.schemas import WITHOUT_COMMAS, struct_of

_CORRUPT, _END = "tidemark_corrupt", "tidemark_end"
_OPTIONS = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, "escape": '"', **WITHOUT_COMMAS}

_MOST = 1_048_577
"""Columns of a value that the parser takes, with 8 bytes for each: it throws where a line has more, by default at
20,481. A value within the default `max_bytes` has no more."""


def parsable(decoder: Csv, value: Column) -> Column:
    """Return the value as one line with another separator at its end; null when it is not one line."""
    # from_csv reads the first line and ignores the others.
    is_line = unreadable(decoder.max_bytes, value).isNull() & ~_has_lines(value)
    if decoder.max_bytes >= _MOST:
        is_line &= (F.octet_length(value) < _MOST) | (_separators(decoder, value) < _MOST)
    return F.when(is_line, F.concat(_line(value), F.lit(_separator(decoder))))


def parse(decoder: Csv, parsable: Column) -> Column:
    """Return the value parsed once, to be kept in a column that `message` and `failure` read."""
    options = {**_OPTIONS, "sep": decoder.separator, "maxColumns": str(_MOST + 1)}
    schema = struct_of(decoder.schema).add(_END, StringType()).add(_CORRUPT, StringType())
    # Referenced twice, as in `strict_json`.
    return F.when(parsable.isNotNull(), F.from_csv(parsable, schema.toDDL(), options))


def _separators(decoder: Csv, value: Column) -> Column:
    """Return how many separators the value has, also inside of quotes."""
    separator = _separator(decoder)
    others = F.replace(value.cast("string"), F.lit(separator), F.lit(""))
    return (F.octet_length(value) - F.octet_length(others)) / len(separator.encode())


def _separator(decoder: Csv) -> str:
    """Return the separator as it is in a line: Spark takes one that is declared as a backslash and `t` for a tab."""
    csv = SparkSession.active()._jvm.org.apache.spark.sql.catalyst.csv  # type: ignore[union-attr]
    return str(csv.CSVExprUtils.toDelimiterStr(decoder.separator))


def _line(value: Column) -> Column:
    return F.regexp_replace(value.cast("string"), r"\r?\n\z", "")


def _has_lines(value: Column) -> Column:
    return _line(value).rlike(r"[\r\n]")


def message(parsed: Column) -> Column:
    """Return the message as a struct; null when the value is not a message."""
    return F.when(~_is_malformed(parsed), parsed)


def _is_malformed(parsed: Column) -> Column:
    return parsed.isNull() | parsed[_CORRUPT].isNotNull() | parsed[_END].isNotNull()


def failure(decoder: Csv, value: Column, parsed: Column) -> Column:
    """Return why the value is not a message, as struct<reason, detail>; null when it is one.

    Reasons: null_value, too_large, not_utf8, empty_value, trailing_content, malformed_csv.
    """
    return first_of(
        unreadable(decoder.max_bytes, value),
        F.when(_line(value).rlike(r"\A\s*\z"), because("empty_value", "nothing but white space")),
        F.when(_has_lines(value), because("trailing_content", "more than one line")),
        F.when(
            _is_malformed(parsed),
            because("malformed_csv", "not the declared columns, or not of their types"),
        ),
    )
