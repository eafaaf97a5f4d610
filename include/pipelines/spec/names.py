"""Names that declarations share: identifiers, topics, and the columns that identify a row."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import NoneType, UnionType
from typing import get_args

from include.errors import UsageError
from include.pipelines.spec.ddl import Field, fields_of

_Kinds = type | UnionType

IDENTIFIER = re.compile(r"[a-z][a-z0-9_]{0,62}")

LONGEST = 63
"""Bytes of a name in PostgreSQL, which cuts longer ones off without an error: two may become one."""

LONGEST_PATH = 767
"""Characters of a partition's path that Hive's metastore keeps."""

_OF_POSTGRESQL = frozenset({"cmax", "cmin", "ctid", "tableoid", "xmax", "xmin"})
"""Columns that PostgreSQL has in every table."""

TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")

OWN_QUERIES = ("archive", "flags", "replay")
"""Tidemark's own queries beside those of views and outputs, which therefore have other names: the ledger knows a
query by its name."""

OWN_SUITE_MODULES = frozenset({"bounds", "checkpoint", "examples", "sentences", "suite_files", "usual"})
"""Tidemark's own modules of `expectations/`, where a pipeline's suite has the pipeline's name."""

IDENTITY = ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_element")
"""Columns that identify an archive row; `kafka_element` is its position inside its message, 0-based."""

TOPIC_ID = "kafka_topic_id"
"""Column of an output's table, and header of its messages, with Kafka's id of the topic: after it was deleted and
created again, offsets begin at 0 again."""

KAFKA_COLUMNS = (
    "kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT, kafka_timestamp TIMESTAMP, kafka_element INT"
)

OWN_COLUMNS = frozenset(
    {"key", "value", "headers", "fate", "reason", "detail", "date", "interval", "event_time"}
    | {f"kafka_{name}" for name in ("topic", "partition", "offset", "timestamp", "element")}
)
"""Columns that Tidemark adds to rows, or to quarantined records; no archive table has one of its own by such a name."""

OWN_PREFIX = "tidemark_"
"""How the names of further columns begin that Tidemark adds to rows while it compares, writes or checks them."""


def free_name(name: str) -> str:
    """Return a column's name, or another one where it is Tidemark's own; to Spark, case tells no names apart."""
    if name.lower().startswith(OWN_PREFIX):
        return f"_{name}"
    return f"{name}_" if name.lower() in OWN_COLUMNS else name


def check_identifier(name: str, what: str) -> None:
    """Raise UsageError unless `name` may become a table, column or folder name."""
    if len(name) > LONGEST:
        raise UsageError(f"{what} {name!r} has {len(name)} characters", remedy=f"a name of at most {LONGEST}")
    if not IDENTIFIER.fullmatch(name):
        raise UsageError(f"{what} {name!r} is not an identifier", remedy="lower case letters, digits and _")


def check_partition_columns(names: Collection[str]) -> None:
    """Raise UsageError unless a table may have these partition columns between `date` and `interval`."""
    for name in names:
        check_identifier(name, "partition column")
    shortest = path_length(dict.fromkeys(names, 1))
    if shortest > LONGEST_PATH:
        raise UsageError(
            f"a partition by {', '.join(names)} has a path of at least {shortest} characters, and Hive's metastore "
            f"keeps {LONGEST_PATH}",
            remedy="name fewer columns in partition_by, or give them shorter names",
        )


def path_length(values: Mapping[str, int]) -> int:
    """Return how many characters a partition's path has when the values of its further columns have so many."""
    own = len("date=2026-11-20/interval=2026-11-20T050000")
    return own + sum(len(f"{name}=/") + length for name, length in values.items())


def check_pipeline_name(name: str, what: str = "pipeline") -> None:
    """Raise UsageError unless a pipeline, and the modules with its functions and suites, may have this name."""
    check_identifier(name, what)
    if name in OWN_SUITE_MODULES:
        raise UsageError(
            f"the pipeline name {name!r} is that of a module of Tidemark's own: expectations/{name}.py",
            remedy="choose another name",
        )


def check_topic(topic: str) -> None:
    """Raise UsageError unless Kafka may have a topic of this name."""
    if not TOPIC.fullmatch(topic):
        raise UsageError(f"topic {topic!r} is not a Kafka topic name", remedy="1 to 249 letters, digits, '.', '_', '-'")


def check_tuple(value: object, what: str, kinds: _Kinds = object) -> None:
    """Raise UsageError for a single text or object in place of several: to Python, `("a")` is the text `"a"`.

    A text would be taken for as many names as it has letters. Each of the several is of one of these classes.
    """
    if isinstance(value, str | bytes):
        raise UsageError(f'{what} is text: write ("{value!s}",)')
    if not isinstance(value, Collection):
        kind = type(value).__name__
        written = repr(value) if isinstance(value, int | float) else f"{kind}(…)"
        raise UsageError(f"{what} is a single {kind}: write ({written},)")
    for each in value:
        check_kind(each, f"one of {what}", kinds)


def check_kind(value: object, what: str, kinds: _Kinds, write: str = "") -> None:
    """Raise UsageError, which says what to `write`, unless a value is an object of one of these classes."""
    if isinstance(value, kinds):
        return
    if callable(value):
        found = f"{getattr(value, '__name__', value)} without its brackets"
    else:
        found = repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
    known = [each for each in get_args(kinds) or (kinds,) if each is not NoneType]
    raise UsageError(f"{what} is {found}", remedy=f"write {write or ' or '.join(f'{k.__name__}(…)' for k in known)}")


def check_count(value: object, what: str) -> None:
    """Raise UsageError unless a value is a whole number from 1 on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{what} is {value!r}", remedy="write a whole number from 1 on")


def check_bounds(low: float, high: float, what: str) -> None:
    """Raise UsageError when no number lies between the two: each record would go to quarantine."""
    # Written so that NaN, which is neither smaller nor larger, is refused.
    if not low <= high:
        raise UsageError(f"{what} has the bounds {low} and {high}", remedy="write the lower one first")


def check_known(name: str, value: str, known: Collection[str]) -> None:
    """Raise UsageError unless a value is one of those that are known."""
    if value not in known:
        raise UsageError(f"{name}={value!r} is not known", remedy=f"one of: {', '.join(known)}")


def check_length(table: str, owner: str, pipeline: str) -> None:
    """Raise UsageError unless a table of a database may have this name."""
    if len(table) > LONGEST:
        raise UsageError(
            f"{owner} has the table {table}, whose name has {len(table)} characters: PostgreSQL keeps {LONGEST}",
            remedy="give it a shorter name",
            pipeline=pipeline,
        )


def check_column(name: str, owner: str, remedy: str, pipeline: str) -> None:
    """Raise UsageError unless a table of PostgreSQL may have a column of this name."""
    if len(name.encode()) > LONGEST:
        wrong = f"is longer than the {LONGEST} bytes that PostgreSQL keeps"
    elif name in _OF_POSTGRESQL:
        wrong = "PostgreSQL has for a column of its own in every table"
    else:
        return
    raise UsageError(f"{owner} has the column {name}, whose name {wrong}", remedy=remedy, pipeline=pipeline)


def flat_fields(names: Iterable[str], columns: str) -> Iterator[tuple[tuple[str, ...], Field]]:
    """Yield some of the columns as a database's table has them, each after its path: of a struct, its fields."""
    declared = {each.name: each for each in fields_of(columns)}
    for name in names:
        if declared[name].kind == "STRUCT":
            yield from (((name, part.name), part) for part in declared[name].inner)
        else:
            yield (name,), declared[name]


def check_served_columns(key: Iterable[str], measures: Collection[str], columns: str, view: str, pipeline: str) -> None:
    """Raise UsageError unless PostgreSQL can serve a view by the names of its columns.

    What it serves has more columns for each measure, such as `proved_<measure>`.
    """
    owner = f"the table of the view {view}"
    remedy = "call it otherwise, with `renamed` if the table has it already, or take JdbcTable from the view's sinks"
    flat = ["_".join(path) for path, _ in flat_fields((*key, *measures), columns)]
    for name in (*flat, *(f"proved_{measure}" for measure in measures)):
        check_column(name, owner, remedy, pipeline)
        if "%" in name:
            wrong = "with a %, which stands for a value in statements"
            raise UsageError(f"{owner} has the column {name}, {wrong}", remedy=remedy, pipeline=pipeline)
