"""Which views the registered values in PostgreSQL follow: the setting decides only where that begins."""

from __future__ import annotations

from include.pipelines.spec import Pipeline
from include.serving import transaction
from include.serving.shape import Shape, possible_shapes, served_shapes

_BEGUN = """
    SELECT tablename FROM pg_tables
    WHERE schemaname = 'proved' AND tablename = ANY(%s) AND to_regclass(quote_ident(tablename)) IS NULL
"""


def followed_shapes(pipeline: Pipeline) -> dict[str, Shape]:
    """Return the shapes of the served views by name, also of those that a process with another setting began to serve.

    Not of one whose stream has a table: code that declares no `JdbcTable` any more, or not yet, would hide its rows.
    Raises ServiceUnreachable.
    """
    served = served_shapes(pipeline)
    others = {name: each for name, each in possible_shapes(pipeline).items() if name not in served}
    if others:
        with transaction("./tidemark doctor --repair") as asked:
            asked.execute(_BEGUN, [[each.table for each in others.values()]])
            begun = {table for (table,) in asked.fetchall()}
        served |= {name: each for name, each in others.items() if each.table in begun}
    return served
