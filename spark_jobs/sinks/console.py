"""A speed view's changed rows on standard output, micro-batch by micro-batch, to watch a stream."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.errors import one_line
from include.pipelines.spec import AdditiveView, Console, Pipeline


@dataclass(frozen=True)
class ConsoleTarget:
    """Prints the first rows of each micro-batch, those with the largest first measure first."""

    pipeline: Pipeline
    view: AdditiveView
    sink: Console

    def write(self, values: DataFrame, version: int) -> None:
        """Print the values; control characters of the data never reach the terminal."""
        measures = self.view.measures
        shown = values.select("key", *measures).orderBy(F.desc(measures[0]), "key").limit(self.sink.rows).collect()
        lines = [f"{self.pipeline.name}.{self.view.name}, version {version}: {values.count()} rows"]
        for row in shown:
            held = ", ".join(f"{name} {row[name]}" for name in measures)
            lines.append(f"  {one_line(row['key'])}: {held}")
        print("\n".join(lines), flush=True)

    def replace(self, values: DataFrame, version: int) -> None:
        """Print all values, up to the declared number."""
        self.write(values, version)
