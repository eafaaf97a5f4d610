"""The lease that lets one driver commit for a pipeline, with a growing fencing token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import psutil
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from include.errors import AnotherWriter
from include.ledger.database import lock, session, statements
from include.ledger.models import Writer
from include.ledger.patience import repeatable
from include.processes import ProcessOnHost
from include.settings import settings
from include.waiting import wait_for

REPLACED_AGAIN = timedelta(hours=1)
"""Age of a driver of older code that is replaced although one was replaced for the same deployed code before."""


@dataclass(frozen=True)
class Lease:
    """A held lease."""

    pipeline: str
    token: int
    holder: str


@dataclass(frozen=True)
class LiveWriter:
    """The driver, or the command, that holds a pipeline's lease."""

    holder: ProcessOnHost
    token: int
    acquired_at: datetime
    renewed_at: datetime
    """Its last sign of life."""
    application_id: str
    """Spark's id of its application; empty until it is known."""
    ui_address: str = ""
    """Address of Spark's own pages about it; empty when they are off."""
    command: str = ""
    """The command that holds it, e.g. `erase`; empty for a driver."""

    def in_the_way(self, pipeline: str) -> AnotherWriter:
        """Return the error of whoever needs the lease, too."""
        if self.command:
            return AnotherWriter(
                f"the command {self.command} holds this pipeline's lease: {self.holder} (fencing token {self.token})",
                remedy="wait for it to end, then repeat this",
                pipeline=pipeline,
            )
        return AnotherWriter(
            f"another driver writes this pipeline: {self.holder} (fencing token {self.token})",
            remedy=f"stop it first: {how_to_stop(pipeline)}, and repeat this when it has ended",
            pipeline=pipeline,
        )


def _expiry() -> timedelta:
    return timedelta(seconds=settings().lease_seconds)


def _is_held(row: Writer, now: datetime) -> bool:
    """Return whether a holder has the lease, judging by its times.

    The ledger's clock may have been set back: a live holder renews at once, a dead one's last renewal is in the future.
    """
    return bool(row.holder) and row.expires_at > now and row.renewed_at <= now + _expiry()


def _try_acquire(pipeline: str, command: str = "", silent_since: datetime | None = None) -> Lease | None:
    """Return the lease; None while another holds it. `silent_since`: a renewal that is still the last one."""
    with session() as ledger:
        # Serialises concurrent drivers, even when the pipeline has no row yet.
        lock(ledger, f"writer:{pipeline}")
        row = ledger.get(Writer, pipeline, with_for_update=True)
        # After the row: a driver that is frozen in its commit locks it for longer than a lease lasts.
        now = ledger.scalar(select(func.clock_timestamp())) or datetime.now(UTC)
        has_holder = row and row.holder and row.expires_at > now and not ProcessOnHost.parse(row.holder).is_dead
        if row and has_holder and (_is_held(row, now) or row.renewed_at != silent_since):
            return None
        row = row or Writer(pipeline=pipeline, token=0)
        row.token += 1
        row.holder, row.acquired_at, row.renewed_at = str(ProcessOnHost.this()), now, now
        row.expires_at, row.stop_requested = now + _expiry(), False
        row.application_id, row.ui_address, row.code, row.command = "", "", {}, command
        ledger.add(row)
        return Lease(pipeline, row.token, row.holder)


def acquire(pipeline: str, command: str = "") -> Lease:
    """Take the lease, for a driver or a command; wait out the lease of a holder that went silent.

    Raises AnotherWriter when the holder is still there after that time.
    """
    with session() as ledger:
        row = ledger.get(Writer, pipeline)
        renewed_at = row.renewed_at if row else None
    lease = wait_for(lambda: _try_acquire(pipeline, command), seconds=settings().lease_seconds + 1)
    lease = lease or _try_acquire(pipeline, command, silent_since=renewed_at)
    if lease is None:
        with session() as ledger:
            row = ledger.get_one(Writer, pipeline)
            if row.holder:
                raise live_of(row).in_the_way(pipeline)
        raise AnotherWriter("another driver wrote this pipeline until now", remedy="repeat this", pipeline=pipeline)
    return lease


def how_to_stop(pipeline: str) -> str:
    """Return how a stream is stopped for good: Airflow, or a Deployment, starts another driver at once."""
    return (
        f"pause stream__{pipeline} if Airflow runs it (a Deployment of Kubernetes: scale it to 0), then "
        f"`./tidemark stream {pipeline} --stop`"
    )


def check(ledger: Session, lease: Lease) -> None:
    """Assert inside the caller's transaction that the lease is still held, and renew it.

    The row stays locked until the transaction ends, so nobody can take the lease in between.
    Raises AnotherWriter when another driver has taken it, or it ran out.
    """
    row = ledger.get(Writer, lease.pipeline, with_for_update=True)
    now = ledger.scalar(select(func.clock_timestamp()))
    if row is None or now is None or row.token != lease.token or row.expires_at <= now:
        raise _is_over(lease, row.token if row else None)
    row.renewed_at, row.expires_at = now, now + _expiry()


def renew_checked(ledger: Session, lease: Lease) -> None:
    """Renew the lease as the last statement of a transaction that has checked it.

    Nobody could renew it meanwhile: a transaction longer than a lease must not end with one that ran out.
    """
    now = func.clock_timestamp()
    renewed = update(Writer).where(Writer.pipeline == lease.pipeline).values(renewed_at=now, expires_at=now + _expiry())
    ledger.execute(renewed, execution_options={"synchronize_session": False})


def _is_over(lease: Lease, current: int | None) -> AnotherWriter:
    return AnotherWriter(
        f"this driver's lease is over (its fencing token {lease.token}, current {current}): nothing was committed",
        remedy="nothing to do if another driver took over; else start the stream again",
        pipeline=lease.pipeline,
    )


@repeatable
def renew(lease: Lease, application_id: str = "", ui_address: str = "") -> bool:
    """Renew the lease and return whether a stop was requested. Raises AnotherWriter when the lease is lost.

    One statement: a driver that is frozen while it renews must not keep its successor from the lease.
    """
    now = func.clock_timestamp()
    told = {"application_id": application_id, "ui_address": ui_address}
    renewed = (
        update(Writer)
        .where(Writer.pipeline == lease.pipeline, Writer.token == lease.token, Writer.expires_at > now)
        .values(renewed_at=now, expires_at=now + _expiry(), **{name: text for name, text in told.items() if text})
        .returning(Writer.stop_requested)
    )
    with statements() as ledger:
        stop_requested = ledger.scalar(renewed)
        if stop_requested is None:
            raise _is_over(lease, ledger.scalar(select(Writer.token).where(Writer.pipeline == lease.pipeline)))
    return bool(stop_requested)


def note_code(lease: Lease, code: Mapping[str, str]) -> None:
    """Note the modules that the holder runs. Raises AnotherWriter when the lease is lost."""
    with session() as ledger:
        check(ledger, lease)
        ledger.get_one(Writer, lease.pipeline).code = dict(code)


def code_of(pipeline: str, token: int) -> dict[str, str]:
    """Return the modules that the holder with this token runs; none if it noted none."""
    with session() as ledger:
        code = ledger.scalar(select(Writer.code).where(Writer.pipeline == pipeline, Writer.token == token))
        return dict(code or {})


def replace_for(pipeline: str, token: int, deployed: str) -> bool:
    """Note that the holder is replaced for deployed code; False when another holds the lease.

    False also where one already was replaced for it, and the holder is young: drivers that still run older code would
    be replaced at once for ever. The code may reach their host later. `forget_replacement` resets the note.
    """
    with session() as ledger:
        row = ledger.get(Writer, pipeline, with_for_update=True)
        if row is None or row.token != token:
            return False
        age = ledger.scalars(select(func.clock_timestamp())).one() - row.acquired_at
        if row.replaced_for == deployed and age < REPLACED_AGAIN:
            return False
        row.replaced_for = deployed
        return True


def forget_replacement(pipeline: str) -> None:
    """Note that the holder runs the deployed code."""
    with session() as ledger:
        wanted = (Writer.pipeline == pipeline, Writer.replaced_for != "")
        ledger.execute(update(Writer).where(*wanted).values(replaced_for=""))


def release(lease: Lease) -> None:
    """Give the lease back; without effect when somebody else holds it."""
    with session() as ledger:
        row = ledger.get(Writer, lease.pipeline, with_for_update=True)
        if row and row.token == lease.token:
            row.holder, row.expires_at, row.command = "", row.renewed_at, ""


def live_writer(pipeline: str) -> LiveWriter | None:
    """Return the driver that holds the pipeline's lease; None when nobody does."""
    with session() as ledger:
        row = ledger.get(Writer, pipeline)
        now = ledger.scalar(select(func.clock_timestamp()))
        return live_at(row, now) if row is not None and now is not None else None


def live_writers() -> dict[str, LiveWriter]:
    """Return the drivers that hold a lease, by their pipelines."""
    with session() as ledger:
        now = ledger.scalars(select(func.clock_timestamp())).one()
        rows = ledger.scalars(select(Writer).where(Writer.holder != ""))
        return {row.pipeline: live for row in rows if (live := live_at(row, now)) is not None}


def was_acquired(pipeline: str) -> bool:
    """Return whether any driver ever held the pipeline's lease."""
    with session() as ledger:
        return ledger.get(Writer, pipeline) is not None


def lapsed_writer(pipeline: str) -> LiveWriter | None:
    """Return the last driver that held the lease and let it run out; None where it was released or is held."""
    with session() as ledger:
        row = ledger.get(Writer, pipeline)
        now = ledger.scalar(select(func.clock_timestamp()))
        return live_of(row) if row is not None and row.holder and now is not None and not live_at(row, now) else None


def live_at(row: Writer, now: datetime) -> LiveWriter | None:
    """Return the holder that a row names, at this time of the ledger; None for one that has ended, or is silent."""
    return live_of(row) if _is_held(row, now) and not ProcessOnHost.parse(row.holder).is_dead else None


def live_of(row: Writer) -> LiveWriter:
    """Return the holder that a row names."""
    holder, application = ProcessOnHost.parse(row.holder), row.application_id
    # A driver of older code leaves the note of a command before it; only drivers note an application.
    command = "" if application else row.command
    return LiveWriter(holder, row.token, row.acquired_at, row.renewed_at, application, row.ui_address, command)


def live_drivers() -> dict[str, psutil.Process]:
    """Return the running drivers on this host that hold a lease, by their pipelines; not commands."""
    with session() as ledger:
        is_driver = (Writer.command == "") | (Writer.application_id != "")
        wanted = select(Writer.pipeline, Writer.holder).where(Writer.holder != "", is_driver)
        holders = {pipeline: ProcessOnHost.parse(holder) for pipeline, holder in ledger.execute(wanted).tuples()}
    return {
        pipeline: psutil.Process(each.process.pid)
        for pipeline, each in holders.items()
        if each.is_here and each.process.is_running()
    }


def request_stop(pipeline: str) -> bool:
    """Ask the pipeline's driver to stop after its micro-batch; False when none is running.

    A command that holds the lease is not asked: it never looks.
    """
    live = live_writer(pipeline)
    if live is None or live.command:
        return False
    with session() as ledger:
        ledger.get_one(Writer, pipeline, with_for_update=True).stop_requested = True
    return True
