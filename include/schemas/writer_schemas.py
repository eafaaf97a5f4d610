"""Writer schemas by their id: fetched from the registry once, kept on disk, and shared by a whole process.

An id means one schema for ever, so a kept schema is never fetched again, and what was decoded once can be decoded
while the registry is down. A registry that was lost and filled anew gives known ids to other schemas: kept ones are
compared with those of its subjects. Ids that the registry does not know are remembered by this process alone: all its
queries judge a record alike, and the next process asks again. After too many of them it asks for no other id, for they
are no schema ids at all: any other one is unknown from then on.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from include.errors import AnswerTooLong, UsageError
from include.schemas.registry import RegisteredSchema, SchemaRegistry, registry
from include.settings import settings, write_private

MAX_SCHEMA_BYTES = 262_144
MAX_SCHEMA_DEPTH = 32

_LARGEST_ID = 2**31 - 1

_TEXT = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
"""A string of JSON; one that does not end goes on to the end."""

MOST_UNKNOWN = 1_000
"""After so many ids that the registry does not know, this process asks it for no other: each costs a request."""

UNKNOWN_SCHEMA = "unknown_schema"
"""Reason of records whose schema id the registry did not know."""


@dataclass(frozen=True)
class Unusable:
    """Why records with a schema id cannot be decoded."""

    reason: str
    """`UNKNOWN_SCHEMA` or `unusable_schema`."""
    detail: str


WriterSchema = str | Unusable
"""A writer schema as JSON, or why there is none."""

_UNKNOWN = Unusable(UNKNOWN_SCHEMA, "the registry had no schema with its id")
_TOO_LONG = Unusable("unusable_schema", f"its schema is longer than {MAX_SCHEMA_BYTES} characters")


class WriterSchemas:
    """The writer schemas of one registry that are resolved so far."""

    def __init__(self, folder: Path, source: SchemaRegistry) -> None:
        self._folder = folder
        self._registry = source
        self._lock = threading.Lock()
        self._kept = _read_kept(folder)
        self._resolved: dict[int, WriterSchema] = {each: usable(schema) for each, schema in self._kept.items()}
        self._unknown: set[int] = set()

    def resolved(self) -> dict[int, WriterSchema]:
        """Return what is resolved so far, by schema id, without asking the registry."""
        with self._lock:
            return dict(sorted(self._resolved.items()))

    def unknown(self) -> set[int]:
        """Return the ids that the registry did not know when this process asked; it does not ask for them again."""
        with self._lock:
            return set(self._unknown)

    def asks_no_more(self) -> bool:
        """Return whether the registry did not know too many ids: all that are not resolved stay unknown."""
        return len(self._unknown) >= MOST_UNKNOWN

    def resolve(self, schema_ids: Iterable[int], subject: str) -> None:
        """Ask the registry for the ids not resolved yet, in their order, until there were too many unknown ones.

        If there may be too many, the versions of the subject come first. Raises ServiceUnreachable; what was resolved
        is kept.
        """
        known = self.resolved()
        asked = [each for each in schema_ids if each not in known]
        if len(self._unknown) < MOST_UNKNOWN <= len(self._unknown) + len(asked):
            self.resolve_subject(subject)
        self._resolve(asked)

    def resolve_subject(self, subject: str) -> None:
        """Resolve all versions of a subject, except those whose ids are not known for being too long.

        Raises ServiceUnreachable, and UsageError when the registry has another schema for an id than is kept.
        """
        for version in self._registry.versions(subject):
            try:
                registered = self._registry.version(subject, version)
            except AnswerTooLong:
                continue
            # It may have been deleted since the versions were listed.
            if registered is not None:
                schema_id, found = registered
                self._check_kept(schema_id, found, f"version {version} of {subject}")
                self._resolve([schema_id])

    def _resolve(self, schema_ids: Iterable[int]) -> None:
        for schema_id in schema_ids:
            if schema_id in self._resolved:
                continue
            if self.asks_no_more():
                return
            resolved = self._ask(schema_id)
            with self._lock:
                self._resolved[schema_id] = resolved
                if resolved is _UNKNOWN:
                    self._unknown.add(schema_id)

    def _ask(self, schema_id: int) -> WriterSchema:
        """Return the schema with the id, which is kept, or why records with it cannot be decoded."""
        try:
            # A registry whose ids are of 32 bits has no answer of its own for a larger one, and looks unreachable.
            found = self._registry.schema(schema_id) if schema_id <= _LARGEST_ID else None
        except AnswerTooLong:
            return _TOO_LONG
        if found is None:
            return _UNKNOWN
        self._keep(schema_id, found)
        return usable(found)

    def _check_kept(self, schema_id: int, found: RegisteredSchema, where: str) -> None:
        kept = self._kept.get(schema_id)
        if kept is None or _is_same(kept, found):
            return
        # A registry may spell a version's schema otherwise than that of its id, which is what was kept.
        of_id = self._registry.schema(schema_id)
        if of_id is not None and not _is_same(kept, of_id):
            raise UsageError(
                f"the registry at {self._registry.address} has another schema with id {schema_id} ({where}) than "
                f"{self._file(schema_id)}, by which records were decoded: it is another one, or was filled anew",
                remedy="restore the registry's database, or name the former one by TIDEMARK_REGISTRY_URL; only if no "
                "record of the former ids is still to be read from Kafka: remove that file",
            )

    def _file(self, schema_id: int) -> Path:
        return self._folder / f"{schema_id}.json"

    def _keep(self, schema_id: int, found: RegisteredSchema) -> None:
        if len(found.schema) <= MAX_SCHEMA_BYTES:
            write_private(self._file(schema_id), json.dumps(vars(found)) + "\n", durable=True)
            self._kept[schema_id] = found


def _read_kept(folder: Path) -> dict[int, RegisteredSchema]:
    """Return the kept schemas; one whose file was cut short is fetched again when it is needed."""
    kept = {}
    for file in folder.glob("*.json"):
        with suppress(ValueError, TypeError):
            kept[int(file.stem)] = RegisteredSchema(**json.loads(file.read_text()))
    return kept


def _is_same(one: RegisteredSchema, other: RegisteredSchema) -> bool:
    """Return whether two schemas are the same, however their text is laid out."""
    if one == other:
        return True
    try:
        texts = json.loads(one.schema) == json.loads(other.schema)
    except (ValueError, RecursionError):
        return False
    return texts and (one.kind, one.references) == (other.kind, other.references)


def usable(found: RegisteredSchema) -> WriterSchema:
    """Return the schema as JSON if it may be used: Avro, without references, of bounded size and depth."""
    if found.kind != "AVRO":
        return Unusable("unusable_schema", f"its schema is {found.kind[:40]}, not Avro")
    if found.references:
        return Unusable("unusable_schema", "its schema refers to other schemas, which are not followed")
    if len(found.schema) > MAX_SCHEMA_BYTES:
        return _TOO_LONG
    if _depth_in_text(found.schema) > 2 * MAX_SCHEMA_DEPTH:
        return Unusable("unusable_schema", f"its schema is nested deeper than {MAX_SCHEMA_DEPTH} types")
    try:
        json.loads(found.schema)
    except ValueError:
        # Primitive types are registered as plain words by some clients.
        return json.dumps(found.schema)
    return found.schema


def _depth_in_text(schema: str) -> int:
    """Return how deep brackets are nested, but for those in texts, before anything recursive reads the schema."""
    depth = deepest = 0
    for each in _TEXT.sub("", schema):
        depth += (each in "{[") - (each in "}]")
        deepest = max(deepest, depth)
    return deepest


@cache
def writer_schemas() -> WriterSchemas:
    """Return this process's writer schemas. Raises ServiceUnreachable when the registry was never started."""
    source = registry()
    # With the user, too, whom the registry's own address leaves out: what was kept before stays in its folder.
    address = settings().registry().render_as_string().rstrip("/")
    name = hashlib.sha256(address.encode()).hexdigest()[:16]
    if settings().registry_url is None:
        # The embedded registry's port may change, its schemas do not.
        name = "embedded"
    return WriterSchemas(settings().home / "schemas" / name, source)
