"""Sends committed rows to the pipeline's outputs, each in a thread of its own beside the queries.

An output follows the ledger, so it sends exactly the archived rows: nothing that was not committed. An output that
cannot send (its database is unreachable) waits and logs that; archive and views go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.crash_points import crash_point
from include.errors import AnotherWriter, ServiceUnreachable, TidemarkError
from include.ledger.archive import row_outputs
from include.ledger.archive.row_outputs import Refused, Unsent
from include.ledger.outputs import targets
from include.ledger.outputs.targets import Reached
from include.ledger.streams import writers
from include.offsets import Coordinates, OffsetRange
from include.pipelines.spec import DatabaseTable, Pipeline, Rows
from include.pipelines.spec.outputs import target_of
from spark_jobs.decoding.poison import find_poison, thrown_by
from spark_jobs.outputs.frames import output_rows, ranges_of, read_unsent
from spark_jobs.outputs.table import TableTarget
from spark_jobs.outputs.topic import TopicTarget
from spark_jobs.spark.failures import SPARK_FAILURES, root_cause, translate
from spark_jobs.spark.log import log_of
from spark_jobs.streaming.summed_lines import SummedLines

EVERY = 5.0
"""Seconds after which the ledger is asked even if the archive query has committed nothing: for replays."""

LONGEST = 300.0
"""Seconds between two tries at most."""

LAST = 20.0
"""Seconds that the last look may take when the stream is stopped; the next driver sends the rest."""

COMPARE_EVERY = 600.0
"""Seconds after which an output is compared with its target even if nothing failed."""

_LOOK_AGAIN = 1.0
"""Seconds after which a stream that has caught up, and still sends, looks whether it was asked to stop."""


class Target(Protocol):
    """Where an output's rows go."""

    def reached(self) -> Reached | None:
        """Return up to where it has rows; None when it does not say."""

    def send(self, rows: DataFrame, unsent: Unsent, /) -> tuple[int, Sequence[Refused]]:
        """Write the rows, even if they were sent before; return their number, and the rows that cannot be sent."""


def opened(pipeline: Pipeline, output: Rows, lease: writers.Lease) -> Target:
    """Return where the output's rows go."""
    if isinstance(output.to, DatabaseTable):
        return TableTarget(pipeline, output, output.to, lease)
    return TopicTarget(pipeline, output, output.to, lease)


class RowOutputs:
    """The threads of a pipeline's outputs; none where it declares none."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, lease: writers.Lease) -> None:
        self._senders = [_Sender(spark, pipeline, output, lease) for output in pipeline.outputs]

    def start(self) -> None:
        """Begin to send."""
        for each in self._senders:
            each.start()

    def wake(self) -> None:
        """Look now, because something was committed."""
        for each in self._senders:
            each.woken.set()

    def end(self, patience: float) -> None:
        """Send what is committed within `patience` seconds, then end."""
        for each in self._senders:
            each.end(patience)
        for each in self._senders:
            each.join(patience + 1)

    def end_sent(self, is_asked_to_stop: Callable[[], bool]) -> bool:
        """Send everything that is committed, then end; return False if it was asked to stop before.

        Raises the error that keeps an output from sending, and what `is_asked_to_stop` raises.
        """
        for each in self._senders:
            each.end(None)
        for each in self._senders:
            while each.is_alive():
                if is_asked_to_stop():
                    self.end(LAST)
                    return False
                each.join(_LOOK_AGAIN)
        for each in self._senders:
            if each.failure:
                raise each.failure
        return True


class _Sender(threading.Thread):
    """Sends to one output until ended."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, output: Rows, lease: writers.Lease) -> None:
        super().__init__(name=f"output-{output.name}", daemon=True)
        self.woken = threading.Event()
        self.failure: TidemarkError | None = None
        """The error that keeps it from sending."""
        self._spark, self._pipeline, self._output, self._lease = spark, pipeline, output, lease
        self._target = opened(pipeline, output, lease)
        self._log = log_of(pipeline.name, output.name)
        self._lines = SummedLines(self._log, "%s rows sent, %s refused, %.1f s", "sends")
        self._compare_at, self._is_noted_sending = 0.0, False
        self._ended = self._lost_lease = False
        self._tries = 0
        """That have failed in a row."""
        self._until: float | None = None

    def end(self, patience: float | None) -> None:
        """Let it look once more and end, after `patience` seconds at the latest."""
        self._until = None if patience is None else time.monotonic() + patience
        self._ended = True
        self.woken.set()

    def run(self) -> None:
        """Send until ended; end for good where another driver has taken over."""
        while not self._ended:
            self._look()
            if self._lost_lease:
                return
            self._rest()
        self._look()
        self._lines.tell()

    def _rest(self) -> None:
        """Wait for a commit; after a failure whatever is committed, and longer each time unless a service was away.

        A failure may come behind messages that were sent, and each try sends these again.
        """
        self._tries = self._tries + 1 if self.failure and not isinstance(self.failure, ServiceUnreachable) else 0
        seconds = min(EVERY * 2 ** max(0, self._tries - 1), max(EVERY, LONGEST))
        until = time.monotonic() + seconds
        while not self._ended and (left := until - time.monotonic()) > 0:
            is_woken = self.woken.wait(left)
            self.woken.clear()
            if is_woken and not self.failure:
                return

    def _look(self) -> None:
        self._lines.tell_due()
        try:
            if self._is_in_time():
                self._compare()
            while self._is_in_time() and (unsent := row_outputs.next_unsent(self._pipeline.name, self._output.name)):
                self._send(unsent)
                self._went_on()
            if self._is_in_time():
                self.failure = None
                self._note_sending()
        except Exception as error:  # the thread's edge: on any error the output waits and logs it
            self._waits(error)

    def _compare(self) -> None:
        """Go back to what the target has, when this driver begins, after a failure, and now and then.

        Raises UsageError when rows were sent to another target.
        """
        if not self.failure and time.monotonic() < self._compare_at:
            return
        name, target = self._output.name, target_of(self._pipeline.name, self._output)
        targets.keep_target(self._lease, name, target)
        if (reached := self._target.reached()) and (again := targets.set_back(self._lease, name, reached)):
            self._log.warning("%s was made anew, or is an older copy: %s rows are sent again", target, again)
        self._compare_at = time.monotonic() + COMPARE_EVERY

    def _note_sending(self) -> None:
        """Note once that it does not wait, whoever noted that it did."""
        if not self._is_noted_sending:
            targets.note_sending(self._pipeline.name, self._output.name)
        self._is_noted_sending = True

    def _is_in_time(self) -> bool:
        return self._until is None or time.monotonic() < self._until

    def _went_on(self) -> None:
        if self.failure:
            self._log.info("sends again")
        self.failure = None

    def _waits(self, error: Exception) -> None:
        """Note once what it waits for."""
        known = error if isinstance(error, TidemarkError) else translate(error)
        failure = known or TidemarkError(
            f"the output {self._output.name} cannot send: {root_cause(error)}",
            remedy="correct its declaration, or its target",
            pipeline=self._pipeline.name,
        )
        is_known, self.failure = str(failure) == str(self.failure), failure
        self._is_noted_sending = False
        self._lost_lease = isinstance(failure, AnotherWriter) and self._is_lease_over()
        if is_known or self._lost_lease:
            return
        self._log.warning("nothing is sent: %s", failure)
        try:
            row_outputs.note_waiting(self._pipeline.name, self._output.name, str(failure))
        except TidemarkError as unnoted:
            self._log.warning("the ledger has no note of that: %s", unnoted)

    def _is_lease_over(self) -> bool:
        """Return whether the ledger says so: a foreign producer with the same transactional id is another writer, too.

        A ledger that does not answer says nothing; the next try asks it again.
        """
        try:
            writers.renew(self._lease)
        except AnotherWriter:
            return True
        except TidemarkError:
            pass
        return False

    def _send(self, unsent: Unsent) -> None:
        """Send the rows, then note it: in this order, so that a crash in between sends them again."""
        started = time.monotonic()
        writers.renew(self._lease)
        sent, refused = self._sent(unsent) if unsent.rows else (0, [])
        if len(refused) > row_outputs.MOST_REFUSED:
            raise row_outputs.too_many(self._pipeline.name, self._output.name, refused, sent)
        seconds = time.monotonic() - started
        row_outputs.record_sent(self._lease, self._output.name, unsent, refused, rows=sent, seconds=seconds)
        crash_point("output_noted")
        for each in refused[:5]:
            at = f"{each.topic}-{each.partition} offset {each.offset}"
            self._log.warning("%s is not sent (%s): %s", at, each.reason, each.detail)
        if sent or refused:
            self._lines.add("", sent, len(refused), seconds)

    def _sent(self, unsent: Unsent) -> tuple[int, Sequence[Refused]]:
        """Send the rows; those of records that make the transform throw are left out and refused."""
        try:
            return self._target.send(self._rows(read_unsent(self._spark, self._pipeline, unsent)), unsent)
        except SPARK_FAILURES as error:
            if translate(error) is not None or not self._output.rows:
                raise
        archived = read_unsent(self._spark, self._pipeline, unsent)
        poison = self._poison(unsent, ranges_of(unsent, archived))
        for topic, partition, offset in poison:
            at = (F.col("kafka_topic") == topic) & (F.col("kafka_partition") == partition)
            archived = archived.where(~(at & (F.col("kafka_offset") == offset)))
        sent, refused = self._target.send(self._rows(archived), unsent)
        return sent, [*refused, *(Refused(*at, -1, "throws", thrown) for at, thrown in sorted(poison.items()))]

    def _rows(self, archived: DataFrame) -> DataFrame:
        return output_rows(self._spark, self._pipeline, self._output, archived)

    def _poison(self, unsent: Unsent, ranges: Sequence[OffsetRange]) -> dict[Coordinates, str]:
        """Return the records that make the transform throw. Raises TidemarkError when these are more than a few."""

        def archived(part: Sequence[OffsetRange]) -> DataFrame:
            named = [replace(each, topic_id=unsent.topic_ids[each.topic_partition.topic]) for each in part]
            return read_unsent(self._spark, self._pipeline, unsent, named)

        return find_poison(
            ranges, lambda part: thrown_by(self._rows(archived(part))), lambda part: thrown_by(archived(part))
        )
