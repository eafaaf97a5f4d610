"""Field numbers in Parquet files: Iceberg's readers find a column by its number, whatever its name.

Spark writes them only for named fields, not for elements of arrays or keys and values of maps
(`include/decisions/015-files-have-field-ids.md`). So the footer of a file that Spark has written is rewritten with all
of them; no byte before the footer changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import SparkSession

from include import lake
from include.errors import TidemarkError


def give_ids(spark: SparkSession, location: str, numbers: Mapping[str, int]) -> None:
    """Write the numbers of its fields, by their paths, into a Parquet file's footer.

    Raises TidemarkError for a field without a number.
    """
    jvm: Any = spark._jvm
    util = jvm.org.apache.parquet.format.Util

    def changed(footer: bytes) -> bytes:
        described = util.readFileMetaData(jvm.java.io.ByteArrayInputStream(bytearray(footer)))
        for path, element in _fields(iter(described.getSchema())):
            if path not in numbers:
                raise TidemarkError(
                    f"{path} in {location} has no number in the ledger", remedy="run the interval again"
                )
            element.setField_id(numbers[path])
        written = jvm.java.io.ByteArrayOutputStream()
        util.writeFileMetaData(described, written)
        return bytes(written.toByteArray())

    lake.change_footer(location, changed)


def _fields(elements: Iterator[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields with their paths; the elements of the schema are its tree in depth-first order."""
    root = next(elements)
    for _ in range(root.getNum_children()):
        yield from _field("", elements)


def _field(above: str, elements: Iterator[Any]) -> Iterator[tuple[str, Any]]:
    element = next(elements)
    # A repeated group is Parquet's layer between an array or a map and its content, not a field.
    is_layer = str(element.getRepetition_type()) == "REPEATED"
    path = above if is_layer else ".".join(part for part in (above, element.getName()) if part)
    if not is_layer:
        yield path, element
    for _ in range(element.getNum_children()):
        yield from _field(path, elements)
