"""Drivers that were started detached: intent before the start, pid after it, exit code at the end."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import psutil
from sqlalchemy import ColumnElement, func, select

from include.ledger.database import session
from include.ledger.models import StreamLaunch
from include.ledger.streams.writers import LiveWriter
from include.processes import ProcessOnHost

YARN = "yarn"
"""What is noted as the host of a launch by YARN: its host is unknown until it runs."""

UNSUBMITTED = "could not be submitted"
"""Why a launch ended whose driver never started: what it needs, its disk or its settings for example, was refused."""

_LONGEST_START = timedelta(hours=1)
"""Most from its launch to its lease of a driver that came up when it had been given up, and another was launched."""

_MOST_THAT_START = 20
"""How many launches are looked at: each is given up after minutes."""


@dataclass(frozen=True)
class Launch:
    """A driver that was started detached."""

    id: str
    """Random, also in the driver's environment."""
    pipeline: str
    launched_at: datetime
    host: str
    log: str
    """Path of its log file on that host, or URL of its application's page."""
    pid: int | None
    """Process id of spark-submit, once known."""
    exit_code: int | None
    """None until it ends."""
    ended_at: datetime | None = None
    """When it was found ended."""
    ended_for: str = ""
    """Why Airflow ended it, or `UNSUBMITTED`; empty when it did not."""
    application: str = ""
    """Id of its application on YARN; empty for a process."""
    error: str = ""
    """The error with which it ended, for hosts that cannot read its log; empty: none was noted."""

    @property
    def is_on_yarn(self) -> bool:
        """Whether YARN runs it."""
        return self.host == YARN

    @property
    def was_submitted(self) -> bool:
        """Whether there may have been a driver."""
        return self.ended_for != UNSUBMITTED

    @property
    def host_name(self) -> str:
        """Name of the host, without its boot and pid namespace."""
        return self.host.partition("/")[0]

    @property
    def log_place(self) -> str:
        """Path of its log and the name of the host it is on, or the page of its application on YARN; empty without."""
        return self.log if self.application or not self.log else f"{self.log} on {self.host_name}"


def _launch_of(row: StreamLaunch) -> Launch:
    facts = (row.pid, row.exit_code, row.ended_at, row.ended_for, row.application, row.error)
    return Launch(row.id, row.pipeline, row.launched_at, row.host, row.log, *facts)


def note_intent(launch: str, pipeline: str, host: str, log: str) -> None:
    """Record that a driver is about to be started."""
    with session() as ledger:
        ledger.add(StreamLaunch(id=launch, pipeline=pipeline, host=host, log=log))


def note_unsubmitted(launch: str, pipeline: str, exit_code: int, error: str) -> None:
    """Record a launch together with its end, for its driver could not be started; one whose intent is noted stays.

    To no host does it ever look like one that starts, but it counts among the failures.
    """
    with session() as ledger:
        if ledger.get(StreamLaunch, launch) is None:
            row = StreamLaunch(id=launch, pipeline=pipeline, host=this_host(), log="", ended_for=UNSUBMITTED)
            row.ended_at, row.exit_code, row.error = func.now(), exit_code, error
            ledger.add(row)


def note_pid(launch: str, pid: int) -> None:
    """Record the process id of its spark-submit."""
    with session() as ledger:
        ledger.get_one(StreamLaunch, launch).pid = pid


def note_application(launch: str, application: str, page: str = "") -> None:
    """Record the id of its application on YARN and, once known, the address of that application's page."""
    with session() as ledger:
        row = ledger.get(StreamLaunch, launch)
        if row is not None:
            row.application, row.log = application, page or row.log


def note_running(launch: str, application: str) -> None:
    """Record that the driver runs, and as which application on YARN; the driver itself calls this.

    Whoever launched it may have noted its end, when the application was not known yet.
    """
    with session() as ledger:
        row = ledger.get(StreamLaunch, launch)
        if row is not None:
            row.application, row.exit_code, row.ended_at = application, None, None


def note_end(launch: str, exit_code: int, error: str = "") -> None:
    """Record the driver's exit code and error; the driver itself calls this."""
    with session() as ledger:
        row = ledger.get(StreamLaunch, launch)
        if row is not None:
            row.ended_at, row.exit_code, row.error = func.now(), exit_code, error


def note_reason(launch: str, why: str) -> None:
    """Record why Airflow ends a driver; without effect on one that a person started."""
    with session() as ledger:
        row = ledger.get(StreamLaunch, launch)
        if row is not None:
            row.ended_for = why


def find(launch: str) -> Launch | None:
    """Return the launch of that id."""
    with session() as ledger:
        row = ledger.get(StreamLaunch, launch)
        return _launch_of(row) if row else None


def last(pipeline: str) -> Launch | None:
    """Return the newest launch that may have a driver."""
    return next(iter(_newest(pipeline, 1, StreamLaunch.ended_for != UNSUBMITTED)), None)


def recent(pipeline: str, most: int) -> list[Launch]:
    """Return the pipeline's newest launches, newest first, also those that could not be submitted."""
    return _newest(pipeline, most)


def _newest(pipeline: str, most: int, *wanted: ColumnElement[bool]) -> list[Launch]:
    newest = select(StreamLaunch).where(StreamLaunch.pipeline == pipeline, *wanted)
    with session() as ledger:
        return [_launch_of(row) for row in ledger.scalars(newest.order_by(StreamLaunch.number.desc()).limit(most))]


def this_host() -> str:
    """Return where a pid means the same process as here."""
    return ProcessOnHost.this().place


def holds_lease(launch: Launch, live: LiveWriter) -> bool:
    """Return whether the launch's driver holds the live lease, wherever it runs, and not one that a person started."""
    if launch.exit_code is not None:
        return False
    if launch.host != this_host():
        return is_of(launch, live)
    # Beside a driver that hangs and lost its lease, a command may hold it: the holder's own process tells.
    return _is_at(live.holder, launch.host) and _is_process_of(launch, live.holder.process.pid)


def launch_of(pipeline: str, live: LiveWriter) -> Launch | None:
    """Return the launch whose driver holds the live lease: the newest, or one before it that was long in coming up.

    None for a driver that a person started.
    """
    newest = _newest(pipeline, _MOST_THAT_START, StreamLaunch.ended_for != UNSUBMITTED)
    of_it = (each for each in newest if each is newest[0] or _may_have_been_late(each, live))
    return next((each for each in of_it if holds_lease(each, live)), None)


def _may_have_been_late(launch: Launch, live: LiveWriter) -> bool:
    """Return whether the live driver may be that of a launch before the newest one.

    Launches that were killed have no end in the ledger, either. A command notes no application, and a driver only once
    Spark has started: on another host, or on YARN, it is nobody's until then.
    """
    if not live.application_id and launch.host != this_host():
        return False
    if launch.is_on_yarn:
        return launch.application == live.application_id
    return live.acquired_at - launch.launched_at < _LONGEST_START


def is_of(launch: Launch, writer: LiveWriter) -> bool:
    """Return whether the writer is the driver of a launch on another host or on YARN."""
    is_there = launch.is_on_yarn or _is_at(writer.holder, launch.host)
    return is_there and writer.acquired_at >= launch.launched_at


def _is_at(holder: ProcessOnHost, host: str) -> bool:
    """Return whether a lease's holder runs where a launch was noted; by host name if no more was noted of both."""
    if not holder.process.boot_id or "/" not in host:
        return holder.host == host.split("/")[0]
    return holder.place == host


def _is_process_of(launch: Launch, pid: int) -> bool:
    """Return whether a process of this host is a launch's driver."""
    try:
        process = psutil.Process(pid)
        try:
            return process.environ().get("TIDEMARK_LAUNCH") == launch.id
        except psutil.AccessDenied:
            # Of another user's process no more than its ancestors can be seen; pages may run under another user.
            return launch.pid in [each.pid for each in (process, *process.parents())]
    except psutil.NoSuchProcess:
        return False
