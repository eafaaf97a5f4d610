"""Which views the registered values in PostgreSQL follow: the setting decides only where that begins."""

from __future__ import annotations

from include.errors import ServiceUnreachable
from include.ledger.connection import check_answers
from include.pipelines.spec import Pipeline
from include.serving import transaction
from include.serving.shape import Shape, possible_shapes, served_shapes

_ANSWER_SECONDS = 5
"""How long the server of a database that refused is waited for."""

_BEGUN = """
    SELECT tablename FROM pg_tables
    WHERE schemaname = 'proved' AND tablename = ANY(%s) AND to_regclass(quote_ident(tablename)) IS NULL
"""


def followed_shapes(pipeline: Pipeline) -> dict[str, Shape]:
    """Return the shapes of the served views by name, also of those that a process with another setting began to serve.

    Not of one whose stream has a table: code that declares no `JdbcTable` any more, or not yet, would hide its rows.
    Raises ServiceUnreachable, but not where nothing is to be served and the server only refuses its database.
    """
    served = served_shapes(pipeline)
    others = {name: each for name, each in possible_shapes(pipeline).items() if name not in served}
    if others:
        try:
            with transaction("./tidemark doctor --repair") as asked:
                asked.execute(_BEGUN, [[each.table for each in others.values()]])
                begun = {table for (table,) in asked.fetchall()}
        except ServiceUnreachable:
            if served:
                raise
            # The database may be missing, or closed to this user, who then never began to serve a view there.
            check_answers(_ANSWER_SECONDS)
            return {}
        served |= {name: each for name, each in others.items() if each.table in begun}
    return served
