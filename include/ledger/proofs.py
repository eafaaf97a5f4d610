"""Proofs of registered intervals in the ledger: what each states, which were written, and the order of their chain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import ColumnElement, Select, and_, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from include.ledger.database import lock, session
from include.ledger.intervals.attempts import repins_since
from include.ledger.intervals.findings import Findings, findings_of
from include.ledger.intervals.pins import PinnedInterval, pinned_of
from include.ledger.intervals.revisions import as_built
from include.ledger.intervals.states import IntervalState, RevisionState
from include.ledger.lineage import BuiltRevision
from include.ledger.models import Attempt, Build, IntervalRow, ProofRow, Revision


@dataclass(frozen=True)
class Proof:
    """A proof that was written."""

    path: str
    """Below the lake."""
    sha256: str


@dataclass(frozen=True)
class Registered:
    """A registered revision, and the code that built it."""

    built: BuiltRevision
    code_version: str


@dataclass(frozen=True)
class Evidence:
    """All that the proof of a published build states."""

    build: int
    attempt: int
    source: str
    code_version: str
    published_at: datetime
    pinned: PinnedInterval
    findings: Findings
    registered: tuple[Registered, ...]
    """The interval's registered revisions, by table and partition; a rerun may have left some of them unchanged."""


@dataclass
class Chain:
    """The ends of a pipeline's chains while one proof is added to them."""

    heads: Mapping[str, Proof | None]
    """The last proof of each table; None when there is none yet."""
    is_signed: bool
    """Whether one of these is signed."""
    written: Proof | None = None
    """The proof that the build already has, or that `append` gave it."""
    signed_by: str | None = field(default=None)

    def append(self, proof: Proof, signed_by: str | None) -> None:
        """Add the proof at the end; it is stored when the block that yielded this chain ends."""
        self.written, self.signed_by = proof, signed_by


@contextmanager
def extending(pipeline: str, build: int, tables: Sequence[str]) -> Iterator[Chain]:
    """Yield the chains of a pipeline's tables, locked, and keep what the block appends to them."""
    with session() as ledger:
        lock(ledger, f"proof:{pipeline}")
        known = ledger.scalar(select(ProofRow).where(ProofRow.build_id == build))
        heads = {table: _head(ledger, pipeline, table) for table in tables}
        chain = Chain({table: _proof(head) for table, head in heads.items()}, _is_signed(heads), _proof(known))
        yield chain
        if known is None and chain.written is not None:
            ledger.add(
                ProofRow(
                    pipeline=pipeline,
                    build_id=build,
                    tables=list(tables),
                    path=chain.written.path,
                    sha256=chain.written.sha256,
                    signed_by=chain.signed_by,
                )
            )


def _head(ledger: Session, pipeline: str, table: str) -> ProofRow | None:
    wanted = select(ProofRow).where(ProofRow.pipeline == pipeline, ProofRow.tables.contains([table]))
    return ledger.scalar(wanted.order_by(ProofRow.id.desc()).limit(1))


def _proof(row: ProofRow | None) -> Proof | None:
    return Proof(row.path, row.sha256) if row is not None else None


def _is_signed(heads: Mapping[str, ProofRow | None]) -> bool:
    return any(head is not None and head.signed_by is not None for head in heads.values())


def last_is_signed(pipeline: str, tables: Sequence[str]) -> bool:
    """Return whether the last proof of one of these tables is signed, so that the next one must be, too."""
    with session() as ledger:
        return _is_signed({table: _head(ledger, pipeline, table) for table in tables})


def any_signed(pipeline: str) -> bool:
    """Return whether a proof of the pipeline is signed."""
    with session() as ledger:
        wanted = select(ProofRow.id).where(ProofRow.pipeline == pipeline, ProofRow.signed_by.is_not(None))
        return ledger.scalar(wanted.limit(1)) is not None


def paths(pipeline: str) -> list[str]:
    """Return the paths of a pipeline's proofs below the lake, in the order of the chain."""
    with session() as ledger:
        return list(ledger.scalars(select(ProofRow.path).where(ProofRow.pipeline == pipeline).order_by(ProofRow.id)))


@dataclass
class Replacing:
    """A pipeline's proofs while some of them are replaced."""

    _ledger: Session
    _rows: Mapping[str, ProofRow]

    def paths(self) -> Iterator[str]:
        """Yield the proofs' paths in the order of the chain. Raises what `session` raises when the lock was lost."""
        for path in self._rows:
            # The files of a chain of years take their time: PostgreSQL is to end the transaction only of a process that
            # is stopped at one of them.
            self._ledger.execute(select(1))
            yield path

    def note(self, path: str, sha256: str, signed_by: str | None) -> None:
        """Note the present hash of a proof's file; it is stored when the block that yielded this ends."""
        self._rows[path].sha256, self._rows[path].signed_by = sha256, signed_by


@contextmanager
def replacing(pipeline: str) -> Iterator[Replacing]:
    """Yield a pipeline's proofs, locked so that nobody adds one meanwhile."""
    with session() as ledger:
        lock(ledger, f"proof:{pipeline}")
        rows = ledger.scalars(select(ProofRow).where(ProofRow.pipeline == pipeline).order_by(ProofRow.id)).all()
        yield Replacing(ledger, {row.path: row for row in rows})


def build_to_prove(interval_id: int) -> int | None:
    """Return the build that made an interval's registered revisions; None when none was published.

    A rerun that changed nothing needs no proof of its own.
    """
    with session() as ledger:
        return ledger.scalar(_producing_builds().where(Build.interval_id == interval_id))


def builds_to_prove(pipeline: str) -> dict[int, int]:
    """Return `build_to_prove` of every registered interval of a pipeline, by interval."""
    wanted = (
        _producing_builds()
        .add_columns(Build.interval_id)
        .join(IntervalRow, IntervalRow.id == Build.interval_id)
        .where(IntervalRow.pipeline == pipeline, IntervalRow.state == IntervalState.REGISTERED)
        .group_by(Build.interval_id)
    )
    with session() as ledger:
        return {interval: build for build, interval in ledger.execute(wanted).tuples() if build is not None}


def unproved(pipeline: str, limit: int | None = None) -> list[int]:
    """Return the builds that made registered revisions and have no proof yet, in order."""
    # Of most intervals nothing is left to prove: an index leads to the others.
    other = aliased(Build)
    maybe = select(other.interval_id).where(other.published_at.is_not(None), ~other.proved)
    made_it = (
        _producing_builds()
        .join(IntervalRow, IntervalRow.id == Build.interval_id)
        .where(
            IntervalRow.pipeline == pipeline,
            IntervalRow.state == IntervalState.REGISTERED,
            Build.interval_id.in_(maybe),
        )
        .group_by(Build.interval_id)
        .subquery()
    )
    proved = select(ProofRow.id).where(ProofRow.build_id == made_it.c.build)
    wanted = select(made_it.c.build).where(~proved.exists()).order_by(made_it.c.build).limit(limit)
    with session() as ledger:
        return list(ledger.scalars(wanted))


def note_proved(pipeline: str) -> None:
    """Note which published builds need no proof any more, so that `unproved` does not look at them again.

    One statement: a build that is published meanwhile is not among them, and its interval is looked at again.
    """
    of_interval = aliased(Build)
    made_it = _producing_builds(of_interval).where(of_interval.interval_id == Build.interval_id).correlate(Build)
    is_proved = select(ProofRow.id).where(ProofRow.build_id == made_it.scalar_subquery()).exists()
    of_pipeline = select(IntervalRow.id).where(IntervalRow.id == Build.interval_id, IntervalRow.pipeline == pipeline)
    wanted = (
        update(Build)
        .where(Build.published_at.is_not(None), ~Build.proved, of_pipeline.exists())
        .where(or_(is_proved, ~and_(*_counts(Build))))
        .values(proved=True)
        .execution_options(synchronize_session=False)
    )
    with session() as ledger:
        ledger.execute(wanted)


def _producing_builds(build: type[Build] = Build) -> Select[int | None]:
    """Select the last build that changed the catalog; for an interval without rows, the first that passed."""
    changed = [func.jsonb_array_length(build.changes[part]) > 0 for part in ("points", "drops")]
    made = func.coalesce(func.max(build.id).filter(or_(*changed)), func.min(build.id))
    return select(made.label("build")).where(build.published_at.is_not(None), *_counts(build))


def _counts(build: type[Build]) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions under which a published build may be the one to prove.

    Builds from before an interval was pinned again do not count: they had other ranges.
    """
    return build.passed.is_(True), build.changes.is_not(None), ~repins_since(build).exists()


def evidence_of(build: int) -> Evidence:
    """Return what the proof of a published build states."""
    with session() as ledger:
        row = ledger.get_one(Build, build)
        attempt = ledger.get_one(Attempt, row.attempt_id)
        revisions = ledger.scalars(
            select(Revision)
            .where(Revision.interval_id == row.interval_id, Revision.state == RevisionState.REGISTERED)
            .order_by(Revision.table_name, Revision.table_partition)
        )
        assert row.published_at is not None
        return Evidence(
            row.id,
            attempt.id,
            attempt.source,
            attempt.code_version,
            row.published_at,
            pinned_of(ledger, ledger.get_one(IntervalRow, row.interval_id)),
            findings_of(row.findings),
            tuple(Registered(as_built(each), each.code_version) for each in revisions),
        )
