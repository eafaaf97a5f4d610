"""An output's rows for a table of a database: effectively once (`include/outputs/table.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from include.ledger.archive.row_outputs import Refused, Unsent
from include.ledger.outputs.targets import Reached
from include.ledger.streams import writers
from include.outputs.dialects import NESTED
from include.outputs.table import OutputTable
from include.pipelines.spec import IDENTITY, DatabaseTable, Pipeline, Rows
from spark_jobs.outputs.frames import AS_JSON, each_in_order

_DRIVER_TYPES = ("string", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "binary")
"""Types that database drivers support; other values, which may be out of a driver's range, are passed as text."""


@dataclass
class TableTarget:
    """Writes the rows by their coordinates."""

    pipeline: Pipeline
    output: Rows
    to: DatabaseTable
    lease: writers.Lease

    def __post_init__(self) -> None:
        self._table = OutputTable(self.pipeline, self.output, self.to, self.lease, lambda: writers.renew(self.lease))

    def send(self, rows: DataFrame, unsent: Unsent) -> tuple[int, Sequence[Refused]]:
        """Write the rows; return their number, and the rows that the table refuses.

        Raises AnotherWriter, ServiceUnreachable, TidemarkError, UsageError for two rows of the same coordinates.
        """
        return self._table.merge(self._values(rows, unsent), unsent)

    def reached(self) -> Reached:
        """Return up to where the table has rows. Raises what `OutputTable.reached` raises."""
        return self._table.reached()

    def _values(self, rows: DataFrame, unsent: Unsent) -> Iterator[Sequence[object]]:
        own = [_value(field).alias(f"c{n}") for n, field in enumerate(rows.schema.fields) if field.name not in IDENTITY]
        for row in each_in_order(self.pipeline, self.output, rows.select(*own, *IDENTITY), unsent):
            *values, topic, partition, offset, element = row
            yield [*values, topic, unsent.topic_ids[topic], partition, offset, element]


def _value(field: StructField) -> Column:
    kind = field.dataType.simpleString()
    column = F.col(f"`{field.name}`")
    if kind.partition("<")[0].upper() in NESTED:
        return F.to_json(column, AS_JSON)
    return column if kind in _DRIVER_TYPES else column.cast("string")
