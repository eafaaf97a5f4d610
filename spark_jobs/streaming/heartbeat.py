"""The lease of a stream's driver, and the thread that renews it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from include.errors import ServiceUnreachable, TidemarkError, one_line
from include.ledger.connection import LOCK_SECONDS, SILENT_SECONDS, check_answers, check_version, does_not_answer
from include.ledger.database import engine
from include.ledger.patience import SHARE, patient
from include.ledger.streams import writers
from include.settings import settings
from spark_jobs.spark.entry import end_now
from spark_jobs.spark.log import log_of

_ANSWER_SECONDS = 5
"""How long PostgreSQL may take to accept a connection while a renewal waits for an answer."""

_UNHEARD_SECONDS = 60
"""After which a driver is ended that does not notice that PostgreSQL hangs: it waits for an answer itself."""

_END_SECONDS = 15
"""How long a renewal may take when the stream ends."""

_NOT_RELEASED = "the lease was not released, and ends by itself"


class Heartbeat(threading.Thread):
    """Renews the lease from the moment it is held, also while Spark starts.

    A ledger that is unreachable, hangs, or refuses writes, is tolerated as long as the lease lasts.
    """

    def __init__(self, lease: writers.Lease) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.keeps_lease = False
        """Whether the lease is to end by itself, because something may still write by it at the stream's end."""
        self._application_id = self._ui_address = ""
        self._lease = lease
        self._ended = threading.Event()
        self._stop_requested = False
        self._error: TidemarkError | None = None
        self._heard = threading.Event()
        self._renewed = self._answered = time.monotonic()
        self._asked: float | None = None
        """When the renewal began that is under way."""

    def note_application(self, spark: SparkSession) -> None:
        """Note the Spark application's id and the address of its UI with the next renewal."""
        self._application_id = spark.sparkContext.applicationId or ""
        self._ui_address = spark.sparkContext.uiWebUrl or ""

    def run(self) -> None:
        """Renew until ended, or until the lease is lost."""
        every = min(2.0, settings().lease_seconds / 5)
        self._renewed = time.monotonic()
        threading.Thread(target=self._watch, name="watch of the heartbeat", daemon=True).start()
        while not self._ended.wait(every):
            self._asked = time.monotonic()
            try:
                self._stop_requested = writers.renew(self._lease, self._application_id, self._ui_address)
                self._renewed = time.monotonic()
            except Exception as error:  # the thread's edge: if it died, the lease would expire unnoticed
                is_final = isinstance(error, TidemarkError) and not isinstance(error, ServiceUnreachable)
                if is_final or time.monotonic() - self._renewed > settings().lease_seconds:
                    self._error = _named(error)
                    return
            finally:
                self._asked = None

    def stop_requested(self) -> bool:
        """Return whether a stop was requested. Raises TidemarkError, mostly AnotherWriter, when the lease is lost."""
        if self._error is not None:
            self._heard.set()
            raise self._error
        return self._stop_requested

    def _watch(self) -> None:
        """Look whether PostgreSQL hangs, and end a driver that waits for it in its main thread, as one with flags does.

        Nothing is lost then: its lease is over, so it can commit nothing more.
        """
        while not self._ended.wait(1):
            # The renewals may have ended before, with an error that nobody asks for.
            if error := self._error or self._hangs():
                self._error = self._error or error
                # With another error PostgreSQL answers, also the main thread.
                if isinstance(error, ServiceUnreachable) and not self._heard.wait(_UNHEARD_SECONDS):
                    end_now(error, self._lease.pipeline)
                return

    def _hangs(self) -> TidemarkError | None:
        """Return the error of a renewal that does not return because PostgreSQL hangs: nothing else would end it.

        It then takes no other connection either. A renewal also waits for a commit of this driver that takes longer
        than the lease, but not for longer than for any lock.
        """
        now, lease, asked = time.monotonic(), settings().lease_seconds, self._asked
        if asked is None:
            # A process that was stopped goes on before its renewals do.
            return None
        if now - asked > max(lease, LOCK_SECONDS + SILENT_SECONDS):
            return does_not_answer(f"a renewal of the lease has no answer after {now - asked:.0f} s")
        if now - max(self._renewed, self._answered) > lease:
            try:
                check_answers(_ANSWER_SECONDS)
            except ServiceUnreachable as error:
                return error
            self._answered = time.monotonic()
        return None

    def end(self) -> bool:
        """End the renewals; return False when one of them still waits for the ledger."""
        self._ended.set()
        self._heard.set()
        self.join(timeout=_END_SECONDS)
        return not self.is_alive()


def _named(error: Exception) -> TidemarkError:
    if isinstance(error, TidemarkError):
        return error
    return TidemarkError(
        f"the lease could not be renewed: {type(error).__name__}: {one_line(str(error))}",
        remedy="./tidemark status; repair PostgreSQL, then start the stream again",
    )


@contextmanager
def leased(pipeline: str) -> Iterator[tuple[writers.Lease, Heartbeat]]:
    """Hold the pipeline's lease, renewed by the heartbeat, and be patient with the ledger.

    Raises AnotherWriter, and UsageError when newer code has migrated the ledger.
    """
    check_version()
    lease = writers.acquire(pipeline)
    heartbeat = Heartbeat(lease)
    heartbeat.start()
    with patient(SHARE * settings().lease_seconds):
        try:
            yield lease, heartbeat
        finally:
            if not heartbeat.end():
                # The same connections would let the next step wait as long.
                engine().dispose()
                log_of(pipeline).warning("%s: a renewal of it has no answer yet", _NOT_RELEASED)
            elif heartbeat.keeps_lease:
                log_of(pipeline).warning("%s: a query is left in its micro-batch", _NOT_RELEASED)
            else:
                _release(lease)


def _release(lease: writers.Lease) -> None:
    """Release the lease; one that the ledger cannot take back ends by itself, and hides no error before it."""
    try:
        writers.release(lease)
    except ServiceUnreachable as error:
        log_of(lease.pipeline).warning("%s: %s", _NOT_RELEASED, error)
