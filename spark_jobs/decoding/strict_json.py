"""JSON, strictly and in one parse.

`from_json` alone accepts trailing garbage, a second object and an empty value. Here the object is closed by a seal that
no producer knows, in place of its last brace:

    {"amount": 7}    is parsed as    {"amount": 7,"tidemark_seal":"SECRET"}

Whatever follows a complete object inside the value keeps the seal out of that object; an object that is not complete
takes no further member, or takes it somewhere deeper. So an object with the seal is all of the value.
"""

from __future__ import annotations

import secrets

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from include.pipelines.spec import Json
from spark_jobs.decoding.reasons import because, first_of, unreadable
from spark_jobs.spark.schemas import struct_of

_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": "tidemark_corrupt",
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}
_SPACE = " \t\n\r"
"""White space as JSON has it."""

_SEAL = secrets.token_hex(8)
"""Of this driver's. Text: a number would stand in the code that Spark generates, which is kept by its text."""


def parsable(decoder: Json, value: Column) -> Column:
    """The value with a seal in place of its last brace; null when it does not end with one, or is too long."""
    text = value.cast("string")
    # Bytes: Spark counts the characters of text to find its end.
    trimmed = F.when(text.endswith("}"), value).otherwise(F.regexp_replace(text, rf"[{_SPACE}]+\z", "").cast("binary"))
    # Nothing comes before the comma of an empty object. Nearly all begin with a name, which is quickly seen.
    is_empty = ~text.startswith('{"') & text.rlike(rf"\A[{_SPACE}]*\{{[{_SPACE}]*\}}")
    seal = f'"tidemark_seal":"{_SEAL}"}}'
    content = F.substring(trimmed, 1, F.octet_length(trimmed) - 1)
    sealed = F.concat(content, F.when(is_empty, F.lit(seal.encode())).otherwise(F.lit(f",{seal}".encode())))
    # Longer values are not parsed at all: their failure is their length.
    is_parsed = (F.octet_length(value) <= decoder.max_bytes) & trimmed.cast("string").endswith("}")
    return F.when(is_parsed, sealed.cast("string"))


def parse(decoder: Json, parsable: Column) -> Column:
    """The value parsed once, to be kept in a column that `message` and `failure` read."""
    schema = struct_of(decoder.schema).add("tidemark_seal", StringType()).add("tidemark_corrupt", StringType())
    # Named twice: a column that is named once, Spark would put where it is named, inside of the parser.
    return F.when(parsable.isNotNull(), F.from_json(parsable, schema, _OPTIONS))


def message(parsed: Column) -> Column:
    """The message as a struct; what could be read of it when the value is no message."""
    return parsed


def failure(decoder: Json, value: Column, parsed: Column) -> Column:
    """Why the value is no message, as struct<reason, detail>; null when it is one.

    Reasons: null_value, empty_value, too_large, not_utf8, malformed_json, wrong_type, trailing_content.
    """
    text = value.cast("string")
    is_whole = (parsed["tidemark_seal"] == _SEAL) & parsed["tidemark_corrupt"].isNull()
    # Only bad values come here, so further parses that tell them apart cost the good ones nothing.
    found = (
        F.when(text.rlike(r"^\s*$"), because("empty_value", "nothing but white space"))
        .when(_is_one_value(value), because("wrong_type", "not an object of the declared types"))
        .when(F.try_parse_json(text).isNotNull(), because("trailing_content", "more than one JSON value"))
        .otherwise(because("malformed_json", "not JSON"))
    )
    return first_of(unreadable(decoder.max_bytes, value), F.when(~F.coalesce(is_whole, F.lit(False)), found))


def _is_one_value(value: Column) -> Column:
    """Whether the value is one JSON value of any kind: in an array with the seal, it is all there is before it."""
    array = F.try_parse_json(F.concat(F.lit("["), value.cast("string"), F.lit(f',"{_SEAL}"]')))
    return F.coalesce(F.try_variant_get(array, "$[1]", "string") == _SEAL, F.lit(False))
