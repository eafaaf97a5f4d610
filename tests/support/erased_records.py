"""Records that an erasure has begun to erase, as rows of the ledger alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import delete

from include.ledger.database import session
from include.ledger.models import ErasedRecord, Erasure
from include.ledger.quarantine import RecordKey


@contextmanager
def being_erased(pipeline: str, *records: RecordKey) -> Iterator[None]:
    """Let the records be those of an unfinished erasure, during the block."""
    with session() as ledger:
        said = {"columns": ["user"], "reason": "asked", "begun_by": "me@here", "salt": "00", "key_hashes": []}
        erasure = Erasure(pipeline=pipeline, intervals=[], last_build=0, counts={}, **said)
        ledger.add(erasure)
        ledger.flush()
        for each in records:
            log = {"topic": each.topic, "topic_id": each.topic_id, "topic_partition": each.partition}
            row = ErasedRecord(pipeline=pipeline, **log, record_offset=each.offset, fate="archived")
            row.erasure_id = erasure.id
            ledger.add(row)
    try:
        yield
    finally:
        with session() as ledger:
            ledger.execute(delete(ErasedRecord).where(ErasedRecord.pipeline == pipeline))
            ledger.execute(delete(Erasure).where(Erasure.pipeline == pipeline))
