"""UTF-8 text: the whole value is one column, `text`."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from include.pipelines.spec import Text
from spark_jobs.decoding.reasons import because, first_of, unreadable


def parsable(decoder: Text, value: Column) -> Column:
    """Return the value itself."""
    return value


def parse(decoder: Text, value: Column) -> Column:
    """Return the value as struct<text STRING>; null when it is not a message."""
    readable = unreadable(decoder.max_bytes, value).isNull()
    return F.when(readable, F.struct(value.cast("string").alias("text")))


def message(parsed: Column) -> Column:
    """Return the message as a struct; null when the value is not a message."""
    return parsed


def failure(decoder: Text, value: Column, parsed: Column) -> Column:
    """Return why the value is not a message: null_value, too_large, not_utf8; null for a message. Empty text is one."""
    return first_of(unreadable(decoder.max_bytes, value), F.when(parsed.isNull(), because("undecodable", "no text")))
