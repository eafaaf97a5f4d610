"""Options by which Spark writes and reads each file format so that every value comes back unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.types import StructType

from include.pipelines.spec.file_formats import CSV_NULL, FileFormat

_COMPRESSION: dict[FileFormat, str] = {
    "parquet": "zstd",
    "orc": "zstd",
    # Codecs that readers of Avro, CSV and JSON support without further libraries.
    "avro": "deflate",
    "csv": "gzip",
    "json": "gzip",
}

_TEXT = {
    # Spark's default for one of the formats cuts microseconds off.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "mode": "FAILFAST",
}

_OPTIONS: dict[FileFormat, Mapping[str, str]] = {
    "json": _TEXT,
    "csv": {
        **_TEXT,
        "header": "true",
        # Otherwise columns are taken by position, whatever the header says.
        "enforceSchema": "false",
        "nullValue": CSV_NULL,
        "emptyValue": "",
        # RFC 4180: every value in quotes, a quote doubled, line breaks as they are.
        "quoteAll": "true",
        "escape": '"',
        "multiLine": "true",
        "lineSep": "\n",
        "ignoreLeadingWhiteSpace": "false",
        "ignoreTrailingWhiteSpace": "false",
    },
}


def write_files(writer: DataFrameWriter, file_format: FileFormat, location: str) -> None:
    """Write the writer's rows to a new folder."""
    options = _OPTIONS.get(file_format, {})
    writer.format(file_format).options(compression=_COMPRESSION[file_format], **options).save(location)


def read_format(
    spark: SparkSession, file_format: FileFormat, locations: Sequence[str], schema: StructType | None
) -> DataFrame:
    """Return the rows of files or folders of one format; without a schema, with the columns that the files have."""
    reader = spark.read.format(file_format).options(**_OPTIONS.get(file_format, {}))
    return (reader.schema(schema) if schema is not None else reader).load(list(locations))


def using(file_format: FileFormat) -> str:
    """Return the clause of a CREATE TABLE for files of the format."""
    options = ", ".join(f"'{name}' '{_quoted(value)}'" for name, value in _OPTIONS.get(file_format, {}).items())
    return f"USING {file_format.upper()}" + (f" OPTIONS ({options})" if options else "")


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
