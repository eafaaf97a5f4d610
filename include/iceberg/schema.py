"""Columns of an Iceberg table: the declared ones, with the ledger's numbers; they change as the declaration does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import parquet_path_to_id_mapping, pyarrow_to_schema
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.name_mapping import NameMapping, parse_mapping_from_json
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    UpdatesAndRequirements,
    UpdateTableMetadata,
)
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Properties
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
from include.catalog.columns import TAKE_BACK, Columns, inner_fields
from include.errors import OtherScale, UsageError
from include.iceberg.catalog import OWNER, location_of
from include.lake import columns_with, has_bounds
from include.pipelines.spec.ddl import Field

_MOST_DIGITS_OF_INT64 = 18
"""Decimals of more digits are never integers in Parquet."""

NAME_MAPPING = "schema.name-mapping.default"
"""Property of a table: the names by which its fields are found in files without numbers."""

_ANEW = (
    "remove the table by PyIceberg's drop_table, not by its purge_table or by another engine, which may delete the "
    "registered files; then ./tidemark doctor --repair makes it anew by the ledger's numbers"
)

_PLAIN: dict[str, Callable[[], PrimitiveType]] = {
    "BOOLEAN": BooleanType, "DATE": DateType, "BINARY": BinaryType,
    "BYTE": IntegerType, "TINYINT": IntegerType, "SHORT": IntegerType, "SMALLINT": IntegerType,
    "INT": IntegerType, "INTEGER": IntegerType, "LONG": LongType, "BIGINT": LongType,
    "FLOAT": FloatType, "REAL": FloatType, "DOUBLE": DoubleType,
    "STRING": StringType, "VARCHAR": StringType, "CHAR": StringType,
    "TIMESTAMP": TimestamptzType, "TIMESTAMP_LTZ": TimestamptzType, "TIMESTAMP_NTZ": TimestampType,
}  # fmt: skip


def schema_of(columns: Columns, numbers: Mapping[str, int]) -> Schema:
    """Return the schema of a table's columns, partition columns last; none is required, as in Hive's.

    `numbers` are those of the fields by their paths.
    """
    declared = [_field(each.name, each, each.name, numbers) for each in columns.fields]
    names = [NestedField(numbers[name], name, StringType(), required=False) for name in columns.partition_by]
    return Schema(*declared, *names)


def partition_spec(schema: Schema, columns: Columns) -> PartitionSpec:
    """Return the partitioning by the values in the folders' names."""
    fields = (
        PartitionField(schema.find_field(name).field_id, 1000 + number, IdentityTransform(), name)
        for number, name in enumerate(columns.partition_by)
    )
    return PartitionSpec(*fields)


def create(catalog: SqlCatalog, table: str, columns: Columns, numbers: Mapping[str, int], said: Properties) -> Table:
    """Create a table whose fields have these numbers. Raises TableAlreadyExistsError.

    The catalog's own way would number them again.
    """
    schema, location = schema_of(columns, numbers), location_of(table)
    spec = partition_spec(schema, columns)
    properties = {**said, NAME_MAPPING: name_mapping(schema)}
    counted = new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, location, {"format-version": "2", **properties})
    metadata = counted.model_copy(
        update={"schemas": [schema], "last_column_id": schema.highest_field_id, "partition_specs": [spec]}
    )
    at = load_location_provider(location, properties).new_table_metadata_file_location()
    ToOutputFile.table_metadata(metadata, load_file_io(catalog.properties, at).new_output(at))
    return catalog.register_table((DATABASE, table), at)


def name_mapping(schema: Schema, before: str = "") -> str:
    """Return the names by which fields are found in files without numbers, those of the mapping before included."""
    had = {each.field_id: each.names for each in parse_mapping_from_json(before)} if before else {}
    fields = []
    for each in schema.name_mapping:
        names = [*each.names, *(name for name in had.get(each.field_id, ()) if name not in each.names)]
        fields.append(each.model_copy(update={"names": names}))
    return NameMapping(fields).model_dump_json()


def follow_declaration(table: Table, pipeline: str, columns: Columns, numbers: Mapping[str, int]) -> None:
    """Give a table its declared columns: added ones and wider types, and their names in its name mapping.

    Raises UsageError for a change that an Iceberg table cannot follow.
    """
    if (wanted := _to_follow(table, pipeline, columns, numbers)) is not None:
        with table.transaction() as transaction:
            _Follow(transaction, wanted).commit()


def check_declaration(table: Table, pipeline: str, columns: Columns, numbers: Mapping[str, int]) -> None:
    """Raise UsageError when a table cannot follow the declared columns; nothing is changed."""
    _to_follow(table, pipeline, columns, numbers)


def metadata_for_file(table: Table, path: str) -> TableMetadata:
    """Return a table's metadata as PyIceberg needs it to describe one file.

    It has the file's columns by the names that they have there, because PyIceberg takes columns by names when it notes
    their bounds: a file that was written while a rename waited has a column by two names, of which the table knows one,
    and later the other one. It asks for no bounds of columns of which Python cannot hold them, PyIceberg not read or
    write them, or a row group has none: PyIceberg would take the other row groups' for the file's, and readers would
    pass over rows. For the same reason it asks for no counts of nulls where a row group has none. Raises OtherScale for
    a file whose numbers readers would misread.
    """
    with table.io.new_input(path).open() as stream:
        footer = pq.read_metadata(stream)
    described = table.metadata.model_copy(update={"schemas": _schemas_for(table, footer.schema.to_arrow_schema())})
    counted = {*columns_with(footer, _has_no_bounds), *_decimals_of_before(table, described.schema(), footer, path)}
    uncounted = columns_with(footer, lambda each: each is None or not each.has_null_count)
    modes = dict.fromkeys(counted, "counts") | dict.fromkeys(uncounted, "none")
    asked = {f"{TableProperties.METRICS_MODE_COLUMN_CONF_PREFIX}.{name}": mode for name, mode in modes.items()}
    return described.model_copy(update={"properties": {**described.properties, **asked}})


def _has_no_bounds(statistics: pq.Statistics | None) -> bool:
    """Return whether PyIceberg must not note bounds of a row group's values.

    It cuts off a long greatest text and raises the last character by one: a surrogate, which cannot be written, comes
    after U+D7FF.
    """
    if statistics is None or not has_bounds(statistics):
        return True
    return isinstance(statistics.max, str) and "\ud7ff" in statistics.max


def _decimals_of_before(table: Table, schema: Schema, footer: pq.FileMetaData, path: str) -> Iterator[str]:
    """Yield a file's decimals that were widened since, where PyIceberg would not read their bounds as they are.

    Raises OtherScale: Iceberg has no decimal of another scale than its table's. Where there are only nulls and zeros,
    the scale does not matter, and a rerun, whose rows are the same, would not replace the file.
    """
    ids = parquet_path_to_id_mapping(schema)
    for number in range(footer.num_columns):
        stored = footer.schema.column(number)
        kind = schema.find_type(ids[stored.path]) if stored.path in ids else None
        if not isinstance(kind, DecimalType):
            continue
        if stored.scale != kind.scale and not _has_only_zeros(footer, number):
            raise OtherScale(
                f"{path} was written with other decimal places: {stored.path} is decimal({stored.precision}, "
                f"{stored.scale}) in it, and {kind} in the Iceberg table {DATABASE}.{table.name()[-1]}, whose readers "
                "would misread its numbers",
                remedy="run its interval again",
                pipeline=table.properties.get(OWNER, ""),
            )
        is_integer = stored.physical_type != "FIXED_LEN_BYTE_ARRAY"
        if stored.scale != kind.scale or (is_integer and kind.precision > _MOST_DIGITS_OF_INT64):
            yield stored.path


def _has_only_zeros(footer: pq.FileMetaData, number: int) -> bool:
    """Return whether a column has no values but nulls and zeros, as far as the footer proves it."""
    for chunk in (footer.row_group(each).column(number) for each in range(footer.num_row_groups)):
        known = chunk.statistics
        if known is None or (known.null_count != chunk.num_values and not known.has_min_max):
            return False
        if known.has_min_max and (known.min or known.max):
            return False
    return True


def _schemas_for(table: Table, described: pa.Schema) -> list[Schema]:
    known = table.schema()
    if all(name in known.column_names for name in described.names):
        return table.metadata.schemas
    there = pyarrow_to_schema(described, name_mapping=known.name_mapping)
    fields = [
        known.find_field(each.field_id).model_copy(update={"name": each.name})
        if each.field_id in known.field_ids
        else each
        for each in there.fields
    ]
    others = [each for each in known.fields if each.field_id not in there.field_ids]
    schema = Schema(*fields, *others, schema_id=known.schema_id)
    return [*(each for each in table.metadata.schemas if each.schema_id != known.schema_id), schema]


class _Follow(UpdateTableMetadata["_Follow"]):
    """Sets a table's schema with the numbers that its fields have: PyIceberg's own steps would number them again."""

    def __init__(self, transaction: Transaction, schema: Schema) -> None:
        super().__init__(transaction)
        known = transaction.table_metadata
        mapping = name_mapping(schema, known.properties.get(NAME_MAPPING, ""))
        self._steps = (
            AddSchemaUpdate(schema=schema),
            SetCurrentSchemaUpdate.model_validate({"schema-id": -1}),
            SetPropertiesUpdate(updates={NAME_MAPPING: mapping}),
        )
        self._known = AssertCurrentSchemaId.model_validate({"current-schema-id": known.current_schema_id})

    def _commit(self) -> UpdatesAndRequirements:
        return self._steps, (self._known,)


def _to_follow(table: Table, pipeline: str, columns: Columns, numbers: Mapping[str, int]) -> Schema | None:
    """Return the schema that a table lacks; None if it has the declared columns. Raises UsageError."""
    declared, now, name = schema_of(columns, numbers), table.schema(), table.name()[-1]
    if [field.name for field in table.spec().fields] != list(columns.partition_by):
        raise _refused(pipeline, name, "its partition columns are not the declared ones")
    for path in declared.column_names:
        number = declared.find_field(path).field_id
        there = now.find_column_name(number)
        if there is None and path in now.column_names:
            why = f"{path} has the number {now.find_field(path).field_id} there, {number} in the ledger"
            raise _refused(pipeline, name, why, _ANEW)
        if there is not None:
            was, becomes = now.find_type(there), declared.find_type(path)
            if not _fits(was, becomes):
                raise _refused(pipeline, name, f"{path} is {was}, which does not become {becomes}")
    # Columns that are not declared, which somebody may have added, stay.
    others = [field for field in now.fields if field.field_id not in declared.field_ids]
    number = max(each.schema_id for each in table.metadata.schemas) + 1
    wanted = Schema(*declared.fields, *others, schema_id=number)
    return None if wanted.fields == now.fields else wanted


def _fits(was: IcebergType, becomes: IcebergType) -> bool:
    """Return whether files of a type can be read as another; for nested types, whether both are of one kind."""
    match was, becomes:
        case DecimalType(), DecimalType():
            # PyIceberg would change the scale too, and other readers would misread the numbers of older files.
            return was.scale == becomes.scale and was.precision <= becomes.precision
        case PrimitiveType(), PrimitiveType():
            wider = {IntegerType(): LongType(), FloatType(): DoubleType()}
            return becomes in (was, wider.get(was))
    return type(was) is type(becomes)


def _refused(pipeline: str, table: str, why: str, remedy: str = TAKE_BACK) -> UsageError:
    return UsageError(
        f"the Iceberg table {DATABASE}.{table} cannot follow its declaration: {why}",
        remedy=remedy,
        pipeline=pipeline,
    )


def _field(name: str, field: Field, path: str, numbers: Mapping[str, int]) -> NestedField:
    return NestedField(numbers[path], name, _type(field, path, numbers), required=False)


def _type(field: Field, path: str, numbers: Mapping[str, int]) -> IcebergType:
    kind = field.kind.split(" COLLATE ")[0]
    inner = [(name, f"{path}.{name}", each) for name, each in inner_fields(field)]
    match kind:
        case "STRUCT":
            return StructType(*(_field(name, each, below, numbers) for name, below, each in inner))
        case "ARRAY" | "MAP":
            parts = [(numbers[below], _type(each, below, numbers)) for _, below, each in inner]
            if kind == "ARRAY":
                return ListType(*parts[0], element_required=False)
            return MapType(*parts[0], *parts[1], value_required=False)
        case "DECIMAL" | "DEC" | "NUMERIC":
            precision, scale = (*field.arguments, *(10, 0)[len(field.arguments) :])
            return DecimalType(precision, scale)
    return _PLAIN[kind]()
