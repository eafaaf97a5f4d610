"""Columns as Spark's DDL declares them, read without Spark: names and types, down into nested ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from include.errors import UsageError

_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|'(?:[^'\\]|\\.)*'|\x22(?:[^\x22\\]|\\.)*\x22|(\w+)|([<>(),:]))")

_TYPE = re.compile(
    r"BOOLEAN|BYTE|TINYINT|SHORT|SMALLINT|INT|INTEGER|LONG|BIGINT|FLOAT|REAL|DOUBLE|DATE|BINARY|VARIANT|VOID"
    r"|(DEC|DECIMAL|NUMERIC)(\(([1-9]|[12]\d|3[0-8])(, ?\d+)?\))?"
    r"|TIMESTAMP(_NTZ|_LTZ| WITHOUT TIME ZONE| WITH LOCAL TIME ZONE)?|TIME(\(\d\))?"
    r"|(STRING|(CHAR|CHARACTER|VARCHAR)\(\d+\))( COLLATE .+)?"
    r"|INTERVAL( (YEAR|MONTH|DAY|HOUR|MINUTE|SECOND)( TO (MONTH|HOUR|MINUTE|SECOND))?)?"
    r"|(GEOMETRY|GEOGRAPHY)\b.*|(ARRAY|MAP)<>|STRUCT(<>)?"
)
"""A type of Spark as `_spelled` writes it."""

_OF_TABLES_ALONE = frozenset({"CHAR", "CHARACTER", "VARCHAR"})
"""Types that `from_json`, `from_csv` and functions in Python refuse; outside of tables, a cast to one gives STRING."""

_NOT_STORED = frozenset({"INTERVAL", "TIME", "VARIANT"})
"""Types of which Spark writes no files, or, of a VARIANT, makes no hash: intervals could not be compared."""


@dataclass(frozen=True)
class Field:
    """A column, or a part of one; a list's element and a map's key and value have no name."""

    name: str
    kind: str
    """The type in upper case, e.g. DECIMAL, with the words that follow it, except NOT NULL and a comment."""
    inner: tuple[Field, ...] = ()
    arguments: tuple[int, ...] = ()
    """The numbers in brackets: 12 and 2 of DECIMAL(12, 2)."""


def fields_of(columns: str) -> tuple[Field, ...]:
    """Return the declared columns. Raises UsageError for text that is not a list of columns."""
    reader = _Reader(columns)
    found = reader.fields()
    reader.expect("")
    return found


_RENAME = "rename one; names that differ in case alone are the same"


def check_apart(fields: Iterable[Field], what: str, remedy: str = _RENAME) -> None:
    """Raise UsageError when two of these columns have one name: to Spark, names that differ in case alone are one."""
    seen: dict[str, str] = {}
    for each in fields:
        if each.name and each.name.lower() in seen:
            raise UsageError(
                f"{what} has the columns {seen[each.name.lower()]} and {each.name}, which are one column to Spark",
                remedy=remedy,
            )
        seen[each.name.lower()] = each.name


def check_stored(columns: str, what: str) -> None:
    """Raise UsageError for columns that no file of a table can hold, or that readers cannot name."""
    declared = fields_of(columns)
    _check_spelling(columns, what)
    _check_types(declared, what)
    for each in declared:
        if "." in each.name:
            raise UsageError(
                f"{what} has the column {each.name!r}: a dot leads to a field inside of a column",
                remedy=f"call it {each.name.replace('.', '_')}",
            )
    _check_structs(declared, what)


def check_types(columns: str, what: str) -> None:
    """Raise UsageError for a type that Spark does not have, or not outside of tables, at any depth.

    Not by the reader itself, for the reason of `_check_spelling`.
    """
    _check_types(fields_of(columns), what)


def _check_types(fields: Iterable[Field], what: str, above: str = "") -> None:
    for each in fields:
        path = ".".join(part for part in (above, each.name) if part)
        if not _TYPE.fullmatch(spelled := _spelled(each)):
            raise UsageError(
                f"{what} has the column {path} of the type {spelled.removesuffix('<>')}, which Spark does not have",
                remedy="write STRING, BIGINT, DOUBLE, DECIMAL(12, 2), BOOLEAN, DATE, TIMESTAMP, ARRAY<…>, "
                "MAP<STRING, …>, STRUCT<name: …> or another one of Spark's",
            )
        if each.kind.split(" ")[0] in _OF_TABLES_ALONE:
            raise UsageError(
                f"{what} has the column {path} of the type {spelled}, which Spark knows in tables alone: it reads none "
                "from messages, and no function returns one",
                remedy="write STRING; the rule MaxBytes bounds its length",
            )
        _check_types(each.inner, what, path)


def _spelled(field: Field) -> str:
    word, *further = field.kind.split(" ")
    numbers = f"({', '.join(map(str, field.arguments))})" if field.arguments else ""
    return " ".join([f"{word}{'<>' if field.inner else ''}{numbers}", *further])


def _check_structs(fields: tuple[Field, ...], what: str) -> None:
    check_apart(fields, what)
    for each in fields:
        if each.kind == "STRUCT" and not each.inner:
            raise UsageError(
                f"{what} has a STRUCT without fields{f', {each.name}' if each.name else ''}: no file can hold it",
                remedy="declare its fields, or STRING, or leave it out",
            )
        # Without a number, a place may have any of the reference systems.
        is_any = each.kind in ("GEOMETRY", "GEOGRAPHY") and not each.arguments
        if each.kind in _NOT_STORED or is_any or (each.kind == "MAP" and " COLLATE " in each.inner[0].kind):
            raise UsageError(
                f"{what} has the column {each.name or 'inside of one'} of the type {_spelled(each)}, which cannot be "
                "stored and compared",
                remedy="let the function that returns it make another type of it, e.g. STRING",
            )
        _check_structs(each.inner, what)


def check_path(path: str, columns: str, what: str, *, into_maps: bool = True, into_arrays: bool = False) -> Field:
    """Return the field that a dotted path leads to: a column, or below one a struct's field or a map's key.

    With `into_arrays` also a field of an array's elements.

    Raises UsageError when it leads nowhere.
    """
    found = Field("", "STRUCT", fields_of(columns))
    for part in path.split("."):
        while found.kind == "ARRAY" and into_arrays:
            found = found.inner[0]
        known = {each.name: each for each in found.inner} if found.kind == "STRUCT" else {}
        if found.kind == "MAP" and into_maps:
            found = found.inner[1]
        elif part in known:
            found = known[part]
        else:
            raise UsageError(
                f"{what} names {path!r}, and there is no {part!r} in {found.name or 'the columns'}",
                remedy=f"one of: {', '.join(known)}" if known else "",
            )
    return found


def _check_spelling(columns: str, what: str) -> None:
    """Raise UsageError for a colon before a column's type, and for NOT NULL inside of a column.

    `CREATE TABLE` takes a colon inside a STRUCT only. Spark reads all that is inside of a column as nullable, and casts
    nothing nullable to what is not.
    Not by the reader itself: decoding reads columns with it, whose code is part of what versions are made of.
    """
    reader, depth, before, column = _Reader(columns), 0, "", ""
    while reader.current:
        if not depth and before in ("", ","):
            column = reader.current
        if not reader.is_word:
            if reader.current == ":" and not depth:
                reader.step()
                raise UsageError(
                    f"the column {column!r} of a table is declared with a colon, which stands inside a STRUCT only",
                    remedy=f"write {column} {reader.current}",
                )
            depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(reader.current, 0)
        elif depth and (before.upper(), reader.current.upper()) == ("NOT", "NULL"):
            raise UsageError(
                f"{what} has NOT NULL inside of the column {column}, which no file keeps",
                remedy="leave it out",
            )
        before = reader.step()


class _Reader:
    """Reads tokens from left to right."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text.rstrip(), 0
        self.current, self.is_word = "", False
        self.step()

    def step(self) -> str:
        """Return the current token and move to the next one, which is empty at the end."""
        before = self.current
        if self._at == len(self._text):
            self.current, self.is_word = "", False
            return before
        match = _TOKEN.match(self._text, self._at)
        if not match:
            raise self.error()
        self._at = match.end()
        quoted, word, sign = match.groups()
        self.current, self.is_word = (quoted or "").replace("``", "`") or word or sign or "''", not sign
        return before

    def error(self) -> UsageError:
        return UsageError(f"not a list of columns near {self.current!r}: {' '.join(self._text.split())[:80]}")

    def expect(self, *tokens: str) -> str:
        if self.current not in tokens:
            raise self.error()
        return self.step()

    def fields(self) -> tuple[Field, ...]:
        found = [self.field()]
        while self.current == ",":
            self.step()
            found.append(self.field())
        return tuple(found)

    def field(self) -> Field:
        if not self.is_word:
            raise self.error()
        name = self.step()
        if self.current == ":":
            self.step()
        return self.type_of(name)

    def type_of(self, name: str = "") -> Field:
        if not self.is_word:
            raise self.error()
        kind = self.step().upper()
        inner: tuple[Field, ...] = ()
        if self.current == "<":
            self.step()
            inner = self.inner(kind)
            self.expect(">")
        arguments = self.arguments() if self.current == "(" else ()
        return Field(name, " ".join([kind, *self.rest()]), inner, arguments)

    def arguments(self) -> tuple[int, ...]:
        found = []
        while (token := self.step()) != ")":
            if not self.current:
                raise self.error()
            if token.isdecimal():
                found.append(int(token))
        return tuple(found)

    def inner(self, kind: str) -> tuple[Field, ...]:
        if kind == "STRUCT":
            return () if self.current == ">" else self.fields()
        found = [self.type_of()]
        if kind == "MAP":
            self.expect(",")
            found.append(self.type_of())
        return tuple(found)

    def rest(self) -> list[str]:
        """Return the words after a type, e.g. DAY TO SECOND, without NOT NULL and COMMENT '…'."""
        found = []
        while self.is_word:
            word = self.step().upper()
            if word in ("NOT", "COMMENT"):
                self.step()
            else:
                found.append(word)
        return found


Renamed = Mapping[str, str | tuple[str, ...]]
"""A column to the name that it had before, or to all that it had, newest first."""

_RENAME = 'declare renamed={"NEW": "OLD"}, NEW being one of the columns and OLD none of them'


def names_before(renamed: Renamed) -> dict[str, tuple[str, ...]]:
    """Return, of each renamed column, the names that it had before, newest first."""
    return {name: (before,) if isinstance(before, str) else tuple(before) for name, before in renamed.items()}


def check_renamed(renamed: Renamed, columns: str) -> None:
    """Raise UsageError unless each renamed column is declared and no former name is, nor another column's."""
    # To readers, names that differ in case alone are one.
    declared = {each.name.lower(): each.name for each in fields_of(columns)}
    former = names_before(renamed)
    for name, before in former.items():
        if (spelled := declared.get(name.lower())) is None:
            raise UsageError(f"the renamed column {name!r} is not declared", remedy=_RENAME)
        if name != spelled:
            raise UsageError(f"the renamed column {name!r} is declared as {spelled}", remedy=f"write {spelled}")
        if not before:
            raise UsageError(f"it is not said what the column {name!r} was called before", remedy=_RENAME)
        for each in before:
            if not each or set(each) & set("`., "):
                raise UsageError(f"{each!r} is no column of a table", remedy=_RENAME)
            if each.lower() in declared:
                raise UsageError(f"{name} was {each}, and {each} is declared, too", remedy=_RENAME)
    listed = [each.lower() for before in former.values() for each in before]
    for each in {each for each in listed if listed.count(each) > 1}:
        raise UsageError(f"the former name {each} stands twice", remedy="name it once, of one column")
