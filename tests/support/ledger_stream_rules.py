"""Hypothesis' rules over the stream's side of the ledger, and how any action fails and is judged.

After each step every promise is asserted (tests/support/ledger_promises.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import psycopg2
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from include.errors import AnotherWriter, ServiceUnreachable, TidemarkError
from include.ledger.archive import micro_batches
from include.ledger.database import engine
from include.ledger.streams import writers
from include.settings import settings
from include.streams.generations import new_generation
from tests.support.ledger_faults import KINDS, Fault, Faults, Killed
from tests.support.ledger_promises import Seen
from tests.support.ledger_seams import put_in_place
from tests.support.ledger_world import Checkpoint, World

FAULTS = st.one_of(st.none(), st.none(), st.builds(Fault, st.sampled_from(KINDS), st.integers(1, 12)))
"""A third of the actions may fail; in actions that are too short nothing happens."""

ONE_OF_TWO = st.integers(0, 1)
RARELY = st.integers(0, 5).map(lambda n: n == 5)


@dataclass
class Driver:
    """A driver of the stream: the lease that it believes to hold, and the micro-batch that it planned."""

    lease: writers.Lease | None = None
    checkpoint: Checkpoint | None = None
    batch: int | None = None


class StreamRules(RuleBasedStateMachine):
    """Two drivers of a pipeline's stream, in any order of their actions."""

    checks: ClassVar[int] = 0
    """How many times all promises were asserted: once after each step."""
    publications: ClassVar[int] = 0
    """How many builds were published."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(f"m{uuid.uuid4().hex[:12]}")
        self.drivers = (Driver(), Driver())
        self.may_register = False
        self.before: Seen | None = None
        self.connection = psycopg2.connect(settings().database_uri("ledger"))
        self.connection.autocommit = True
        self.cursor = self.connection.cursor()
        self.faults = Faults(engine(), self.cursor)
        self.patch = pytest.MonkeyPatch()
        put_in_place(self.patch, self.world, self.reach)

    def reach(self, point: str) -> None:
        """A crash point of a job."""

    def teardown(self) -> None:
        self.faults.close()
        self.patch.undo()
        self.connection.close()

    @invariant()
    def every_promise_holds(self) -> None:
        seen = Seen(self.world, self.cursor)
        seen.check(self.before)
        if self.before is not None and not self.may_register:
            seen.failed_attempt_touches_nothing(self.before)
        type(self).publications += len(seen.published - (self.before.published if self.before else set()))
        self.before, self.may_register = seen, False
        type(self).checks += 1

    # How actions run.

    def act(self, action: Callable[[], object], fault: Fault | None, *expected: type[TidemarkError]) -> object:
        """Return the result of an action, or its error: an expected one, or that of the fault."""
        with self.faults.armed(fault):
            try:
                return action()
            except (Killed, ServiceUnreachable) as error:
                if self.faults.happened is None:
                    raise
                return error
            except expected as error:
                return error

    def held(self) -> int | None:
        """The token of the driver that may commit; None when nobody's lease is in force."""
        self.cursor.execute(
            "SELECT token FROM writers WHERE pipeline = %s AND holder <> '' AND expires_at > clock_timestamp()",
            (self.world.pipeline.name,),
        )
        row = self.cursor.fetchone()
        return row[0] if row else None

    # The topic and the stream.

    def land_three_hours(self) -> None:
        """Three micro-batches, an hour each: where every sequence begins."""
        self.take_the_lease(0, run_out=False, fault=None)
        for later in range(3):
            for partition in range(len(self.world.partitions)):
                self.world.produce(partition, 4, int(later > 0))
            self.run_a_micro_batch(0, only_plan=False, fault=None)

    @rule(partition=ONE_OF_TWO, records=st.integers(1, 6), later=ONE_OF_TWO)
    def produce(self, partition: int, records: int, later: int) -> None:
        self.world.produce(partition, records, later)

    @rule(which=ONE_OF_TWO, run_out=st.booleans(), fault=FAULTS)
    def take_the_lease(self, which: int, run_out: bool, fault: Fault | None) -> None:
        if run_out:
            self.let_the_lease_run_out()
        held, driver = self.held(), self.drivers[which]
        # As `writers.acquire` tries each second.
        lease = self.act(lambda: writers._try_acquire(self.world.pipeline.name), fault)
        if isinstance(lease, writers.Lease):
            assert held is None, f"one_writer: token {held} is in force, and {lease.token} was given"
            driver.lease, driver.checkpoint, driver.batch = lease, self.world.checkpoint, None

    def let_the_lease_run_out(self) -> None:
        name = self.world.pipeline.name
        self.cursor.execute("UPDATE writers SET expires_at = now() - interval '1 s' WHERE pipeline = %s", (name,))

    @rule(which=ONE_OF_TWO, only_plan=RARELY, fault=FAULTS)
    def run_a_micro_batch(self, which: int, only_plan: bool, fault: Fault | None) -> None:
        driver = self.drivers[which]
        lease, checkpoint = driver.lease, driver.checkpoint
        if lease is None or checkpoint is None:
            return
        if driver.batch is None:
            driver.batch = checkpoint.plan(self.world.ends)
        if not only_plan:
            self.commit(driver, lease, checkpoint, driver.batch, fault)

    def commit(
        self, driver: Driver, lease: writers.Lease, checkpoint: Checkpoint, number: int, fault: Fault | None
    ) -> None:
        held = self.held()

        def commit() -> None:
            if not micro_batches.is_committed(checkpoint.query_id, number):
                micro_batches.commit(lease, self.world.land(lease, checkpoint, number))
                assert held == lease.token, f"one_writer: {lease} has committed beside {held}"
            checkpoint.done.add(number)
            driver.batch = None

        error = self.act(commit, fault, TidemarkError)
        if isinstance(error, AnotherWriter):
            assert held != lease.token, f"{held} holds the lease and was refused: {error}"
        if error is not None:
            # The process ends: a later one begins with the checkpoint.
            driver.lease = driver.batch = None

    @rule(which=ONE_OF_TWO, release=RARELY, fault=FAULTS)
    def renew_or_release(self, which: int, release: bool, fault: Fault | None) -> None:
        driver = self.drivers[which]
        if (lease := driver.lease) is None:
            return
        held = self.held()
        if release:
            self.act(lambda: writers.release(lease), fault)
            driver.lease = None
        elif isinstance(self.act(lambda: writers.renew(lease), fault, AnotherWriter), bool):
            assert held == lease.token, f"one_writer: {lease} was renewed beside {held}"

    @rule(lost=st.booleans(), fault=FAULTS)
    def lose_the_checkpoint_or_open_a_new_generation(self, lost: bool, fault: Fault | None) -> None:
        if lost:
            self.world.checkpoint = self.world.new_checkpoint(dict.fromkeys(self.world.partitions, 0))
            return
        opened = self.act(
            lambda: new_generation(self.world.pipeline, reason="lost", started_by="model"), fault, AnotherWriter
        )
        if isinstance(opened, int):
            at = micro_batches.positions(self.world.pipeline.name)
            self.world.checkpoint = self.world.new_checkpoint({tp: at.get(tp, 0) for tp in self.world.partitions})
