"""Failures between the statements of the ledger: the process ends, or its connection does, at the n-th of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, Engine, event

Kind = Literal["killed", "cut", "cut before commit", "answer lost"]
KINDS: tuple[Kind, ...] = ("killed", "cut", "cut before commit", "answer lost")
"""kill -9 · the server ends the connection · the same when the transaction commits · its commit's answer is lost."""


class Killed(BaseException):
    """Simulates kill -9: no code of the project catches it."""


@dataclass(frozen=True)
class Fault:
    """The fault at the n-th statement, or at the n-th commit, counted from 1."""

    kind: Kind
    nth: int


class Faults:
    """The ledger's engine, with at most one fault under way. One thread at a time uses it."""

    def __init__(self, engine: Engine, bystander: Any) -> None:
        self._engine = engine
        self._bystander = bystander
        self._fault: Fault | None = None
        self._passed = 0
        self.happened: Fault | None = None
        event.listen(engine, "before_cursor_execute", self._before_statement)
        event.listen(engine, "commit", self._before_commit)

    def close(self) -> None:
        """Leave the engine as it was."""
        event.remove(self._engine, "before_cursor_execute", self._before_statement)
        event.remove(self._engine, "commit", self._before_commit)

    @contextmanager
    def armed(self, fault: Fault | None) -> Iterator[None]:
        """Let the fault happen during the block, if its statement is reached."""
        self._fault, self._passed, self.happened = fault, 0, None
        try:
            yield
        finally:
            self._fault = None

    def _before_statement(self, connection: Connection, *_: Any) -> None:
        if self._is_due("killed", "cut"):
            if self.happened is not None and self.happened.kind == "killed":
                raise Killed
            self._end(connection)

    def _before_commit(self, connection: Connection) -> None:
        if self._is_due("cut before commit", "answer lost"):
            if self.happened is not None and self.happened.kind == "answer lost":
                driver(connection).commit()
            driver(connection).close()

    def _is_due(self, *kinds: Kind) -> bool:
        if self._fault is None or self._fault.kind not in kinds:
            return False
        self._passed += 1
        if self._passed != self._fault.nth:
            return False
        self.happened, self._fault = self._fault, None
        return True

    def _end(self, connection: Connection) -> None:
        """Have the server end the connection, as its restart would."""
        end_backends(self._bystander, [driver(connection).info.backend_pid])


def end_backends(cursor: Any, pids: list[int]) -> None:
    """Have the server end connections, and wait until they have ended."""
    cursor.execute("SELECT pg_terminate_backend(pid, 5000) FROM unnest(%s::int[]) pid", (pids,))


def lock_holders(cursor: Any) -> set[int]:
    """Return the server processes of the connections that hold locks of the ledger's own."""
    cursor.execute("SELECT DISTINCT pid FROM pg_locks WHERE locktype = 'advisory' AND granted")
    return {pid for (pid,) in cursor.fetchall()}


def end_lock(cursor: Any, name: str) -> None:
    """Have the server end the connection that holds the lock of that name."""
    cursor.execute(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted "
        "AND (classid::bigint << 32 | objid::bigint) = hashtextextended(%s, 0)",
        (name,),
    )
    [(pid,)] = cursor.fetchall()
    end_backends(cursor, [pid])


def driver(connection: Connection) -> Any:
    """Return psycopg2's connection below SQLAlchemy's."""
    return connection.connection.dbapi_connection
