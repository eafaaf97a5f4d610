"""Takes the content of references from their sources once, as lines of CSV from which every value can be read back.

Later steps read the kept lines, like a file that ships with the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType

from include import lake
from include.errors import ReconciliationFailed, ServiceUnreachable, TidemarkError, UsageError, one_line
from include.intervals.references import as_file, keep_content
from include.outputs.connection import jdbc_options
from include.pipelines.spec import CatalogTable, JdbcQuery, LakePath, Pipeline, Reference
from include.pipelines.spec.references import numbered_lines, repeated_key, values_in
from spark_jobs.decoding.reference_values import check_values
from spark_jobs.spark.failures import translate
from spark_jobs.spark.schemas import struct_of

_BREAKS = "[\\n\\r]"
"""Characters that end a line of a kept content."""

_KEEP_SPACES = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}


def has_sources(pipeline: Pipeline) -> bool:
    """Return whether a reference of the pipeline is read from a source."""
    return any(each.source for each in pipeline.references.values())


def with_content(spark: SparkSession, pipeline: Pipeline, known: Mapping[str, str]) -> Pipeline:
    """Return the pipeline with a file of this machine for each reference that has a source.

    The file holds the kept content that `known` names by its SHA-256, else the source's current content, which is then
    kept. Raises UsageError when the source lacks a declared column, has too many rows or none, a key twice, or a value
    that CSV changes, or when the kept content is gone; ServiceUnreachable when the database, the metastore or the lake
    does not answer.
    """
    taken = {
        name: as_file(pipeline, name, known.get(name) or _take(spark, pipeline, name))
        for name, reference in pipeline.references.items()
        if reference.source
    }
    return replace(pipeline, references={**pipeline.references, **taken}) if taken else pipeline


def _take(spark: SparkSession, pipeline: Pipeline, name: str) -> str:
    reference = pipeline.references[name]
    try:
        lines = _csv_lines(spark, name, reference)
    except TidemarkError as error:
        raise type(error)(error.message, remedy=error.remedy, pipeline=pipeline.name) from None
    except (PySparkException, Py4JJavaError) as error:
        # Not chained: the error itself may quote the connection.
        raise _unreadable(pipeline, name, error) from None
    if not lines or len(lines) > reference.max_rows:
        raise UsageError(
            f"the reference {name} ({reference.source}) has {'more than ' if lines else ''}"
            f"{reference.max_rows if lines else 'no'} rows",
            remedy="declare max_rows" if lines else "fill it: joined with nothing, every row would be left out",
            pipeline=pipeline.name,
        )
    if found := repeated_key(reference, lines):
        raise UsageError(
            f"the reference {name} ({reference.source}) has the key {found[-1]} twice",
            remedy="correct it, or read one row of each: what is joined with two would be counted twice",
            pipeline=pipeline.name,
        )
    return keep_content(pipeline, name, lines)


def _csv_lines(spark: SparkSession, name: str, reference: Reference) -> list[str]:
    source = reference.source
    match source:
        case LakePath(path, "csv"):
            location = lake.uri(*path.split("/"))
            if not lake.exists(location):
                raise UsageError(f"the reference {name} cannot be read: {location} is not there", remedy="put it there")
            return _file_lines(spark, name, reference, lake.read_bytes(location, decompressed=True), path)
        case LakePath(path):
            frame = spark.read.parquet(lake.uri(*path.split("/")))
        case CatalogTable(table):
            frame = spark.table(table)
        case JdbcQuery(connection, query):
            frame = spark.read.format("jdbc").options(**jdbc_options(connection)).option("query", query).load()
        case _:
            raise UsageError(f"the reference {name} has no source", remedy="declare one")
    return _lines(frame, name, reference)


def _file_lines(spark: SparkSession, name: str, reference: Reference, content: bytes, path: str) -> list[str]:
    """Return the lines after a CSV file's header. Raises UsageError when they are not rows of the declared columns."""
    with TemporaryDirectory(prefix="reference-") as folder:
        file = Path(folder, PurePosixPath(path).name)
        file.write_bytes(content)
        lines = numbered_lines(name, replace(reference, path=file))
    # The caller names the pipeline.
    check_values(spark, "", name, reference, lines)
    return [line for _, line in lines]


def _lines(frame: DataFrame, name: str, reference: Reference) -> list[str]:
    """Return the declared columns as lines. Raises UsageError when a value cannot be read back from its line."""
    fields = struct_of(reference.columns).fields
    given = _given(frame.limit(reference.max_rows + 1), name, reference)
    kinds = given.schema
    # In steps, so that no expression repeats the others again and again.
    typed = given.select(
        "*", *(F.col(f"given_{n}").try_cast(f.dataType).alias(f"typed_{n}") for n, f in enumerate(fields))
    )
    texts = typed.select("*", *(F.col(f"typed_{n}").cast("string").alias(f"text_{n}") for n, _ in enumerate(fields)))
    values = F.struct(*(F.col(f"text_{n}").alias(field.name) for n, field in enumerate(fields)))
    written = texts.select("*", F.to_csv(values, _KEEP_SPACES).alias("line"))
    back = written.select("*", F.from_csv("line", reference.columns).alias("back"))
    wrong = [_changed(n, field.name, kinds[f"given_{n}"].dataType) for n, field in enumerate(fields)]
    rows = back.select("line", F.array_compact(F.array(*wrong)).alias("wrong")).collect()
    bad = {column for row in rows for column in row["wrong"]}
    # An empty line is not a row of a file, nor is one that would be refused when it is read from there.
    bad |= {fields[0].name for row in rows if not row["line"] or values_in(row["line"]) != len(fields)}
    if bad:
        raise UsageError(
            f"the reference {name} ({reference.source}) has values of {', '.join(sorted(bad))} that cannot be kept as "
            "declared",
            remedy="declare the type that the column has there; no line breaks in texts, no rows of nulls alone",
        )
    return [row["line"] for row in rows]


def _given(frame: DataFrame, name: str, reference: Reference) -> DataFrame:
    """Return the source's declared columns as `given_<number>`; an empty text is null, as it is in a file."""
    fields = {field.name.lower(): field for field in frame.schema.fields}
    declared = [field.name for field in struct_of(reference.columns).fields]
    if missing := [column for column in declared if column.lower() not in fields]:
        raise UsageError(
            f"the reference {name} ({reference.source}) has no column {', '.join(missing)}; it has "
            f"{', '.join(frame.columns)}",
            remedy="declare the columns that it has, or rename them there",
        )
    columns = []
    for number, name_declared in enumerate(declared):
        there = fields[name_declared.lower()]
        column = frame[f"`{there.name}`"]
        is_text = isinstance(there.dataType, StringType)
        columns.append((F.when(column != "", column) if is_text else column).alias(f"given_{number}"))
    return frame.select(*columns)


def _changed(number: int, name: str, kind: DataType) -> Column:
    """Return the column's name where the cast, or writing and reading a line, changes the value; else null."""
    given, typed, text = (F.col(f"{part}_{number}") for part in ("given", "typed", "text"))
    is_kept = typed.try_cast(kind).eqNullSafe(given)
    comes_back = F.col("back")[name].eqNullSafe(typed)
    is_broken = F.coalesce(text.rlike(_BREAKS), F.lit(False))
    return F.when(~is_kept | ~comes_back | is_broken, F.lit(name))


def _unreadable(pipeline: Pipeline, name: str, error: PySparkException | Py4JJavaError) -> TidemarkError:
    reference = pipeline.references[name]
    # What a database's driver throws may quote the connection: its text is cleaned below. A file that is missing or
    # damaged is a wrong source, for the ledger does not know it.
    known = None if isinstance(reference.source, JdbcQuery) else translate(error)
    if known is not None and not isinstance(known, ReconciliationFailed):
        return type(known)(
            f"the reference {name} ({reference.source}) cannot be read: {known.message}",
            remedy=known.remedy,
            pipeline=pipeline.name,
        )
    text = str(error.java_exception.toString()) if isinstance(error, Py4JJavaError) else str(error)
    unreachable = isinstance(reference.source, JdbcQuery) and _is_connection(error)
    if isinstance(reference.source, JdbcQuery):
        for secret in sorted(jdbc_options(reference.source.connection).values(), key=len, reverse=True):
            text = text.replace(secret, "***") if len(secret) > 2 else text
    kind = ServiceUnreachable if unreachable else UsageError
    return kind(
        f"the reference {name} ({reference.source}) cannot be read: {one_line(text)}",
        remedy="start its database, or correct the connection" if unreachable else "correct its declaration or source",
        pipeline=pipeline.name,
    )


def _is_connection(error: PySparkException | Py4JJavaError) -> bool:
    """Return whether a database could not be reached, by Spark's error class or the SQL state of its driver."""
    if isinstance(error, PySparkException):
        return (error.getCondition() or "") == "FAILED_JDBC.CONNECTION"
    thrown = error.java_exception
    while thrown is not None:
        # Only the errors of drivers have an SQL state.
        with suppress(Py4JError):
            if str(thrown.getSQLState() or "").startswith(("08", "57P0", "53")):
                return True
        thrown = thrown.getCause()
    return False
