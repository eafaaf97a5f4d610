"""The columns of a served view in PostgreSQL, from its declaration."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from include.errors import UsageError
from include.pipelines.spec import AdditiveView, JdbcTable, Pipeline
from include.pipelines.spec.ddl import Field
from include.pipelines.spec.names import check_length, check_served_columns, flat_fields
from include.settings import settings

PLAIN_TYPES = {
    "BOOLEAN": "boolean",
    "TINYINT": "smallint",
    "BYTE": "smallint",
    "SMALLINT": "smallint",
    "SHORT": "smallint",
    "INT": "integer",
    "INTEGER": "integer",
    "BIGINT": "bigint",
    "LONG": "bigint",
    "DATE": "date",
}
"""PostgreSQL's type for each of Spark's that holds the same values; MariaDB knows it by the same name."""

DECIMALS = ("DECIMAL", "DEC", "NUMERIC")

_TYPES = {
    **PLAIN_TYPES,
    "STRING": "text",
    "DOUBLE": "double precision",
    "TIMESTAMP": "timestamptz",
    "TIMESTAMP_LTZ": "timestamptz",
}


@dataclass(frozen=True)
class Column:
    """A column of a served view."""

    name: str
    kind: str
    """PostgreSQL's type."""
    path: tuple[str, ...]
    """Its path in a row of the view: the column, and below it the part of a struct."""

    @property
    def total(self) -> str:
        """For a measure, the type of its sum over intervals."""
        return f"numeric(38{self.kind[self.kind.index(',') :]}" if self.kind.startswith("numeric") else "bigint"


@dataclass(frozen=True)
class Shape:
    """A served view."""

    table: str
    keys: tuple[Column, ...]
    """A struct of the key, such as the window, as a column for each of its parts."""
    measures: tuple[Column, ...]
    start: str
    """The column of the window's start; empty without a window."""
    end: str
    has_live: bool
    """Whether the stream keeps the speed view's values in a table."""
    only_changes: bool = field(default=False, compare=False)
    """Whether the stream writes the keys that changed alone: a table that was lost would lack all others for ever."""
    formerly: Mapping[str, Sequence[str]] = field(default_factory=dict, compare=False)
    """Renamed columns with the names that older files have them by."""
    pipeline: str = field(default="", compare=False)
    stored: Mapping[str, str] | None = field(default=None, compare=False)
    """Measures that the stream's table has, with its names for them; None: all, by their own."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """Keys and measures."""
        return (*self.keys, *self.measures)

    @property
    def is_total(self) -> bool:
        """Whether the view has no window."""
        return not self.start

    def stored_as(self, measure: Column) -> str:
        """Return by which name the stream's table has a measure; empty without it."""
        return measure.name if self.stored is None else self.stored.get(measure.name, "")

    @property
    def counting(self) -> Column | None:
        """The first measure that the stream's table has: by it the layers are compared. None when it has none yet."""
        return next((each for each in self.measures if self.stored_as(each)), None)

    def own(self, name: str, beside: Collection[str] = ()) -> str:
        """Return the name of a column that Tidemark adds; another one if the view, or `beside`, has that name."""
        while name in {*(each.name for each in self.columns), *beside}:
            name = f"tidemark_{name}"
        return name

    @property
    def version(self) -> str:
        """The column of the stream's table with the micro-batch that changed a row last."""
        return self.own("version")

    @property
    def interval(self) -> str:
        """The column of partial values with their interval."""
        return self.own("tidemark_interval")

    @property
    def intervals(self) -> str:
        """The column of both layers' keys with the number of intervals that have rows of the key."""
        return self.own("intervals")

    def proved(self, measure: Column) -> str:
        """Return, as an identifier, the column of both layers' keys with the proved value of a measure."""
        return quoted(self.own(f"p_{measure.name}"))

    def live(self, measure: Column) -> str:
        """Return, as an identifier, the column of both layers' keys with the live value of a measure."""
        return quoted(self.own(f"l_{measure.name}"))


def shape_of(pipeline: Pipeline, view: AdditiveView) -> Shape:
    """Return the view's shape.

    Raises UsageError for a column of a type that its tables cannot hold, for a name that PostgreSQL would cut or
    refuse, and when a part of a struct is named like another column.
    """
    check_length(pipeline.view_table(view), f"the view {view.name!r}", pipeline.name)
    keys, measures = (
        tuple(
            Column("_".join(path), _kind(field, path[0], pipeline, view), path)
            for path, field in flat_fields(named, view.columns)
        )
        for named in (view.key, view.measures)
    )
    check_served_columns(view.key, view.measures, view.columns, view.name, pipeline.name)
    _check_apart([*keys, *measures], pipeline, view)
    return Shape(
        pipeline.view_table(view),
        keys,
        measures,
        f"{view.window}_start" if view.window else "",
        f"{view.window}_end" if view.window else "",
        any(isinstance(sink, JdbcTable) for sink in view.sinks),
        view.mode == "update",
        view.formerly,
        pipeline.name,
    )


def _check_apart(columns: Iterable[Column], pipeline: Pipeline, view: AdditiveView) -> None:
    paths: dict[str, str] = {}
    for each in columns:
        path = ".".join(each.path)
        if each.name in paths:
            raise UsageError(
                f"the table of the view {view.name} has two columns {each.name}, of {paths[each.name]} and of {path}",
                remedy=f"rename one of them in include/pipelines/{pipeline.code}.py",
                pipeline=pipeline.name,
            )
        paths[each.name] = path


def served_shapes(pipeline: Pipeline) -> dict[str, Shape]:
    """Return by name the shapes of the views that are to be served: those with a `JdbcTable`, or by the setting all."""
    shapes = possible_shapes(pipeline)
    return shapes if settings().serve == "all" else {name: each for name, each in shapes.items() if each.has_live}


def possible_shapes(pipeline: Pipeline) -> dict[str, Shape]:
    """Return the shapes of the pipeline's views by name, without those of types, or names, that PostgreSQL cannot hold.

    The stream reports such a view if it has a `JdbcTable`.
    """
    shapes = {}
    for view in pipeline.views:
        with suppress(UsageError):
            shapes[view.name] = shape_of(pipeline, view)
    return shapes


def _kind(field: Field, column: str, pipeline: Pipeline, view: AdditiveView) -> str:
    if field.kind in DECIMALS:
        precision, scale = (*(field.arguments or (10,)), 0)[:2]
        return f"numeric({precision},{scale})"
    if field.kind in _TYPES:
        return _TYPES[field.kind]
    raise UsageError(
        f"column {column} of the view {view.name} is {field.kind.lower()}, which its table cannot hold",
        remedy=f"one of {', '.join(dict.fromkeys(each.lower() for each in _TYPES))}, decimal, or a struct of these",
        pipeline=pipeline.name,
    )


def quoted(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def names(columns: Iterable[str]) -> str:
    """Return names as a list of identifiers."""
    return ", ".join(map(quoted, columns))
