"""Columns of an Iceberg table, from the declared ones; added and widened as the declaration is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from include.catalog import DATABASE
from include.catalog.columns import Columns
from include.errors import UsageError
from include.pipelines.spec.ddl import Field

_PLAIN: dict[str, Callable[[], PrimitiveType]] = {
    "BOOLEAN": BooleanType, "DATE": DateType, "BINARY": BinaryType,
    "BYTE": IntegerType, "TINYINT": IntegerType, "SHORT": IntegerType, "SMALLINT": IntegerType,
    "INT": IntegerType, "INTEGER": IntegerType, "LONG": LongType, "BIGINT": LongType,
    "FLOAT": FloatType, "REAL": FloatType, "DOUBLE": DoubleType,
    "STRING": StringType, "VARCHAR": StringType, "CHAR": StringType,
    "TIMESTAMP": TimestamptzType, "TIMESTAMP_LTZ": TimestamptzType, "TIMESTAMP_NTZ": TimestampType,
}  # fmt: skip


def schema_of(columns: Columns) -> Schema:
    """Return the schema of a table's columns, those that name partitions last; none is required, as in Hive's."""
    ids = count(1)
    declared = tuple(_fields(columns.fields, ids))
    names = tuple(NestedField(next(ids), name, StringType(), required=False) for name in columns.partition_by)
    return Schema(*declared, *names)


def partition_spec(schema: Schema, columns: Columns) -> PartitionSpec:
    """Return the partitioning by the values that stand in the folders' names."""
    fields = (
        PartitionField(schema.find_field(name).field_id, 1000 + number, IdentityTransform(), name)
        for number, name in enumerate(columns.partition_by)
    )
    return PartitionSpec(*fields)


def follow_declaration(table: Table, pipeline: str, columns: Columns) -> None:
    """Give a table its declared columns: added ones and wider types, and their names in its name mapping.

    Raises UsageError for a change that an Iceberg table cannot follow.
    """
    if not _is_followed(table, columns):
        _followed(table, pipeline, columns).commit_transaction()


def check_declaration(table: Table, pipeline: str, columns: Columns) -> None:
    """Raise UsageError when a table cannot follow the declared columns; nothing is changed."""
    if not _is_followed(table, columns):
        _followed(table, pipeline, columns)


def _is_followed(table: Table, columns: Columns) -> bool:
    wanted, now = schema_of(columns), table.schema()
    if set(wanted.column_names) - set(now.column_names):
        return False
    types = ((wanted.find_type(path), now.find_type(path)) for path in wanted.column_names)
    of_partitions = [field.name for field in table.spec().fields] == list(columns.partition_by)
    return of_partitions and all(a == b for a, b in types if isinstance(a, PrimitiveType))


def _followed(table: Table, pipeline: str, columns: Columns) -> Transaction:
    """Return an open transaction in which the table has the declared columns."""
    wanted, name = schema_of(columns), table.name()[-1]
    if [field.name for field in table.spec().fields] != list(columns.partition_by):
        raise _refused(pipeline, name, "its partition columns are not the declared ones")
    transaction = table.transaction()
    try:
        with transaction.update_schema() as update:
            update.union_by_name(wanted)
    except (ValueError, TypeError) as error:
        raise _refused(pipeline, name, " ".join(str(error).split())) from None
    before, now = table.schema(), transaction.table_metadata.schema()
    for path in wanted.column_names:
        declared, kept = wanted.find_type(path), now.find_type(path)
        if path in before.column_names and isinstance(was := before.find_type(path), DecimalType):
            # PyIceberg changes the scale, too, by which other readers read the numbers of older files wrong.
            kept = declared if isinstance(declared, DecimalType) and declared.scale == was.scale else was
        # Types that cannot be widened are left as they are.
        if isinstance(declared, PrimitiveType) and declared != kept:
            raise _refused(pipeline, name, f"{path} is {kept}, which does not become {declared}")
    return transaction


def _refused(pipeline: str, table: str, why: str) -> UsageError:
    return UsageError(
        f"the Iceberg table {DATABASE}.{table} cannot follow its declaration: {why}",
        remedy="take the change back, or declare a pipeline of another name, which gets tables of its own",
        pipeline=pipeline,
    )


def _fields(fields: Sequence[Field], ids: Iterator[int]) -> Iterator[NestedField]:
    for each in fields:
        number = next(ids)
        yield NestedField(number, each.name, _type(each, ids), required=False)


def _type(field: Field, ids: Iterator[int]) -> IcebergType:
    kind = field.kind.split(" COLLATE ")[0]
    match kind:
        case "STRUCT":
            return StructType(*_fields(field.inner, ids))
        case "ARRAY":
            return ListType(next(ids), _type(field.inner[0], ids), element_required=False)
        case "MAP":
            key, value = next(ids), next(ids)
            return MapType(key, _type(field.inner[0], ids), value, _type(field.inner[1], ids), value_required=False)
        case "DECIMAL" | "DEC" | "NUMERIC":
            precision, scale = (*field.arguments, *(10, 0)[len(field.arguments) :])
            return DecimalType(precision, scale)
    return _PLAIN[kind]()
