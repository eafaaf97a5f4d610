"""Until when one table is complete: as its pipeline, but only where code that declares it built the intervals."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from psycopg2.extensions import cursor

from include.ledger.completeness import Completeness, Open, completeness
from include.ledger.connection import reading

_OF_TABLE = """
    SELECT complete_from, complete_until FROM table_completeness WHERE pipeline = %s AND table_name = %s
"""

# Of a build by code that kept no columns nothing is known; then the first interval with rows tells since when.
_WITHOUT = """
    SELECT i.from_time, i.to_time
    FROM intervals i
        LEFT JOIN declared_tables d ON d.id = i.declared
        LEFT JOIN table_begins t ON t.pipeline = i.pipeline AND t.table_name = %(table)s
    WHERE i.pipeline = %(pipeline)s AND i.state = 'registered' AND i.to_time > %(after)s AND i.from_time < %(until)s
        AND NOT coalesce(d.tables ? %(table)s, t.first_begin <= i.from_time, false)
    ORDER BY i.from_time {order} LIMIT 1
"""


def completeness_of_table(pipeline: str, table: str, since: datetime | None = None) -> Completeness:
    """Return until when the table is complete from `since` on, by default from where all its intervals have it.

    A registered interval that was built before the table was declared is open for it.
    """
    found = completeness(pipeline, since)
    if found.complete_from is None or found.complete_until is None:
        return found
    with reading() as ledger:
        ledger.execute(_OF_TABLE, [pipeline, table])
        row = ledger.fetchone()
        begin, until = row or (None, None)
        if since is None:
            if row is None:
                # No interval has rows of it; those that were built since it was declared have none on purpose.
                last = _without(ledger, pipeline, table, found.complete_from, found.complete_until, last=True)
                begin, until = (last.to_time if last else found.complete_from), found.complete_until
            if begin is None or begin >= until:
                return replace(found, complete_from=None, complete_until=None)
            return replace(found, complete_from=begin, begins=begin if begin > found.complete_from else None)
        # What the view has counted already is not looked at again.
        after = max(since, until) if begin is not None and begin <= since else since
        hole = _without(ledger, pipeline, table, after, found.complete_until)
    if hole is None:
        return found
    if hole.from_time <= since:
        return Completeness(pipeline, waits_for=hole)
    return replace(found, complete_until=hole.from_time, waits_for=hole)


def _without(
    ledger: cursor, pipeline: str, table: str, after: datetime, until: datetime, *, last: bool = False
) -> Open | None:
    """Return the first or last registered interval that was built before the table was declared."""
    wanted = {"pipeline": pipeline, "table": table, "after": after, "until": until}
    ledger.execute(_WITHOUT.format(order="DESC" if last else "ASC"), wanted)
    row = ledger.fetchone()
    return Open("built without it", *row) if row else None
