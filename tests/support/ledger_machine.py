"""Hypothesis' rules over the real functions of the ledger, on a real PostgreSQL, with failures between statements.

Two drivers and up to two jobs of intervals take turns; each may die, or lose its connection, at any statement.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from include.doctor.landing import check_landing
from include.doctor.repair import repair
from include.doctor.tables import check_tables
from include.errors import (
    AnotherWriter,
    ArchiveBehind,
    ReconciliationFailed,
    ServiceUnreachable,
    TidemarkError,
    UsageError,
    ValidationFailed,
)
from include.housekeeping.run import keep_house
from include.intervals import steps
from include.intervals.verdict import assemble_verdict
from include.ledger.intervals import attempts, builds, locks, revisions
from spark_jobs.publication.publish_build import publish
from spark_jobs.publication.register import finish_registrations
from spark_jobs.reconciliation.interval_run import IntervalRun
from tests.conftest import wait_for
from tests.support.ledger_actors import Actor
from tests.support.ledger_faults import Fault, Killed, end_backends, lock_holders
from tests.support.ledger_promises import Seen
from tests.support.ledger_stream_rules import FAULTS, ONE_OF_TWO, RARELY, StreamRules
from tests.support.ledger_world import MemoryCatalog, hour

ANY = st.integers(0, 99)
HOURS = st.integers(0, 6)
MOSTLY = st.integers(0, 5).map(lambda n: n < 5)
REMOVED = ("was removed: ", " is removed and cannot become ")
"""What a publication says whose build housekeeping has removed: with its files, or, when it was killed, before them."""


class StreamMachine(StreamRules):
    """The stream alone."""

    @initialize()
    def begin(self) -> None:
        self.land_three_hours()


class LedgerMachine(StreamRules):
    """Any order of the actions that people, streams and Airflow take."""

    def __init__(self) -> None:
        self.attempts: list[int] = []
        self.jobs: list[Actor] = []
        self.revisions = 0
        super().__init__()

    def teardown(self) -> None:
        for job in self.jobs:
            job.kill()
        super().teardown()

    @initialize(registered=st.integers(0, 3))
    def begin_with_registered_hours(self, registered: int) -> None:
        self.land_three_hours()
        for number in range(registered):
            self.run_an_interval(number, repin=False, passes=True, fault=None, at=0)
        seen = Seen(self.world, self.cursor)
        assert [each.state for each in seen.intervals.values()] == ["registered"] * registered

    def reach(self, point: str) -> None:
        """A crash point: a job that runs step by step waits there."""
        for job in self.jobs:
            if job.is_current():
                job.reach(point)

    def run_job(self, job: Actor, fault: Fault | None, whole: bool) -> None:
        """Let a job run to its end or to its next crash point; its error must be an expected one."""
        others = lock_holders(self.cursor)
        with self.faults.armed(fault):
            job.finish() if whole else job.step()
        if not job.is_over:
            return
        self.jobs.remove(job)
        # PostgreSQL notices the end of a connection a moment later.
        wait_for("its locks to go", lambda: lock_holders(self.cursor) <= others, 30)
        error = job.error
        if isinstance(error, Killed | ServiceUnreachable):
            assert self.faults.happened is not None or job.was_cut, error
        elif isinstance(error, TidemarkError) and any(said in error.message for said in REMOVED):
            pass
        elif error is not None and not isinstance(error, AnotherWriter | ReconciliationFailed | ValidationFailed):
            raise error

    # Intervals: any of them at any time, as schedule, backfill, clearing and people ask for them.

    @rule(number=HOURS, repin=RARELY, passes=MOSTLY, fault=FAULTS, at=st.integers(0, 2))
    def run_an_interval(self, number: int, repin: bool, passes: bool, fault: Fault | None, at: int) -> None:
        """Pin, build, publish; a fault happens in one of them, and other rules run the rest.

        Without a fault, and alone, every build passes that the suite does not refuse.
        """
        faults = [fault if step == at else None for step in range(3)]
        is_undisturbed = fault is None and not self.jobs
        if (attempt := self.begin(number, repin, faults[0])) is not None:
            built = self.build(attempt, False, False, True, faults[1])
            if len(self.jobs) < 2:
                published = self.publish(attempt, passes, fault is None, faults[2])
                if is_undisturbed:
                    assert built.error is None, built.error
                    assert (published.error is None) == passes, published.error

    def begin(self, number: int, repin: bool, fault: Fault | None) -> int | None:
        begun = self.act(
            lambda: steps.pin(
                self.world.pipeline.name, hour(number), run_by="model", repin=repin, patience=timedelta(0)
            ),
            fault,
            ArchiveBehind,
            *((UsageError,) if repin else ()),
            # A publication may be writing the tables' properties.
            *((AnotherWriter,) if self.jobs else ()),
        )
        if not isinstance(begun, int):
            return None
        self.attempts.append(begun)
        return begun

    @precondition(lambda self: self.attempts and len(self.jobs) < 2)
    @rule(which=ANY, recode=RARELY, short=RARELY, unexplained=RARELY, whole=st.booleans(), fault=FAULTS)
    def build_again(
        self, which: int, recode: bool, short: bool, unexplained: bool, whole: bool, fault: Fault | None
    ) -> None:
        self.world.code += recode
        attempt = self.attempt(which)
        built = self.build(attempt, short, unexplained, whole, fault)
        if unexplained and built.is_over:
            # Other rules seldom publish just this build.
            self.publish(attempt, True, True, None)

    def attempt(self, which: int) -> int:
        """One of the attempts, mostly a late one."""
        return self.attempts[-1 - which % len(self.attempts)]

    def build(self, attempt: int, short: bool, unexplained: bool, whole: bool, fault: Fault | None) -> Actor:
        def job() -> None:
            spec = attempts.load_attempt(attempt)
            with locks.attempt_under_way(spec.pinned.pipeline, spec.pinned.interval):
                spec = attempts.resume_attempt(attempt, str(self.world.code))
                self.revisions += 1
                built = self.world.build(spec, f"{self.revisions:06d}-{attempt}", short=short)
                findings = self.world.findings(spec.pinned, unexplained=int(unexplained))
                self.reach("revision_written")
                builds.note_build(spec, built, findings)

        return self.start(job, fault, whole)

    @precondition(lambda self: self.attempts and len(self.jobs) < 2)
    @rule(which=ANY, passes=MOSTLY, whole=st.booleans(), fault=FAULTS)
    def publish_again(self, which: int, passes: bool, whole: bool, fault: Fault | None) -> None:
        self.publish(self.attempt(which), passes, whole, fault)

    def publish(self, attempt: int, passes: bool, whole: bool, fault: Fault | None) -> Actor:
        # What was begun before is finished by whoever comes next.
        self.may_register = passes or bool(self.before and self.before.begun)
        self.world.suite_passes = passes

        def job() -> None:
            publish(IntervalRun(self.world, self.world.pipeline, attempts.load_attempt(attempt)))  # type: ignore[arg-type]

        return self.start(job, fault, whole)

    def start(self, work: Callable[[], object], fault: Fault | None, whole: bool) -> Actor:
        job = Actor(work)
        self.jobs.append(job)
        self.run_job(job, fault, whole)
        return job

    @precondition(lambda self: self.jobs)
    @rule(which=ONE_OF_TWO, fault=FAULTS, how=st.sampled_from(("step", "whole", "kill", "cut")))
    def go_on(self, which: int, fault: Fault | None, how: str) -> None:
        self.may_register = True
        job = self.jobs[which % len(self.jobs)]
        if how == "kill":
            self.jobs.remove(job)
            job.kill()
            return
        if how == "cut":
            # Its locks are gone, but it has not noticed yet.
            end_backends(self.cursor, sorted(lock_holders(self.cursor)))
            for each in self.jobs:
                each.was_cut = True
            return
        self.run_job(job, fault, how == "whole")

    @precondition(lambda self: self.attempts)
    @rule(which=ANY, fault=FAULTS)
    def end_an_attempt(self, which: int, fault: Fault | None) -> None:
        def end() -> None:
            spec = attempts.load_attempt(self.attempt(which))
            verdict = assemble_verdict(spec, revisions.registered_of_interval(spec.pinned.id))
            attempts.end_attempt(spec.id, verdict.exit_code, verdict.as_json())

        self.act(end, fault)

    # Housekeeping.

    @rule(how=st.sampled_from(("finish", "keep house", "doctor", "doctor of a changed catalog")), fault=FAULTS)
    def tend(self, how: str, fault: Fault | None) -> None:
        pipeline = self.world.pipeline
        if how == "keep house":
            self.act(lambda: keep_house(pipeline, dry_run=False, progress=lambda line: None), fault)
            return
        # What was begun before is finished by whoever comes next.
        self.may_register = bool(self.before and self.before.begun)
        if how == "finish":
            catalog = MemoryCatalog(self.world, pipeline)
            self.act(lambda: finish_registrations(pipeline, catalog), fault)  # type: ignore[arg-type]
            return
        if how == "doctor of a changed catalog" and self.world.catalog and not self.jobs:
            self.world.catalog.popitem()
            fault = None

        def mend() -> None:
            repair([*check_landing(pipeline), *check_tables(pipeline, deep=True)], lambda line: None)

        self.act(mend, fault)
