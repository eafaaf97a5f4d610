"""Contents of references that were read from their sources, in the order in which the sources held them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from include.ledger.database import lock, session
from include.ledger.models import ReferenceVersion


@dataclass(frozen=True)
class Version:
    """A content of a reference."""

    name: str
    sha256: str
    rows: int
    source: str
    taken_at: datetime


@contextmanager
def noting(pipeline: str, name: str, sha256: str, rows: int, source: str) -> Iterator[None]:
    """Note a content as the newest one of a reference once the block, which stores it, has succeeded.

    A content that is already the newest is not noted again. One process per pipeline is in the block at a time.
    """
    with session() as ledger:
        lock(ledger, f"references {pipeline}")
        yield
        last = _newest(ledger, pipeline, name)
        if last is None or last.sha256 != sha256:
            ledger.add(ReferenceVersion(pipeline=pipeline, name=name, sha256=sha256, rows=rows, source=source))


def _newest(ledger: Session, pipeline: str, name: str) -> ReferenceVersion | None:
    wanted = select(ReferenceVersion).where(ReferenceVersion.pipeline == pipeline, ReferenceVersion.name == name)
    return ledger.scalar(wanted.order_by(ReferenceVersion.id.desc()).limit(1))


def versions(pipeline: str) -> list[Version]:
    """Return the contents of the pipeline's references, newest last."""
    wanted = select(ReferenceVersion).where(ReferenceVersion.pipeline == pipeline).order_by(ReferenceVersion.id)
    with session() as ledger:
        return [
            Version(each.name, each.sha256, each.rows, each.source, each.taken_at) for each in ledger.scalars(wanted)
        ]


def newest(pipeline: str) -> dict[str, str]:
    """Return the SHA-256 of the newest content of each reference that was read from a source."""
    return {each.name: each.sha256 for each in versions(pipeline)}
