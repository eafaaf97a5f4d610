"""A speed view's rows in a PostgreSQL table: one row per key, upserted in one transaction per micro-batch.

The table `<pipeline>_<view>` in the database `serving` has the key's columns (a window as `window_start` and
`window_end`), the measures, and `version`, that of the micro-batch which changed them last (`tidemark_version` where
a key has that name). A null in a key is a value of its own. `include/serving/live_rows.py` writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from include.ledger.patience import tried_again
from include.pipelines.spec import AdditiveView, Pipeline
from include.serving.live_rows import merge
from include.serving.shape import Shape, shape_of
from spark_jobs.views.values import key_columns

_COUNTED: dict[str, Callable[[Column], Column]] = {"date": F.unix_date, "timestamptz": F.unix_micros}
"""Dates and times are passed as numbers: they may be out of Python's range."""


@dataclass(frozen=True)
class JdbcTableTarget:
    """Upserts the changed keys of a micro-batch: effectively once, whatever is killed."""

    pipeline: Pipeline
    view: AdditiveView
    check_lease: Callable[[], object]

    @property
    def table(self) -> str:
        """The table's name."""
        return self.pipeline.view_table(self.view)

    def write(self, values: DataFrame, version: int) -> None:
        """Upsert the values. Raises ServiceUnreachable when PostgreSQL is away for longer than the process waits."""
        self._merge(values, version)

    def replace(self, values: DataFrame, version: int) -> None:
        """Replace the table's rows by the values. Raises what `check_lease` raises."""
        self._merge(values, version, replace=True, check=self.check_lease)

    def _merge(self, values: DataFrame, version: int, **how: Any) -> None:
        # Where an earlier try was committed, the table has the version, and nothing is written unless it is replaced.
        tried_again(lambda: merge(self._shape, self._rows(values), version, **how))

    @cached_property
    def _shape(self) -> Shape:
        """The table's columns. Raises UsageError for a type that it cannot hold."""
        return shape_of(self.pipeline, self.view)

    def _rows(self, values: DataFrame) -> Iterator[Row]:
        # Computed only when the first row is requested: a micro-batch that was written before is not computed again.
        yield from values.select(*self._flat()).toLocalIterator()

    def _flat(self) -> list[Column]:
        """Return the values of the table's columns, out of key and measures."""
        keys = dict(zip(self.view.key, key_columns(self.view, F.col("key")), strict=True))
        flat = []
        for number, column in enumerate(self._shape.columns):
            name, *parts = column.path
            value = keys[name] if name in keys else F.col(name)
            for part in parts:
                value = value[part]
            if to := _COUNTED.get(column.kind):
                value = to(value)
            flat.append(value.alias(f"c{number}"))
        return flat
