"""How a failing stream is started again: later each time, and not for ever if that cannot help."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import takewhile

from airflow.sdk import Context, RetryDecision, RetryPolicy

from include.airflow.notifier import send_alert, stream_key
from include.errors import error_class, one_line
from include.ledger.streams.restarts import IN_A_ROW, failures_in_a_row

GIVE_UP_AFTER = 3
"""Failures in a row that no restart can fix (offsets lost, wrong settings) after which the stream's DAG is paused."""

ALERT_AFTER = 3
"""Failures in a row of any other kind after which the operators are notified, once; restarting goes on."""

RETRIES = 100_000
"""Retries of the stream's task: its run fails when restarting is given up, not after a number of outages."""

_FIRST, _LONGEST = timedelta(seconds=5), timedelta(minutes=5)


def delay_after(failures: int) -> timedelta:
    """Return how long to wait after this many failures in a row: 5 s, doubled each time, at most 5 minutes."""
    return min(_LONGEST, _FIRST * 2 ** min(max(failures, 1) - 1, 10))


def is_hopeless(failures: Sequence[int | None]) -> bool:
    """Return whether enough of the newest failures to give up, newest first, are all of a final kind."""
    final = takewhile(lambda code: code is not None and not error_class(code).retryable, failures)
    return len(list(final)) >= GIVE_UP_AFTER


class StreamBackoff(RetryPolicy):
    """Waits before the next try of a stream's task, depending on its driver's failures in a row."""

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Return the decision to try again, and when; notify the operators once about a row of failures."""
        failures = len(failures_in_a_row(self.pipeline, IN_A_ROW))
        # Also later: nobody could be notified at the third, or it was over for a while. An open alert stays one.
        if failures >= ALERT_AFTER and context is not None:
            send_alert(
                context,
                self.pipeline,
                f"{one_line(str(exception), 2000)}; {failures} failures in a row, trying on",
                key=stream_key(self.pipeline),
            )
        return RetryDecision.retry(delay_after(failures), f"failure {failures} in a row")
