"""Measures in their declared types, wherever they leave Tidemark: in topics, tables, bases and files."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from include.pipelines.spec import AdditiveView, Pipeline
from spark_jobs.spark.failures import OUTGROWN
from spark_jobs.spark.schemas import struct_of


def declared_measures(pipeline: Pipeline, view: AdditiveView, values: DataFrame) -> DataFrame:
    """Return the values with each measure in the type that the view declares; other columns stay as they are.

    An aggregate may return a wider type, and so does a sum of parts. Computing a value that the declared type does not
    hold ends with the UsageError that `translate` returns: as a null or 0 it would be a wrong number.
    """
    declared = struct_of(view.columns)
    # As in Spark, names that differ in case alone are one.
    kinds = {each.name.lower(): each.dataType for each in values.schema.fields}
    wider = [name for name in view.measures if kinds[name.lower()] != declared[name].dataType]
    if not wider:
        return values
    return values.withColumns({name: _fitting(pipeline, view, name, declared[name].dataType) for name in wider})


def _fitting(pipeline: Pipeline, view: AdditiveView, name: str, declared: DataType) -> Column:
    value, fitting = F.col(name), F.col(name).try_cast(declared)
    before = f"{OUTGROWN}: {pipeline.name}: the measure {name} of the view {view.name} is "
    after = f", and is declared as {declared.simpleString()}, which does not hold it"
    raised = F.raise_error(F.concat(F.lit(before), value.cast("string"), F.lit(after)))
    return F.coalesce(fitting, F.when(value.isNotNull(), raised.cast(declared)))
