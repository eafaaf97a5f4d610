"""Strict CSV: one line per message, with exactly the declared columns, each of its type."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from include.pipelines.spec import Csv
from spark_jobs.decoding.altered import altered, may_alter, telling_schema
from spark_jobs.decoding.reasons import because, first_of, unreadable
from spark_jobs.spark.schemas import struct_of


def parsable(decoder: Csv, value: Column) -> Column:
    """Return the value as one line; null when it is not one."""
    # from_csv reads the first line and ignores the others.
    return F.when(unreadable(decoder.max_bytes, value).isNull() & ~_has_lines(value), _line(value))


def parse(decoder: Csv, parsable: Column) -> Column:
    """Return the value parsed once, to be kept in a column that `message` and `failure` read: struct<message, altered>.

    `altered` says which column Spark made another value of (`spark_jobs/decoding/altered.py`), or is null.
    """
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "corrupt", "sep": decoder.separator, "escape": '"'}
    declared = struct_of(decoder.schema)
    told = F.from_csv(parsable, telling_schema(declared, "csv").toDDL(), options)
    suspected = may_alter(declared, parsable, "csv", decoder.separator)
    said = F.lit(None) if suspected is None else F.when(suspected, altered(declared, told, "csv"))
    # Referenced twice, as in `strict_json`.
    read = F.when(parsable.isNotNull(), F.from_csv(parsable, f"{decoder.schema}, corrupt STRING", options))
    return F.struct(read.alias("message"), said.cast("string").alias("altered"))


def _line(value: Column) -> Column:
    return F.regexp_replace(value.cast("string"), r"\r?\n\z", "")


def _has_lines(value: Column) -> Column:
    return _line(value).rlike(r"[\r\n]")


def message(parsed: Column) -> Column:
    """Return the message as a struct; null when the value is not a message."""
    return F.when(parsed["message"]["corrupt"].isNull(), parsed["message"])


def failure(decoder: Csv, value: Column, parsed: Column) -> Column:
    """Return why the value is not a message, as struct<reason, detail>; null when it is one.

    Reasons: null_value, too_large, not_utf8, empty_value, trailing_content, malformed_csv.
    """
    return first_of(
        unreadable(decoder.max_bytes, value),
        F.when(_line(value).rlike(r"\A\s*\z"), because("empty_value", "nothing but white space")),
        F.when(_has_lines(value), because("trailing_content", "more than one line")),
        F.when(
            parsed["message"].isNull() | parsed["message"]["corrupt"].isNotNull(),
            because("malformed_csv", "not the declared columns, or not of their types"),
        ),
        F.when(parsed["altered"].isNotNull(), because("malformed_csv", parsed["altered"])),
    )
