"""Compare a table's columns in the catalog with the declared ones: what the catalog follows, and what is refused.

Every registered file stays as it was written, and all are read as one table. So a column may be added, which is null
in older files, and a type may become one that holds all of its values and with which readers can read the older files
too (`_WIDER`). Readers find columns by name, so their order is free.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from include.errors import UsageError
from include.pipelines.spec import KAFKA_COLUMNS, AdditiveView, Pipeline
from include.pipelines.spec.ddl import Field, fields_of
from include.pipelines.spec.file_formats import TEXT_FORMATS

_SAME = {
    "BYTE": "TINYINT", "SHORT": "SMALLINT", "INTEGER": "INT", "LONG": "BIGINT", "REAL": "FLOAT", "DEC": "DECIMAL",
    "NUMERIC": "DECIMAL", "VARCHAR": "STRING", "CHAR": "STRING", "CHARACTER": "STRING", "TIMESTAMP_LTZ": "TIMESTAMP",
    "TIMESTAMP WITH LOCAL TIME ZONE": "TIMESTAMP", "TIMESTAMP WITHOUT TIME ZONE": "TIMESTAMP_NTZ",
}  # fmt: skip
"""Aliases of types."""

_WIDER: Mapping[str, frozenset[str]] = {
    "TINYINT": frozenset({"SMALLINT", "INT", "BIGINT"}),
    "SMALLINT": frozenset({"INT", "BIGINT"}),
    "INT": frozenset({"BIGINT"}),
    "FLOAT": frozenset({"DOUBLE"}),
}
"""Types as which Spark, pyarrow and DuckDB read Parquet files of a type, values unchanged; so they do wider decimals.

DATE has none: Spark reads it as TIMESTAMP_NTZ, pyarrow unifies it with no timestamp.
"""

TAKE_BACK = "take the change back, or declare a pipeline of another name, which gets tables of its own"
"""What to do about a change that tables cannot follow."""


@dataclass(frozen=True)
class ColumnChange:
    """A column, or a field inside of one, whose type in the catalog is not the declared one."""

    column: str
    before: str
    """Its type in the catalog; empty where it has none."""
    now: str
    """Its declared type; empty where none is declared."""
    was: str = ""
    """Its name in the catalog, where that is another one."""

    def __str__(self) -> str:
        if self.was:
            return f"{self.was} becomes {self.column}"
        if not self.before:
            return f"{self.column} {self.now} is new"
        if not self.now:
            return f"{self.column} {self.before} is not declared any more"
        return f"{self.column} is {self.before} in the catalog, declared is {self.now}"


@dataclass(frozen=True)
class ColumnChanges:
    """What the declaration changes in a table's columns."""

    followed: tuple[ColumnChange, ...] = ()
    """Added and renamed columns, and widened types."""
    refused: tuple[ColumnChange, ...] = ()
    moved: bool = False
    """Whether the same columns stand in another order."""

    @property
    def lag(self) -> str:
        """How the catalog lags behind the declaration; empty when it does not."""
        followed = "; ".join(str(each) for each in self.followed)
        return followed or ("the columns stand in another order" if self.moved else "")


@dataclass(frozen=True)
class Columns:
    """A table's columns."""

    fields: tuple[Field, ...]
    """Without the partition columns."""
    partition_by: tuple[str, ...]


def declared_columns(pipeline: Pipeline, table: str) -> Columns:
    """Return the declared columns of one of the pipeline's tables."""
    if table == pipeline.table:
        columns = fields_of(f"{pipeline.archive_columns}, {KAFKA_COLUMNS}")
        return Columns(columns, (*pipeline.archive.partition_columns, "interval"))
    return Columns(fields_of(_view(pipeline, table).columns), ("interval",))


def declared_types(pipeline: Pipeline) -> dict[str, dict[str, str]]:
    """Return the declared columns of each of the pipeline's tables with their types, as Spark writes them."""
    return {
        table: {each.name: type_name(each) for each in declared_columns(pipeline, table).fields}
        for table in pipeline.tables
    }


def paths_of(columns: Columns) -> list[str]:
    """Return the paths of all fields, down into nested ones; partition columns last."""
    return [path for each in columns.fields for path in _paths(each.name, each)] + list(columns.partition_by)


def _paths(path: str, field: Field) -> Iterator[str]:
    yield path
    for name, inner in inner_fields(field):
        yield from _paths(f"{path}.{name}", inner)


def inner_fields(field: Field) -> list[tuple[str, Field]]:
    """Return the fields inside of one by their names; an array's element and a map's key and value have one, too."""
    match kind_of(field):
        case "ARRAY":
            return [("element", field.inner[0])]
        case "MAP":
            return [("key", field.inner[0]), ("value", field.inner[1])]
    return [(each.name, each) for each in field.inner]


def _view(pipeline: Pipeline, table: str) -> AdditiveView:
    return next(view for view in pipeline.views if pipeline.view_table(view) == table)


def columns_of_json(schema: str, partition_by: Sequence[str]) -> Columns:
    """Return a table's columns from Spark's JSON schema of all of them."""
    fields = _of_json("", json.loads(schema)).inner
    return Columns(tuple(each for each in fields if each.name not in partition_by), tuple(partition_by))


def column_changes(
    pipeline: Pipeline, table: str, stored: Columns, shown: Mapping[str, str] | None = None
) -> ColumnChanges:
    """Compare the columns that a table has in the catalog with the declared ones.

    `shown`: declared columns that it has to show by a former name yet (`include/catalog/renames.py`).
    """
    keep: Keep = "nothing"
    if table == pipeline.table:
        file_format = pipeline.archive.file_format
        keep = "columns" if file_format in TEXT_FORMATS else "types" if file_format != "parquet" else keep
        keep = "types" if pipeline.archive.delta and keep == "nothing" else keep
    declared = declared_columns(pipeline, table)
    becoming = _becoming(pipeline, table, stored, shown or {})
    found = changes(named(stored, becoming), named(declared, shown or {}), keep)
    types = {each.name: type_name(each) for each in declared.fields}
    renamed = (ColumnChange(name, types[name], types[name], was) for was, name in becoming.items())
    return replace(found, followed=(*renamed, *found.followed))


def _becoming(pipeline: Pipeline, table: str, stored: Columns, shown: Mapping[str, str]) -> dict[str, str]:
    """Return the columns in the catalog that get another name now, with that name."""
    names = {each.name for each in stored.fields}
    return {
        was: name
        for name, before in pipeline.formerly(table).items()
        if name not in names and name not in shown
        for was in [each for each in before if each in names][:1]
    }


def named(columns: Columns, names: Mapping[str, str]) -> Columns:
    """Return columns, of which some have another name."""
    fields = tuple(replace(each, name=names.get(each.name, each.name)) for each in columns.fields)
    return Columns(fields, columns.partition_by)


Keep = Literal["nothing", "types", "columns"]
"""What must stay because of the files: Delta's, and those of formats other than Parquet, are read with the types they
were written with, text files with the columns they were written with."""


def changes(stored: Columns, declared: Columns, keep: Keep = "nothing") -> ColumnChanges:
    """Compare columns in the catalog with declared ones."""
    differences = [
        (change, fits and (keep == "nothing" or (keep == "types" and not change.before)))
        for change, fits in _compared(stored.fields, declared.fields)
    ]
    before, now = (", ".join(each.partition_by) for each in (stored, declared))
    if before != now:
        differences.append((ColumnChange("the list of partition columns", f"({before})", f"({now})"), False))
    names = [[each.name for each in columns.fields] for columns in (stored, declared)]
    common = [[name for name in names[n] if name in names[1 - n]] for n in (0, 1)]
    moved = common[0] != common[1]
    if moved and keep == "columns":
        differences.append((ColumnChange("the order", ", ".join(common[0]), ", ".join(common[1])), False))
    return ColumnChanges(
        followed=tuple(each for each, fits in differences if fits),
        refused=tuple(each for each, fits in differences if not fits),
        moved=moved,
    )


def check_columns(
    pipeline: Pipeline, table: str, stored: Columns, shown: Mapping[str, str] | None = None
) -> ColumnChanges:
    """Return what the catalog has to follow. Raises UsageError for a change that registered files cannot follow."""
    to_follow = column_changes(pipeline, table, stored, shown)
    if to_follow.refused:
        raise refusal(pipeline.name, table, to_follow.refused)
    return to_follow


def refusal(pipeline: str, table: str, refused: Sequence[ColumnChange]) -> UsageError:
    """Return the error of a declaration that registered files cannot follow."""
    return UsageError(
        f"lake.{table} has registered files with other columns: {described(refused)}",
        remedy=TAKE_BACK,
        pipeline=pipeline,
    )


def described(refused: Sequence[ColumnChange]) -> str:
    """Return the first of the changes in words, and how many more there are."""
    listed = "; ".join(str(each) for each in refused[:3])
    return listed + (f"; and {len(refused) - 3} more" if len(refused) > 3 else "")


def _compared(
    stored: Sequence[Field], declared: Sequence[Field], above: str = ""
) -> Iterator[tuple[ColumnChange, bool]]:
    """Yield each changed field with whether older files can be read as it is declared now."""
    before, now = ({each.name: each for each in fields} for fields in (stored, declared))
    for name, field in before.items():
        path = f"{above}{name}"
        if name not in now:
            yield ColumnChange(path, type_name(field), ""), False
        else:
            yield from _compared_types(path, field, now[name])
    for name, field in now.items():
        if name not in before:
            yield ColumnChange(f"{above}{name}", "", type_name(field)), True


def _compared_types(path: str, before: Field, now: Field) -> Iterator[tuple[ColumnChange, bool]]:
    kinds = kind_of(before), kind_of(now)
    match kinds:
        case ("STRUCT", "STRUCT"):
            yield from _compared(before.inner, now.inner, f"{path}.")
        case ("ARRAY", "ARRAY"):
            yield from _compared_types(f"{path}.element", before.inner[0], now.inner[0])
        case ("MAP", "MAP") if type_name(before.inner[0]) == type_name(now.inner[0]):
            yield from _compared_types(f"{path}.value", before.inner[1], now.inner[1])
        case _ if type_name(before) != type_name(now):
            yield ColumnChange(path, type_name(before), type_name(now)), _is_wider(before, now)


def _is_wider(before: Field, now: Field) -> bool:
    if kind_of(before) == kind_of(now) == "DECIMAL":
        (precision, scale), (new_precision, new_scale) = _decimal(before), _decimal(now)
        return new_scale >= scale and new_precision - new_scale >= precision - scale
    return kind_of(now) in _WIDER.get(kind_of(before), ())


def kind_of(field: Field) -> str:
    """Return a field's type by the word that Spark stores, in upper case and without collation and numbers."""
    return _SAME.get(field.kind.split(" COLLATE ")[0], field.kind.split(" COLLATE ")[0])


def _decimal(field: Field) -> tuple[int, int]:
    precision, scale = (*field.arguments, *(10, 0)[len(field.arguments) :])
    return precision, scale


def type_name(field: Field) -> str:
    """Return a field's type as Spark writes it, e.g. `array<decimal(12,2)>`."""
    kind = kind_of(field)
    if kind == "DECIMAL":
        return "decimal({},{})".format(*_decimal(field))
    inner = [f"{each.name}:{type_name(each)}" if kind == "STRUCT" else type_name(each) for each in field.inner]
    return kind.lower() + (f"<{','.join(inner)}>" if field.inner else "")


def _of_json(name: str, described: Any) -> Field:
    """Return the field for a type in Spark's JSON."""
    match described:
        case {"type": "struct", "fields": fields}:
            return Field(name, "STRUCT", tuple(_of_json(each["name"], each["type"]) for each in fields))
        case {"type": "array", "elementType": element}:
            return Field(name, "ARRAY", (_of_json("", element),))
        case {"type": "map", "keyType": key, "valueType": value}:
            return Field(name, "MAP", (_of_json("", key), _of_json("", value)))
    (parsed,) = fields_of(f"`_` {described}")
    return Field(name, parsed.kind, parsed.inner, parsed.arguments)
