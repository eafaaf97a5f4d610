"""Tells the operators of outages, beside the queries: a broker or a ledger that is away only delays notices."""

from __future__ import annotations

import threading
from datetime import timedelta

from include.errors import one_line
from include.intervals.notifications import tell_outages
from include.pipelines.spec import Pipeline
from spark_jobs.spark.log import log_of

EVERY = timedelta(seconds=1)
"""How often the ledger is asked for what was not told yet."""

LAST = timedelta(seconds=20)
"""How long the last look may take. What it leaves untold, the next driver or an interval tells."""


class OutageNotices(threading.Thread):
    """Tells until ended what the archive query finds down, or up again; does nothing where no report is watched."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(name="outages", daemon=True)
        self._pipeline = pipeline
        self._ended = threading.Event()
        self._is_late = False

    def run(self) -> None:
        """Tell until ended, and once more then, unless broker or ledger was away at the look before."""
        if not self._pipeline.watched_reports:
            return
        while not self._ended.wait(EVERY.total_seconds()):
            self._tell()
        if not self._is_late:
            self._tell()

    def _tell(self) -> None:
        try:
            if told := tell_outages(self._pipeline):
                log_of(self._pipeline.name).info("%s notifications of outages sent", told)
            self._is_late = False
        except Exception as error:  # the thread's edge: whatever is wrong with a service now, it is told later
            if not self._is_late:
                log_of(self._pipeline.name).warning("outages are not told yet: %s", one_line(str(error)))
            self._is_late = True

    def end(self) -> None:
        """End the thread after a last look; one that hangs is not waited for."""
        self._ended.set()
        self.join(LAST.total_seconds())
