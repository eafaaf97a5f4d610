"""The module of each declared decoder; all have the same four functions."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame, SparkSession

from include.pipelines.spec import Avro, Csv, Json, KafkaDeserializer, Pipeline, Text, UserDefined
from spark_jobs.decoding import avro_wire, strict_csv, strict_json, unknown_fields, utf8_text
from spark_jobs.decoding.user_defined import kafka_deserializer, python_function
from spark_jobs.spark.worker_code import WorkerCode


class Decoding(Protocol):
    """What a module that decodes a format offers. All four are pure: columns to columns."""

    def parsable(self, decoder: Any, value: Column, /) -> Column:
        """Return the argument of `parse`, to be kept in a column: the value, or something made of it.

        Spark does not compile some parsers, nor any expression inside of their argument.
        """

    def parse(self, decoder: Any, parsable: Column, /) -> Column:
        """Return the value parsed once, to be kept in a column that the two others read."""

    def message(self, parsed: Column, /) -> Column:
        """Return the message as a struct; valid only where `failure` is null."""

    def failure(self, decoder: Any, value: Column, parsed: Column, /) -> Column:
        """Return why the value is not a message, as struct<reason, detail>; null when it is one."""


_MODULES: MappingProxyType[type, Decoding] = MappingProxyType(
    {
        Json: strict_json,
        Text: utf8_text,
        Csv: strict_csv,
        UserDefined: python_function,
        KafkaDeserializer: kafka_deserializer,
        Avro: avro_wire,
    }
)


def decoding_of(decoder: object) -> Decoding:
    """Return the module that decodes as declared."""
    return _MODULES[type(decoder)]


def code_of_workers(pipeline: Pipeline) -> WorkerCode:
    """Return the code that Python workers run to decode, as it was when this process first asked; mostly none."""
    if isinstance(pipeline.decoder, UserDefined):
        return python_function.code_of(pipeline.decoder)
    return unknown_fields.code_of_workers() if pipeline.keeps_unknown_fields else ()


def prepare(decoder: object, records: DataFrame) -> None:
    """Fetch the schemas or the user's code that decoding these records needs, before it is planned.

    Raises ServiceUnreachable, for which no record is to blame, and UsageError for code that cannot decode.
    """
    if isinstance(decoder, Avro):
        avro_wire.prepare(decoder, records)
    prepare_code(decoder, records.sparkSession)


def prepare_code(decoder: object, spark: SparkSession) -> None:
    """Load the user's own code that decodes, if any. Raises UsageError for code that cannot decode."""
    if isinstance(decoder, KafkaDeserializer):
        kafka_deserializer.prepare(decoder, spark)
    if isinstance(decoder, UserDefined):
        python_function.prepare(decoder)
