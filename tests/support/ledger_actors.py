"""Jobs that stop at the code's own crash points, and go on, or die there, when they are told; one runs at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.support.ledger_faults import Killed


class Actor:
    """A job in a thread of its own; the caller waits while it runs."""

    def __init__(self, job: Callable[[], object]) -> None:
        self._job = job
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._dies = False
        self.at: str = ""
        """The point where it waits; empty before it began and after it ended."""
        self.is_over = False
        self.was_cut = False
        """Whether its connections were ended while it waited."""
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Let it run to its next point, or to its end."""
        self._go.release()
        self._stopped.acquire()

    def finish(self) -> None:
        """Let it run to its end."""
        while not self.is_over:
            self.step()

    def kill(self) -> None:
        """End it where it waits, as kill -9 would."""
        self._dies = True
        self.finish()

    def reach(self, point: str) -> None:
        """Wait here until told to go on; called by the job."""
        self.at = point
        self._stopped.release()
        self._go.acquire()
        self.at = ""
        if self._dies:
            raise Killed

    def is_current(self) -> bool:
        """Return whether the calling thread is this job's."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._job()
        except BaseException as error:
            self.error = error
        finally:
            self.is_over = True
            self._stopped.release()
