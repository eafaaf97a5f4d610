"""An output's table: rows by their coordinates, written in one transaction with the marker of the last writer.

Effectively once. A row's coordinates are the primary key, so a row that is written again replaces itself. The
transaction locks the output's row in `tidemark_outputs`, which has the fencing token of the last driver: an older
driver can no longer write. The lease is checked last, before the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from include.crash_points import crash_point
from include.errors import TidemarkError
from include.ledger.archive.row_outputs import MOST_REFUSED, Refused, Unsent, too_many
from include.ledger.outputs.targets import Reached, outputs_to
from include.ledger.streams.writers import Lease
from include.outputs import marker
from include.outputs.columns import changes, columns_of
from include.outputs.connection import database_of
from include.outputs.dialects import NESTED, ROWS_A_STATEMENT, Dialect, dialect_of
from include.outputs.marker import Marker
from include.pipelines.spec import IDENTITY, DatabaseTable, Pipeline, Rows
from include.pipelines.spec.ddl import fields_of
from include.pipelines.spec.names import TOPIC_ID
from include.pipelines.spec.outputs import check_postgresql, target_of

KEYS = (*IDENTITY[:1], TOPIC_ID, *IDENTITY[1:])

_KEYS = """
    SELECT k.column_name FROM information_schema.table_constraints t
    JOIN information_schema.key_column_usage k ON k.constraint_name = t.constraint_name
        AND k.table_schema = t.table_schema AND k.table_name = t.table_name
    WHERE t.constraint_type = 'PRIMARY KEY' AND t.table_schema = {here} AND t.table_name = %s
"""


@dataclass
class OutputTable:
    """The table of an output."""

    pipeline: Pipeline
    output: Rows
    to: DatabaseTable
    lease: Lease
    check_lease: Callable[[], object]
    """Raises AnotherWriter when this driver's lease is over."""
    _is_there: bool = field(default=False, init=False)
    _reached: Reached = field(default=Reached(), init=False)
    """Up to where the table had rows when it was read or written last."""

    def __post_init__(self) -> None:
        self._dialect: Dialect = dialect_of(database_of(self.to.connection))
        declared = self.output.columns or f"{self.pipeline.archive_columns}, kafka_timestamp TIMESTAMP"
        self.fields = fields_of(declared)

    @property
    def name(self) -> str:
        """The table's name."""
        return self.to.named(self.pipeline.name, self.output.name).table

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are written: the output's own, then the key."""
        return (*(each.name for each in self.fields), *KEYS)

    @property
    def _marked(self) -> str:
        return f"{self.pipeline.name}.{self.output.name}"

    def reached(self) -> Reached:
        """Return up to where the table has rows, by its marker: nothing where either is missing.

        Raises AnotherWriter, ServiceUnreachable, TidemarkError when a newer driver has written.
        """
        with self._dialect.transaction() as asked:
            is_kept = all(columns_of(asked, self._dialect, table) for table in (self.name, marker.MARKERS))
            found = marker.read(asked, self._marked) if is_kept else None
        self._check_owner(found or marker.UNWRITTEN)
        self._reached = found.reached if found else Reached()
        return self._reached

    def merge(self, rows: Iterable[Sequence[object]], unsent: Unsent) -> tuple[int, list[Refused]]:
        """Write the rows, values of `columns`; return how many were written, and the rows that the table refuses.

        Raises AnotherWriter, ServiceUnreachable, TidemarkError when the table is not the output's, has fewer rows than
        it had, or refuses more than a few.
        """
        if not self._is_there:
            self._make()
        # Checked again after a failure: somebody may have dropped it.
        self._is_there = False
        written, refused = 0, list[Refused]()
        with self._dialect.transaction() as asked:
            self._take_over(asked, unsent)
            for chunk in _chunks(rows):
                unfit = self._write(asked, [self._storable(row) for row in chunk])
                written, refused = written + len(chunk) - len(unfit), refused + unfit
                if len(refused) > MOST_REFUSED:
                    raise too_many(self.pipeline.name, self.output.name, refused, written)
            crash_point("table_written")
            self.check_lease()
            crash_point("table_checked")
        crash_point("table_committed")
        self._is_there = True
        at = {"replay" if unsent.is_replay else "micro_batch": unsent.number}
        self._reached = replace(self._reached, **at)
        return written, refused

    def _make(self) -> None:
        """Create the table and the markers' table if they are missing.

        Raises UsageError for columns that PostgreSQL cannot have, TidemarkError for another's table.
        """
        to = self._dialect
        if to.database.kind == "postgresql":
            check_postgresql(self.output, self.fields, self.pipeline.name)
        kinds = {"kafka_topic": to.topic, TOPIC_ID: to.topic, "kafka_offset": "bigint"}
        own = ", ".join(f"{to.quoted(each.name)} {to.type_of(each)}" for each in self.fields)
        keys = ", ".join(f"{to.quoted(name)} {kinds.get(name, 'integer')} NOT NULL" for name in KEYS)
        with to.transaction() as asked:
            marker.make(asked)
            if not columns_of(asked, to, self.name):
                # Before the table is made: with that, MariaDB commits.
                marker.reset(asked, self._sharing())
            asked.execute(
                f"CREATE TABLE IF NOT EXISTS {to.quoted(self.name)} ({own}, {keys}, PRIMARY KEY ({to.names(KEYS)}))"
            )
            columns = columns_of(asked, to, self.name)
            asked.execute(_KEYS.format(here=to.here), [self.name])
            key = {name for (name,) in asked.fetchall()}
        wrong = changes(to, self.fields, columns)
        if wrong or key != set(KEYS):
            said = next(iter(wrong), "has another primary key than the coordinates")
            altered = f"ALTER TABLE {to.quoted(self.name)} {', '.join(wrong.values())}"
            raise TidemarkError(
                f"{to.database}: the table {self.name} {said}",
                remedy=altered if wrong else "give the output another table",
                pipeline=self.pipeline.name,
            )

    def _sharing(self) -> list[str]:
        """Return the markers of the outputs to this table, those of other pipelines too."""
        shared = outputs_to(target_of(self.pipeline.name, self.output))
        return [self._marked, *(f"{pipeline}.{output}" for pipeline, output in shared)]

    def _take_over(self, asked: Any, unsent: Unsent) -> None:
        """Lock the output's marker and move it.

        Raises TidemarkError when a newer driver has written, or the table lost rows since it was looked at.
        """
        found = marker.read(asked, self._marked, to_move=True)
        self._check_owner(found or marker.UNWRITTEN)
        if (found or marker.UNWRITTEN).reached.is_behind(self._reached):
            raise TidemarkError(
                f"{self._dialect.database}: the table {self.name} was made anew, or is an older copy of itself",
                remedy="nothing to do: the next try sends again what it lacks",
                pipeline=self.pipeline.name,
            )
        if found is None:
            # Of two drivers at the same time, one waits here and fails; it tries again.
            marker.write(asked, self._marked, self.lease.token)
        marker.move(asked, self._marked, self.lease.token, unsent)

    def _check_owner(self, found: Marker) -> None:
        """Raise TidemarkError when a newer driver has written."""
        if found.token > self.lease.token:
            self.check_lease()
            of_this = f"WHERE output = '{self._marked}'"
            raise TidemarkError(
                f"{self._dialect.database}: a driver with the fencing token {found.token} has written {self.name}, "
                f"this one has {self.lease.token}: another deployment writes it, or this one's ledger was restored or "
                "made anew",
                remedy=f"after a restored or new ledger: UPDATE {marker.MARKERS} SET token = 0 {of_this}; of two "
                f"deployments let only one write it, then DELETE FROM {marker.MARKERS} {of_this}, and it sends "
                "everything again",
                pipeline=self.pipeline.name,
            )

    def _storable(self, row: Sequence[object]) -> list[object]:
        own = zip(self.fields, row, strict=False)
        stored = [self._dialect.storable(value, is_json=each.kind in NESTED) for each, value in own]
        return [*stored, *row[len(self.fields) :]]

    def _write(self, asked: Any, rows: list[list[object]]) -> list[Refused]:
        """Write the rows except those that do not fit, which bisection finds and which are returned."""
        refused = [self._refused(row, said) for row in rows if (said := self._dialect.cannot_hold(row))]
        fitting = [row for row in rows if not self._dialect.cannot_hold(row)] if refused else rows
        if not fitting:
            return refused
        asked.execute("SAVEPOINT rows_of_output")
        try:
            self._dialect.upsert(asked, self.name, KEYS, self.columns, fitting)
        except self._dialect.failed as error:
            if not self._dialect.is_unfit(error):
                raise
            asked.execute("ROLLBACK TO SAVEPOINT rows_of_output")
            if len(fitting) == 1:
                return [*refused, self._refused(fitting[0], self._dialect.said(error))]
            half = len(fitting) // 2
            return [*refused, *self._write(asked, fitting[:half]), *self._write(asked, fitting[half:])]
        asked.execute("RELEASE SAVEPOINT rows_of_output")
        return refused

    def _refused(self, row: Sequence[Any], said: str) -> Refused:
        topic, _, partition, offset, element = row[-len(KEYS) :]
        return Refused(topic, partition, offset, element, "does_not_fit", said)


def _chunks(rows: Iterable[Sequence[object]]) -> Iterator[list[Sequence[object]]]:
    following = iter(rows)
    while chunk := list(islice(following, ROWS_A_STATEMENT)):
        yield chunk
