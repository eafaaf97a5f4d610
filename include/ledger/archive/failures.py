"""Failed writes of micro-batches: how often the same one failed in the same way."""

from __future__ import annotations

import hashlib
import re

from sqlalchemy import func
from sqlalchemy.dialects.postgresql import insert

from include.ledger.database import session
from include.ledger.models import BatchFailure

_CONDITION = re.compile(r"\w+: \[[A-Z_.0-9]+\]")
_NUMBERS = re.compile(r"\d+")


def note_failure(pipeline: str, query: str, query_id: str, batch_id: int, error: str) -> int:
    """Record that a micro-batch could not be written; return how often it failed in this way, restarts included.

    Failures are the same when they have the same error condition, whatever value it quotes; without a
    condition, when they read the same except for their numbers.
    """
    condition = _CONDITION.match(error)
    text = condition[0] if condition else _NUMBERS.sub("#", error)
    row = insert(BatchFailure).values(
        pipeline=pipeline,
        query=query,
        query_id=query_id,
        batch_id=batch_id,
        error_hash=hashlib.sha256(text.encode()).hexdigest()[:16],
        error=error,
        failures=1,
    )
    again = row.on_conflict_do_update(
        index_elements=[column.name for column in BatchFailure.__table__.primary_key],
        set_={"failures": BatchFailure.failures + 1, "last_at": func.now(), "error": error},
    ).returning(BatchFailure.failures)
    with session() as ledger:
        return int(ledger.execute(again).scalar_one())
