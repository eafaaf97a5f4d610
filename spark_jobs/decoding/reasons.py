"""The reasons, shared by all decoders, why a value is not a message."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def because(reason: str, detail: Column | str) -> Column:
    """Return a failure as struct<reason, detail>."""
    return F.struct(
        F.lit(reason).alias("reason"), (F.lit(detail) if isinstance(detail, str) else detail).alias("detail")
    )


def unreadable(max_bytes: int, value: Column, *, text: bool = True) -> Column:
    """Return why a value cannot be read at all: null_value, too_large, and for `text` not_utf8; null when it can."""
    size = F.concat(F.octet_length(value).cast("string"), F.lit(f" bytes, the limit is {max_bytes}"))
    reason = F.when(value.isNull(), because("null_value", "a record without a value")).when(
        F.octet_length(value) > max_bytes, because("too_large", size)
    )
    if text:
        return reason.when(~F.is_valid_utf8(value.cast("string")), because("not_utf8", "the value is not UTF-8"))
    return reason


def first_of(*failures: Column) -> Column:
    """Return the first failure that is not null."""
    return F.coalesce(*failures)
