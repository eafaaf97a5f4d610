"""What others have on the relations of a served view: objects that depend on them, rights, and open transactions.

A change of these relations leaves other users' objects alone, gives their rights back, and waits for readers a bounded
time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from psycopg2.extensions import cursor

from include.errors import TidemarkError
from include.serving.shape import Shape, quoted
from include.times import format_time

CHANGE_SECONDS = 30
"""How long a change waits for a lock: longer than the pages' queries take. Other readers wait behind it meanwhile."""

DROP_THEM = "drop them: the next publication changes it, then make them again by its new columns"

_DEPENDENTS = """
    WITH own AS (SELECT oid, reltype FROM pg_class WHERE oid = ANY(%(relations)s::regclass[])),
        types AS (SELECT t.oid FROM pg_type t JOIN own ON own.reltype IN (t.oid, t.typelem))
    SELECT DISTINCT coalesce(
        pg_describe_object('pg_class'::regclass, r.ev_class, 0), pg_describe_object(d.classid, d.objid, d.objsubid))
    FROM pg_depend d LEFT JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
    WHERE d.deptype = 'n' AND coalesce(r.ev_class <> to_regclass(%(view)s), TRUE) AND (
        (d.refclassid = 'pg_class'::regclass AND d.refobjid IN (SELECT oid FROM own))
        OR (d.refclassid = 'pg_type'::regclass AND d.refobjid IN (SELECT oid FROM types)))
    ORDER BY 1
"""

_RIGHTS = """
    SELECT given.name, coalesce(quote_ident(r.rolname), 'PUBLIC'), given.privilege_type, given.is_grantable
    FROM pg_class c CROSS JOIN LATERAL (
        SELECT '' AS name, (aclexplode(c.relacl)).*
        UNION ALL
        SELECT attname, (aclexplode(attacl)).* FROM pg_attribute WHERE attrelid = c.oid AND NOT attisdropped
    ) AS given LEFT JOIN pg_roles r ON r.oid = given.grantee
    WHERE c.oid = to_regclass(%s) AND given.grantee <> c.relowner
"""

# Those that wait behind it hold nothing yet. Names are null for a user who may not read others' activity.
_HOLDERS = """
    SELECT a.pid, coalesce(nullif(a.application_name, ''), 'no name'), coalesce(a.usename, 'unknown'), a.xact_start
    FROM pg_stat_activity a WHERE a.pid <> pg_backend_pid() AND EXISTS (
        SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.granted AND l.relation = ANY(%s::regclass[])
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))
    ORDER BY a.xact_start LIMIT 1
"""

_COLUMNS = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"


def dependents(asked: cursor, shape: Shape, *schemas: str) -> list[str]:
    """Return, as PostgreSQL describes them, the objects of others that depend on the view's relations.

    On those in the given schemas: `public` has the stream's table, `proved` the partial values, `live` the view.
    """
    there = [name for schema in schemas if _oid(asked, name := _name(schema, shape)) is not None]
    asked.execute(_DEPENDENTS, {"relations": there, "view": _name("live", shape)})
    return [each for (each,) in asked.fetchall()]


def in_the_way(others: list[str]) -> str:
    """Return in words why a served view is not changed, and what to do."""
    return f"{_listed(others)} on it; {DROP_THEM}"


def held_by(asked: cursor, shape: Shape) -> str:
    """Return in words which transaction has held the view's relations longest, and what to do about it."""
    names = [_name(schema, shape) for schema in ("public", "proved", "live")]
    asked.execute(_HOLDERS, [[name for name in names if _oid(asked, name) is not None]])
    if (row := asked.fetchone()) is None:
        return ", and has ended since; the next publication tries again"
    pid, application, user, since = row
    began = f", since {format_time(since)}" if since else ""
    return (
        f": process {pid} ({application}, user {user}{began}); the next publication tries again, when that has ended: "
        f"SELECT pg_terminate_backend({pid})"
    )


def check_no_dependents(asked: cursor, shape: Shape) -> None:
    """Raise TidemarkError when objects of others depend on what a new generation of the stream replaces."""
    if others := dependents(asked, shape, "public", "proved", "live"):
        raise TidemarkError(
            f"{_listed(others)} on the table {shape.table} or its view, whose columns change; nothing of the "
            "micro-batch was written",
            remedy="drop them and start the stream again; make them again by the new columns",
            pipeline=shape.pipeline,
        )


@contextmanager
def changing(asked: cursor, shape: Shape) -> Iterator[None]:
    """Let the block change the view's relations: those that it makes again have the rights that were granted on them.

    A statement that waits for a lock longer than `CHANGE_SECONDS` raises LockNotAvailable.
    """
    names = [_name(schema, shape) for schema in ("public", "proved", "live")]
    before = {name: (_oid(asked, name), _rights(asked, name)) for name in names}
    asked.execute(f"SET LOCAL lock_timeout = {1000 * CHANGE_SECONDS:.0f}")
    yield
    for name, (oid, rights) in before.items():
        if oid is not None and _oid(asked, name) not in (None, oid):
            _give(asked, name, rights)
    asked.execute("SET LOCAL lock_timeout = 0")


def _give(asked: cursor, name: str, rights: list[tuple[str, str, str, bool]]) -> None:
    """Give a relation that was made again these rights, and no others by default privileges."""
    for who in {who for _, who, _, _ in _rights(asked, name)}:
        asked.execute(f"REVOKE ALL ON {name} FROM {who}")
    asked.execute(_COLUMNS, [name])
    columns = {"", *(each for (each,) in asked.fetchall())}
    for column, who, privilege, is_grantable in rights:
        if column in columns:
            what = f"{privilege} ({quoted(column)})" if column else privilege
            asked.execute(f"GRANT {what} ON {name} TO {who}{' WITH GRANT OPTION' if is_grantable else ''}")


def _rights(asked: cursor, name: str) -> list[tuple[str, str, str, bool]]:
    """Return column (empty: of all), grantee, privilege and whether it may be granted on, without the owner's."""
    asked.execute(_RIGHTS, [name])
    return [*asked.fetchall()]


def _oid(asked: cursor, name: str) -> int | None:
    asked.execute("SELECT to_regclass(%s)::oid", [name])
    (oid,) = asked.fetchone() or (None,)
    return oid


def _name(schema: str, shape: Shape) -> str:
    return quoted(shape.table) if schema == "public" else f"{schema}.{quoted(shape.table)}"


def _listed(others: list[str]) -> str:
    further = f" and {len(others) - 5} more" if len(others) > 5 else ""
    return f"{', '.join(others[:5])}{further} {'depend' if len(others) > 1 else 'depends'}"
