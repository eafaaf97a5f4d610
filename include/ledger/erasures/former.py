"""What a pipeline has had besides what it declares now, as the ledger still knows it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import select, text

from include.ledger.archive.micro_batches import ARCHIVE
from include.ledger.database import session
from include.ledger.models import Generation, RowOutput, TableBegin
from include.ledger.streams.flags import FLAGS
from include.times import Interval


def tables_ever(pipeline: str) -> list[str]:
    """Return the tables that ever had registered rows, by name."""
    with session() as ledger:
        wanted = select(TableBegin.table_name).where(TableBegin.pipeline == pipeline)
        return sorted(ledger.scalars(wanted))


_WITHOUT_COLUMN = text("""
    SELECT DISTINCT i.from_time, i.to_time
    FROM revisions r JOIN intervals i ON i.id = r.interval_id JOIN builds b ON b.id = r.build_id
    WHERE r.table_name = :table AND r.state = 'registered' AND r.rows > 0 AND i.pipeline = :pipeline
        AND NOT b.columns -> :table ?| CAST(:names AS text[])
    ORDER BY 1
""")


def registered_without(pipeline: str, table: str, names: Collection[str]) -> list[Interval]:
    """Return the intervals whose registered rows were built while a column had none of these names, in order."""
    with session() as ledger:
        wanted = {"pipeline": pipeline, "table": table, "names": list(names)}
        return [Interval(*each) for each in ledger.execute(_WITHOUT_COLUMN, wanted).tuples()]


def views_ever(pipeline: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return each view that started in a generation of the stream, with the facts of its fingerprint, oldest first."""
    wanted = select(Generation.fingerprints).where(Generation.pipeline == pipeline)
    with session() as ledger:
        return [
            started
            for fingerprints in ledger.scalars(wanted.order_by(Generation.number))
            for started in views_in(fingerprints).items()
        ]


def views_in(fingerprints: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the fingerprints of a generation's views, by name."""
    return {query: facts for query, facts in fingerprints.items() if query not in (ARCHIVE, FLAGS)}


def has_had_flags(pipeline: str) -> bool:
    """Return whether the stream ever raised flags."""
    with session() as ledger:
        wanted = select(Generation.fingerprints).where(Generation.pipeline == pipeline)
        return any(FLAGS in fingerprints for fingerprints in ledger.scalars(wanted))


def outputs_ever(pipeline: str) -> list[str]:
    """Return the outputs that ever sent rows, by name."""
    with session() as ledger:
        return sorted(ledger.scalars(select(RowOutput.output).where(RowOutput.pipeline == pipeline)))
