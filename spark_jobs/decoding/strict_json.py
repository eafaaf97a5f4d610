"""JSON, strictly and in one parse.

`from_json` alone accepts trailing garbage, a second object and an empty value. Here the value is
parsed inside an array between two seals that only this record has:

    {"tidemark": [{"tidemark_seal": hash of VALUE}, VALUE, {"tidemark_seal": hash of VALUE}]}

Whatever follows a complete object inside VALUE breaks the array, adds an element to it, or ends it and
begins another without its first seal, so exactly three elements with both seals mean one JSON value.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StringType, StructType

from include.pipelines.spec import Json
from spark_jobs.decoding.reasons import because, first_of, unreadable
from spark_jobs.schemas import struct_of

_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": "corrupt",
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}


def parse(decoder: Json, value: Column) -> Column:
    """The value parsed once, to be kept in a column that `message` and `failure` read."""
    sealed = _sealed(value)
    sealed_message = struct_of(decoder.schema).add("tidemark_seal", LongType())
    schema = StructType().add("tidemark", ArrayType(sealed_message)).add("corrupt", StringType())
    # Longer values are not parsed at all: their failure is their length.
    return F.when(F.octet_length(value) <= decoder.max_bytes, F.from_json(sealed, schema, _OPTIONS))


def _sealed(value: Column) -> Column:
    seal = F.concat(F.lit('{"tidemark_seal":'), F.xxhash64(value).cast("string"), F.lit("}"))
    return F.concat(F.lit('{"tidemark":['), seal, F.lit(","), value.cast("string"), F.lit(","), seal, F.lit("]}"))


def message(parsed: Column) -> Column:
    """The message as a struct; null when the value is no message."""
    return F.get(parsed["tidemark"], F.lit(1))


def failure(decoder: Json, value: Column, parsed: Column) -> Column:
    """Why the value is no message, as struct<reason, detail>; null when it is one.

    Reasons: null_value, empty_value, too_large, not_utf8, malformed_json, wrong_type, trailing_content.
    """
    text = value.cast("string")
    first, last = (F.get(parsed["tidemark"], F.lit(at))["tidemark_seal"] for at in (0, 2))

    seal = F.xxhash64(value)
    is_whole = (F.size(parsed["tidemark"]) == 3) & (first == seal) & (last == seal)
    broken = (
        F.when(
            parsed["corrupt"].isNotNull(),
            # Only bad values come here, so a second parse that tells them apart costs the good ones nothing.
            F.when(text.rlike(r"^\s*$"), because("empty_value", "nothing but white space"))
            .when(F.try_parse_json(_sealed(value)).isNotNull(), because("wrong_type", "not of the declared types"))
            .when(F.try_parse_json(text).isNotNull(), because("trailing_content", "more than one JSON value"))
            .otherwise(because("malformed_json", "not JSON")),
        )
        .when(~F.coalesce(is_whole, F.lit(False)), because("trailing_content", "more than one JSON value"))
        .when(message(parsed).isNull(), because("wrong_type", "null, not an object"))
    )
    return first_of(unreadable(decoder.max_bytes, value), broken)
