"""A decoder written by the user in Java: a Kafka `Deserializer` of a jar, called as a function of Spark.

Where it fails on a value, only that record goes to quarantine. The JVM turns its result into a JSON object
(`include/spark/KafkaDeserializers.java`), which is read by the declared schema.
"""

from __future__ import annotations

import json
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from include.errors import UsageError
from include.pipelines.spec import KafkaDeserializer
from include.spark.compiled_jars import CLASS
from spark_jobs.decoding.reasons import because, first_of, unreadable
from spark_jobs.spark.schemas import WITHOUT_COMMAS, struct_of

_FUNCTION = "tidemark_deserialize"
_RETURNED = StructType().add("json", StringType()).add("error", StringType())
_CORRUPT = "tidemark_corrupt"
_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    "enableDateTimeParsingFallback": "false",
    **WITHOUT_COMMAS,
}
_NONE = "the deserializer returned no message"


def prepare(decoder: KafkaDeserializer, spark: SparkSession) -> None:
    """Register the function in the session. Raises UsageError for a class that cannot be used, with the reason."""
    # Spark's own registration by class name needs generic types, which a class compiled by Janino lacks.
    caller = _caller(spark)
    if problem := caller.problem(decoder.class_name, _config(decoder)):
        raise UsageError(
            f"{decoder.class_name} of {decoder.jar.name} cannot decode: {problem}",
            remedy="correct the decoder's jar, class_name or config",
        )
    java_session: Any = spark._jsparkSession
    java_session.udf().register(_FUNCTION, caller, java_session.parseDataType(_RETURNED.json()))


def _caller(spark: SparkSession) -> Any:
    gateway: Any = spark._jvm
    try:
        # The loader that knows the application's jars.
        return gateway.Thread.currentThread().getContextClassLoader().loadClass(CLASS).newInstance()
    except Py4JError:
        raise UsageError(
            "this Spark application was started without the jars of its decoder", remedy="start it by ./tidemark"
        ) from None


def _config(decoder: KafkaDeserializer) -> str:
    return json.dumps(dict(decoder.config), sort_keys=True)


def parsable(decoder: KafkaDeserializer, value: Column) -> Column:
    """Return what the deserializer makes of a record's topic and value: struct<json, error>."""
    names = struct_of(decoder.schema).names
    only = names[0] if len(names) == 1 else ""
    constants = (F.lit(each) for each in (decoder.class_name, _config(decoder), only))
    readable = F.when(unreadable(decoder.max_bytes, value, text=False).isNull(), value)
    return F.call_function(_FUNCTION, *constants, F.col("topic"), readable)


def parse(decoder: KafkaDeserializer, parsable: Column) -> Column:
    """Return the value decoded once: struct<message, returned, error>; the message null when it cannot be read."""
    schema = struct_of(decoder.schema).add(_CORRUPT, StringType())
    read = F.from_json(parsable["json"], schema, _OPTIONS)
    message = F.when(parsable["json"].isNotNull(), read).alias("message")
    return F.struct(message, parsable["json"].isNotNull().alias("returned"), parsable["error"].alias("error"))


def message(parsed: Column) -> Column:
    """Return the message as a struct; when the value is not a message, the fields that could be read."""
    return parsed["message"]


def failure(decoder: KafkaDeserializer, value: Column, parsed: Column) -> Column:
    """Return why the value is not a message: null_value, too_large, undecodable with what was thrown, or wrong_type."""
    is_read = parsed["message"].isNotNull() & parsed["message"][_CORRUPT].isNull()
    return first_of(
        unreadable(decoder.max_bytes, value, text=False),
        F.when(~parsed["returned"], because("undecodable", F.coalesce(parsed["error"], F.lit(_NONE)))),
        F.when(~is_read, because("wrong_type", "what the deserializer returned is not of the declared types")),
    )
