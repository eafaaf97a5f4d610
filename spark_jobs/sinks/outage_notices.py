"""Notifies operators of outages in a thread beside the queries: an unreachable broker or ledger only delays notices."""

from __future__ import annotations

import threading
from datetime import timedelta

from include.errors import one_line
from include.intervals.reporting.notifications import send_outages
from include.pipelines.spec import Pipeline
from spark_jobs.spark.log import log_of

EVERY = timedelta(seconds=1)
"""How often the ledger is asked for outages that were not notified yet."""

LAST = timedelta(seconds=20)
"""How long the last look may take. The next driver or an interval sends what it leaves."""


class OutageNotices(threading.Thread):
    """Notifies until ended of what the archive query finds down, or up again; idle where no report is watched."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(name="outages", daemon=True)
        self._pipeline = pipeline
        self._ended = threading.Event()
        self._is_late = False

    def run(self) -> None:
        """Notify until ended, then once more, unless broker or ledger was unreachable at the last look."""
        if not self._pipeline.watched_reports:
            return
        while not self._ended.wait(EVERY.total_seconds()):
            self._notify()
        if not self._is_late:
            self._notify()

    def _notify(self) -> None:
        try:
            if sent := send_outages(self._pipeline):
                log_of(self._pipeline.name).info("%s notifications of outages sent", sent)
            self._is_late = False
        except Exception as error:  # the thread's edge: whatever is wrong with a service, notices are sent later
            if not self._is_late:
                log_of(self._pipeline.name).warning("notifications of outages are delayed: %s", one_line(str(error)))
            self._is_late = True

    def end(self) -> None:
        """End the thread after a last look; one that hangs is not waited for."""
        self._ended.set()
        self.join(LAST.total_seconds())
