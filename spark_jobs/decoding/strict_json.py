"""Strict JSON in one parse.

`from_json` alone accepts trailing garbage, a second object and an empty value. Here the object is closed by a seal that
no producer knows, in place of its last brace:

    {"amount": 7}    is parsed as    {"amount": 7,"tidemark_seal":"SECRET"}

If anything follows a complete object, the seal is not inside of that object. An incomplete object accepts no further
member, or takes it at a deeper level. So an object with the seal is the whole value.
"""

from __future__ import annotations

import secrets

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from include.pipelines.spec import Json
from spark_jobs.decoding.reasons import because, first_of, unreadable
from spark_jobs.spark.schemas import WITHOUT_COMMAS, struct_of

_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": "tidemark_corrupt",
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    # Otherwise a DATE such as "20261120" is a number of days since 1970.
    "enableDateTimeParsingFallback": "false",
    **WITHOUT_COMMAS,
}
_SPACE = " \t\n\r"
"""White space in JSON."""

_WITH_SPACE_BEHIND = rf"(?s)\A(.*\}})[{_SPACE}]++\z"
"""An object with white space behind it, found from the end. White space alone would be looked for at each of its
places: in a value of a million blanks, for hours."""

_SEAL = secrets.token_hex(8)
"""A secret of this driver. Text, because a number would become part of generated code, which Spark caches by its
text."""


def parsable(decoder: Json, value: Column) -> Column:
    """Return the value with a seal in place of its last brace; null when it does not end with one, or is too long."""
    text = value.cast("string")
    # Handled as bytes: Spark would count the characters of text to find its end.
    trimmed = F.when(text.endswith("}"), value).otherwise(
        F.regexp_replace(text, _WITH_SPACE_BEHIND, "$1").cast("binary")
    )
    # An empty object takes no comma. Nearly all objects begin with a name, which is quick to check.
    is_empty = ~text.startswith('{"') & text.rlike(rf"\A[{_SPACE}]*\{{[{_SPACE}]*\}}")
    seal = f'"tidemark_seal":"{_SEAL}"}}'
    content = F.substring(trimmed, 1, F.octet_length(trimmed) - 1)
    sealed = F.concat(content, F.when(is_empty, F.lit(seal.encode())).otherwise(F.lit(f",{seal}".encode())))
    # Longer values are not parsed at all: they fail for their length.
    is_parsed = (F.octet_length(value) <= decoder.max_bytes) & trimmed.cast("string").endswith("}")
    return F.when(is_parsed, sealed.cast("string"))


def parse(decoder: Json, parsable: Column) -> Column:
    """Return the value parsed once, to be kept in a column that `message` and `failure` read."""
    schema = struct_of(decoder.schema).add("tidemark_seal", StringType()).add("tidemark_corrupt", StringType())
    # Referenced twice: Spark would inline a column that is referenced once, inside of the parser.
    return F.when(parsable.isNotNull(), F.from_json(parsable, schema, _OPTIONS))


def message(parsed: Column) -> Column:
    """Return the message as a struct; when the value is not a message, the fields that could be read."""
    return parsed


def failure(decoder: Json, value: Column, parsed: Column) -> Column:
    """Return why the value is not a message, as struct<reason, detail>; null when it is one.

    Reasons: null_value, empty_value, too_large, not_utf8, malformed_json, wrong_type, trailing_content.
    """
    text = value.cast("string")
    is_whole = (parsed["tidemark_seal"] == _SEAL) & parsed["tidemark_corrupt"].isNull()
    # Only bad values are parsed again, to find the reason; good ones cost nothing more.
    reason = (
        F.when(text.rlike(r"^\s*$"), because("empty_value", "nothing but white space"))
        .when(_is_one_value(value), because("wrong_type", "not an object of the declared types"))
        .when(F.try_parse_json(text).isNotNull(), because("trailing_content", "more than one JSON value"))
        # Spark parses no object into a variant that has a key twice.
        .otherwise(because("malformed_json", "not JSON, or an object in it has a key twice"))
    )
    return first_of(unreadable(decoder.max_bytes, value), F.when(~F.coalesce(is_whole, F.lit(False)), reason))


def _is_one_value(value: Column) -> Column:
    """Return whether the value is one JSON value of any kind: in an array before the seal, it is the only element."""
    array = F.try_parse_json(F.concat(F.lit("["), value.cast("string"), F.lit(f',"{_SEAL}"]')))
    return F.coalesce(F.try_variant_get(array, "$[1]", "string") == _SEAL, F.lit(False))
