"""Drivers of streams as any host sees them: by the ledger, whether their process can be seen or not."""

from __future__ import annotations

import os
import subprocess
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from sqlalchemy import select

from include import alerts
from include.airflow.backoff import RETRIES, StreamBackoff
from include.airflow.driver import launching, stalls
from include.airflow.driver.launching import stop_driver
from include.airflow.driver.liveness import look_at, process_of
from include.airflow.driver.logs import _READ, FollowedLog, tail
from include.airflow.driver.stalls import look_at_progress
from include.airflow.on_cluster import applications
from include.airflow.progress import Progress
from include.airflow.streams import StreamOperator
from include.errors import AnotherWriter, DiskFull, ServiceUnreachable, UsageError
from include.ledger.alerts import open_alerts
from include.ledger.database import session
from include.ledger.models import StreamLaunch
from include.ledger.streams import generations, launches, writers
from include.ledger.streams.restarts import STALLED_AT_START, failures_in_a_row, has_committed, stalls_in_a_row
from include.monitor.lag import Lag
from include.pipelines import load_pipeline
from include.services.process import session_of
from include.streams.generations import no_stream
from tests.conftest import Home, lives, wait_for
from tests.support.committed import DAY, commit
from tests.support.leases import held_lease

pytestmark = [pytest.mark.services]

NAME = "nest_cameras"
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def empty(in_process: Home) -> Iterator[Home]:
    yield in_process
    in_process.ledger("DELETE FROM stream_launches; DELETE FROM writers")


@pytest.fixture
def elsewhere() -> str:
    """A launch on a host that is not this one."""
    launches.note_intent("far", NAME, "elsewhere", "/nowhere/stream.log")
    launches.note_pid("far", 1)
    return "far"


class Driver(threading.Thread):
    """Holds the lease like a driver, and commits nothing; ends when asked to, unless it hangs.

    Without an `application` it is a command: only drivers note one.
    """

    def __init__(
        self, *, application: str = "app-1", hangs: bool = False, starts_after: threading.Event | None = None
    ) -> None:
        super().__init__(daemon=True)
        self.application = application
        self.hangs, self.starts_after = hangs, starts_after
        self.was_asked = self.was_shut_out = False
        self.start()

    def run(self) -> None:
        if self.starts_after is not None:
            assert self.starts_after.wait(60)
        with held_lease(NAME) as lease:
            try:
                while not self.was_asked or self.hangs:
                    self.was_asked = writers.renew(lease, self.application)
            except AnotherWriter:
                self.was_shut_out = True


def holds_lease() -> bool:
    live = writers.live_writer(NAME)
    return live is not None and bool(live.application_id)


def test_failures_are_counted_back_to_a_stop_or_long_life_when_they_are_in_a_row(in_process: Home) -> None:
    # Minutes ago; the launch without a noted end was over when the next began, two hours later.
    lives = [(360, 359, 6), (300, 299, 0), (240, 239, 6), (200, None, None), (30, 29, 4), (20, 19, 4), (10, 9, 4)]
    for began, ended, code in lives:
        ended_at = "NULL" if ended is None else f"now() - interval '{ended} min'"
        in_process.ledger(
            "INSERT INTO stream_launches (id, pipeline, launched_at, host, log, ended_at, exit_code) VALUES "
            f"('{began}', '{NAME}', now() - interval '{began} min', 'a', '', {ended_at}, "
            f"{'NULL' if code is None else code})",
        )
    assert failures_in_a_row(NAME, HOUR) == [4, 4, 4]
    assert failures_in_a_row(NAME, 4 * HOUR) == [4, 4, 4, None, 6]
    assert failures_in_a_row("isp_hits", HOUR) == []


def test_stalls_are_counted_back_from_a_launch_when_each_came_within_a_day_of_its_start(in_process: Home) -> None:
    stalled, other = f"{STALLED_AT_START}: the query archive committed nothing", "stalled: after hours of work"
    # Hours ago; the second one had run for more than a day.
    lives = [
        (99, stalled),
        (60, stalled),
        (20, stalled),
        (19, stalled),
        (18, other),
        (17, stalled),
        (16, stalled),
        (15, ""),
    ]
    for began, reason in lives:
        in_process.ledger(
            "INSERT INTO stream_launches (id, pipeline, launched_at, host, log, ended_for) VALUES "
            f"('s{began}', 'stalling', now() - interval '{began} h', 'a', '', '{reason}')",
        )
    assert [stalls_in_a_row("stalling", f"s{n}") for n in (99, 60, 20, 19, 18, 17, 16, 15)] == [0, 0, 0, 1, 2, 0, 1, 2]
    assert stalls_in_a_row("stalling", "") == 0
    for number in range(20):
        launches.note_unsubmitted(f"full{number}", "stalling", 1, "No space left on device: tmp")
    launches.note_intent("next", "stalling", "a", "")
    assert stalls_in_a_row("stalling", "next") == 0
    in_process.ledger(f"UPDATE stream_launches SET ended_for = '{stalled}' WHERE id = 's15'")
    assert stalls_in_a_row("stalling", "next") == 3
    assert stalls_in_a_row("isp_hits", "") == 0


def test_driver_has_committed_when_the_query_has_a_micro_batch_since_its_launch(in_process: Home) -> None:
    for launch, began in (("before", DAY - HOUR), ("after", DAY + HOUR)):
        in_process.ledger(
            "INSERT INTO stream_launches (id, pipeline, launched_at, host, log) VALUES "
            f"('{launch}', 'committing', '{began}', 'a', '')",
        )
    assert not has_committed("committing", "archive", "before")
    commit("committing", 0, 0, 5)
    assert has_committed("committing", "archive", "before")
    assert not has_committed("committing", "archive", "after")
    assert not has_committed("committing", "hourly_counts", "before")


@pytest.mark.parametrize(
    ("module", "launch"),
    [(launching, launching.launch_driver), (applications, lambda name: applications.launch(name, lambda _: "app-1"))],
    ids=["process", "cluster"],
)
def test_no_launch_is_noted_when_the_driver_cannot_be_submitted(
    module: ModuleType, launch: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise DiskFull("No space left on device: tmp")

    monkeypatch.setattr(module, "stream_submission", refuse)
    with pytest.raises(DiskFull):
        launch(NAME)
    with session() as ledger:
        assert ledger.scalars(select(StreamLaunch.id).where(StreamLaunch.pipeline == NAME)).all() == []


class Tries:
    """Tries of a stream's task in one run, as Airflow takes them."""

    def __init__(self) -> None:
        instance = SimpleNamespace(dag_id=f"stream__{NAME}", run_id="r", task_id="stream", xcom_push=lambda **_: None)
        self.context: Any = {"ti": instance}
        self.backoff = StreamBackoff(NAME)

    def fails(self) -> BaseException:
        with pytest.raises(Exception) as raised:  # noqa: PT011
            StreamOperator(task_id="stream", pipeline=NAME).execute(self.context)
        # Airflow would log the errors before it, too, of a library for example.
        assert raised.value.__suppress_context__ or raised.value.__context__ is None
        return raised.value

    def waits(self) -> float:
        """Seconds until the try after one that fails."""
        decision = self.backoff.evaluate(self.fails(), 1, RETRIES, self.context)
        assert decision.retry_delay is not None
        return decision.retry_delay.total_seconds()


@pytest.fixture
def refusing(in_process: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Exception], Tries]]:
    """Makes each submission fail with an error, and returns tries of the task."""

    def refuse_with(error: Exception) -> Tries:
        def refuse(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(launching, "stream_submission", refuse)
        return Tries()

    monkeypatch.setattr("include.airflow.streams.has_connection", lambda _: False)
    monkeypatch.setattr(StreamOperator, "_get_hook", lambda _: SimpleNamespace(_is_yarn_cluster_mode=False))
    yield refuse_with
    for each in open_alerts("stream/"):
        alerts.recover(each.key)


@pytest.mark.parametrize("error", [DiskFull("No space left on device: tmp"), OSError(28, "tmp")], ids=repr)
def test_stream_is_tried_later_each_time_and_alerted_when_it_cannot_be_submitted(
    in_process: Home, refusing: Callable[[Exception], Tries], error: Exception
) -> None:
    worked = "worked"
    launches.note_intent(worked, NAME, launches.this_host(), "/nowhere/stream.log")
    launches.note_end(worked, DiskFull.exit_code)
    in_process.ledger("UPDATE stream_launches SET launched_at = now() - interval '2 h'")
    tries = refusing(error)
    assert [tries.waits() for _ in range(2)] == [5, 10]
    assert open_alerts("stream/") == []
    assert tries.waits() == 20
    [told] = open_alerts("stream/")
    assert told.key == f"stream/{NAME}"
    assert "tmp" in told.what
    assert "3 failures in a row" in told.what
    # To no host does it look like a driver that starts or runs.
    newest = launches.recent(NAME, 9)
    assert [(each.exit_code, each.was_submitted) for each in newest] == [(1, False)] * 3 + [(1, True)]
    assert all(look_at(NAME, each.id) == {"event": "finished", "exit_code": 1} for each in newest)
    assert launches.last(NAME) == newest[-1]
    stop_driver(NAME, newest[0].id, patience=0)


def test_run_fails_only_after_three_usage_errors_when_each_was_met_before_the_driver_was_submitted(
    refusing: Callable[[Exception], Tries],
) -> None:
    tries = refusing(UsageError("kafka.properties is readable by others", remedy="chmod 600 kafka.properties"))
    assert [type(tries.fails()) for _ in range(2)] == [AirflowException] * 2
    given_up = tries.fails()
    assert isinstance(given_up, AirflowFailException)
    assert str(given_up) == (
        "kafka.properties is readable by others — chmod 600 kafka.properties — 3 failures in a row, no restart mends "
        f"this: the DAG is paused; do what the line says, then unpause stream__{NAME}"
    )


def test_error_says_that_the_dag_is_paused_when_the_ledger_cannot_count_a_usage_error(
    refusing: Callable[[Exception], Tries], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: str) -> None:
        raise UsageError("the ledger was migrated by newer code", remedy="deploy it again")

    monkeypatch.setattr(writers, "live_writer", refuse)
    given_up = refusing(DiskFull("tmp")).fails()
    assert isinstance(given_up, AirflowFailException)
    assert str(given_up).endswith(
        "deploy it again — no restart mends this: the DAG is paused; do what the line says, then unpause "
        f"stream__{NAME}"
    )


def test_driver_that_hangs_on_another_host_is_shut_out_when_it_does_not_stop(elsewhere: str) -> None:
    driver = Driver(hangs=True)
    wait_for("its lease", holds_lease, 10)
    stop_driver(NAME, elsewhere, patience=2)
    driver.join(10)
    assert driver.was_asked
    assert driver.was_shut_out
    assert not holds_lease()


def test_driver_of_another_host_is_asked_once_it_holds_its_lease_when_stopped_while_it_starts(
    elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, live_writer = threading.Event(), writers.live_writer

    def look(pipeline: str) -> writers.LiveWriter | None:
        live = live_writer(pipeline)
        looked.set()
        return live

    monkeypatch.setattr(writers, "live_writer", look)
    driver = Driver(starts_after=looked)
    stop_driver(NAME, elsewhere, patience=10)
    driver.join(10)
    assert driver.was_asked
    assert not driver.was_shut_out


def test_driver_is_adopted_with_its_launch_when_it_runs_on_another_host(in_process: Home, elsewhere: str) -> None:
    in_process.ledger(
        "INSERT INTO writers (pipeline, token, holder, expires_at, stop_requested, application_id) "
        f"VALUES ('{NAME}', 1, 'elsewhere:1:1', now() + interval '1 min', false, '')",
    )
    live, launch = writers.live_writer(NAME), launches.find(elsewhere)
    assert live is not None
    assert launch is not None
    assert launches.holds_lease(launch, live)
    in_process.ledger("UPDATE writers SET holder = 'third:1:1'")
    by_hand = writers.live_writer(NAME)
    assert by_hand is not None
    assert not launches.holds_lease(launch, by_hand)


@pytest.mark.parametrize(
    ("took", "application", "launched", "is_adopted"),
    [
        pytest.param("4 min", "app-1", {}, True, id="given up after three minutes"),
        pytest.param("2 h", "app-1", {}, False, id="of a person"),
        pytest.param("4 min", "", {}, False, id="a command"),
        pytest.param("4 min", "app-1", {"host": launches.YARN, "application": "app-1"}, True, id="on YARN"),
        pytest.param("4 min", "app-2", {"host": launches.YARN, "application": "app-1"}, False, id="another on YARN"),
        pytest.param("4 min", "", {"host": launches.YARN}, False, id="a command beside YARN"),
    ],
)
def test_driver_is_adopted_with_its_launch_when_it_came_up_after_another_one_was_launched(
    in_process: Home, elsewhere: str, took: str, application: str, launched: dict[str, str], is_adopted: bool
) -> None:
    """Its launch was killed, or given up: nobody has noted its end."""
    noted = "".join(f", {name} = '{value}'" for name, value in launched.items())
    in_process.ledger(f"UPDATE stream_launches SET launched_at = now() - interval '{took}'{noted}")
    in_process.ledger(
        "INSERT INTO writers (pipeline, token, holder, acquired_at, expires_at, stop_requested, application_id) "
        f"VALUES ('{NAME}', 1, 'elsewhere:1:1', now(), now() + interval '1 min', false, '{application}')",
    )
    launches.note_intent("next", NAME, "third", "/nowhere/stream.log")
    launches.note_end("next", AnotherWriter.exit_code)
    adopted = StreamOperator(task_id="stream", pipeline=NAME)._adopt_or_launch()
    assert adopted == (elsewhere if is_adopted else "")


def test_driver_is_adopted_before_its_spark_has_started_when_the_launch_after_it_could_not_be_submitted(
    in_process: Home, elsewhere: str
) -> None:
    launches.note_unsubmitted("next", NAME, DiskFull.exit_code, "tmp")
    operator = StreamOperator(task_id="stream", pipeline=NAME)
    assert operator._adopt_or_launch() == elsewhere, "it starts"
    in_process.ledger(
        "INSERT INTO writers (pipeline, token, holder, acquired_at, expires_at, stop_requested, application_id) "
        f"VALUES ('{NAME}', 1, 'elsewhere:1:1', now(), now() + interval '1 min', false, '')",
    )
    assert operator._adopt_or_launch() == elsewhere, "it leads"


def test_driver_of_this_host_that_came_up_late_is_adopted_before_its_spark_has_started(
    in_process: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches.note_intent("late", NAME, launches.this_host(), "/nowhere/stream.log")
    in_process.ledger("UPDATE stream_launches SET launched_at = now() - interval '4 min'")
    launches.note_intent("next", NAME, launches.this_host(), "/nowhere/stream.log")
    launches.note_end("next", AnotherWriter.exit_code)
    with held_lease(NAME):
        for launch, adopted in (("late", "late"), ("", "")):
            monkeypatch.setattr(psutil.Process, "environ", lambda _, launch=launch: {"TIDEMARK_LAUNCH": launch})
            assert StreamOperator(task_id="stream", pipeline=NAME)._adopt_or_launch() == adopted


@pytest.mark.parametrize(("pid", "is_its_driver"), [(os.getppid(), True), (2**22 + 1, False)])
def test_driver_of_another_user_is_told_by_its_ancestors_when_its_environment_is_hidden(
    in_process: Home, monkeypatch: pytest.MonkeyPatch, pid: int, is_its_driver: bool
) -> None:
    def environ(process: psutil.Process) -> dict[str, str]:
        raise psutil.AccessDenied(process.pid)

    launches.note_intent("hidden", NAME, launches.this_host(), "/nowhere/stream.log")
    launches.note_pid("hidden", pid)
    with held_lease(NAME):
        monkeypatch.setattr(psutil.Process, "environ", environ)
        live, launch = writers.live_writer(NAME), launches.find("hidden")
        assert live is not None
        assert launch is not None
        assert launches.holds_lease(launch, live) is is_its_driver


@pytest.mark.parametrize(("namespace", "is_its_driver"), [("22", True), ("33", False)])
def test_driver_is_not_taken_for_the_launched_one_when_its_container_differs(
    in_process: Home, namespace: str, is_its_driver: bool
) -> None:
    launches.note_intent("contained", NAME, "shared/boot/22", "/nowhere/stream.log")
    in_process.ledger(
        "INSERT INTO writers (pipeline, token, holder, expires_at, stop_requested, application_id) "
        f"VALUES ('{NAME}', 1, 'shared:7:boot/100/{namespace}', now() + interval '1 min', false, '')",
    )
    live, launch = writers.live_writer(NAME), launches.find("contained")
    assert live is not None
    assert launch is not None
    assert launches.holds_lease(launch, live) is is_its_driver


def test_driver_of_another_host_is_dead_when_it_holds_no_lease_after_its_time_to_start(
    in_process: Home, elsewhere: str
) -> None:
    assert look_at(NAME, elsewhere) is None
    in_process.ledger("UPDATE stream_launches SET launched_at = now() - interval '4 min'")
    assert look_at(NAME, elsewhere) == {"event": "died"}


def test_error_of_a_driver_is_told_when_its_log_is_on_another_host(elsewhere: str) -> None:
    assert tail(launches.find(elsewhere)) == []
    launches.note_end(elsewhere, 6, "Kafka does not answer at k:9092 — start it")
    noted = launches.find(elsewhere)
    assert noted is not None
    assert tail(noted) == ["Kafka does not answer at k:9092 — start it"]
    assert noted.log_place == "/nowhere/stream.log on elsewhere"


def test_only_the_end_is_read_when_the_log_of_a_failed_driver_is_large(tmp_path: Path) -> None:
    log = tmp_path / "stream.log"
    with log.open("wb") as written:
        written.truncate(2**30)
        written.seek(2**30)
        written.writelines(b"line %d\n" % number for number in range(20))
    launches.note_intent("long", NAME, launches.this_host(), str(log))
    launch = launches.find("long")
    tracemalloc.start()
    try:
        assert tail(launch) == [f"line {number}" for number in range(5, 20)]
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("holder", "acquired", "is_dead"),
    [
        pytest.param("elsewhere:1:1", "now()", True, id="its driver's"),
        pytest.param("third:1:1", "now()", False, id="another host's"),
        pytest.param("elsewhere:1:1", "now() - interval '1 h'", False, id="a driver's before it"),
        pytest.param("", "now()", False, id="given back"),
    ],
)
def test_driver_of_another_host_is_dead_at_once_when_the_lease_that_it_had_has_run_out(
    in_process: Home, elsewhere: str, holder: str, acquired: str, is_dead: bool
) -> None:
    in_process.ledger(
        "INSERT INTO writers (pipeline, token, holder, acquired_at, expires_at, stop_requested, application_id) "
        f"VALUES ('{NAME}', 1, '{holder}', {acquired}, now() + interval '1 min', false, '')",
    )
    assert look_at(NAME, elsewhere) is None
    in_process.ledger("UPDATE writers SET expires_at = now() - interval '1 s'")
    assert look_at(NAME, elsewhere) == ({"event": "died"} if is_dead else None)


def test_stream_is_stalled_when_records_wait_and_its_driver_only_renews_its_lease(in_process: Home) -> None:
    in_process.run("produce", NAME, "--events", "10")
    driver = Driver()
    wait_for("its lease", holds_lease, 10)
    progress = Progress(after=HOUR)
    assert look_at_progress(NAME, progress, 0, "") is None
    assert look_at_progress(NAME, progress, HOUR.total_seconds(), "") is None
    assert look_at_progress(NAME, progress, HOUR.total_seconds() + 1, "") == {"event": "stalled", "query": "archive"}
    stop_driver(NAME, "", patience=10)
    driver.join(10)
    assert driver.was_asked


@pytest.fixture
def unnoted(in_process: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[psutil.Process]:
    """A driver that starts, whose pid could not be noted: the ledger was away."""
    waits = SimpleNamespace(command=lambda: ["sh", "-c", "sleep 600; true"], env={})
    monkeypatch.setattr(launching, "stream_submission", lambda *_, **__: waits)

    def note_pid(launch: str, pid: int) -> None:
        started.append(psutil.Process(pid))
        raise ServiceUnreachable("PostgreSQL is away")

    started: list[psutil.Process] = []
    monkeypatch.setattr(launches, "note_pid", note_pid)
    with pytest.raises(ServiceUnreachable):
        launching.launch_driver(NAME, "unnoted")
    [process] = started
    wait_for("the process below it", process.children, 10)
    yield process
    for each in session_of(process.pid):
        each.kill()


def test_driver_is_adopted_and_can_be_ended_when_its_pid_was_not_noted(unnoted: psutil.Process) -> None:
    noted = launches.find("unnoted")
    assert noted is not None
    assert noted.pid is None
    assert look_at(NAME, "unnoted") is None
    assert process_of(noted) == unnoted
    stop_driver(NAME, "unnoted", patience=0.2)
    assert not lives(unnoted)
    assert look_at(NAME, "unnoted") == {"event": "died"}


@pytest.mark.parametrize("step", ["stream_submission", "note_intent", "note_pid"])
def test_no_driver_is_left_when_its_task_is_ended_while_it_is_launched(
    in_process: Home, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    operator = StreamOperator(task_id="stream", pipeline=NAME)
    waits = SimpleNamespace(command=lambda: ["sh", "-c", "sleep 600; true"], env={})

    def ended_in(step_of: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            # As Airflow does when it gets SIGTERM: it goes on with the task afterwards.
            operator.on_kill()
            return step_of(*arguments, **options)

        return step

    def stop(pipeline: str, launch: str, patience: float) -> None:
        stop_driver(pipeline, launch, patience=0.2)

    monkeypatch.setattr(launching, "stream_submission", lambda *_, **__: waits)
    monkeypatch.setattr(launching, "stop_driver", stop)
    module = launching if step == "stream_submission" else launches
    monkeypatch.setattr(module, step, ended_in(getattr(module, step)))
    monkeypatch.setattr(operator, "_get_hook", lambda: SimpleNamespace(_is_yarn_cluster_mode=False))
    monkeypatch.setattr("include.airflow.streams.has_connection", lambda hook: False)
    before = set(psutil.Process().children())
    with pytest.raises(AirflowException, match="was ended"):
        operator._adopt_or_launch()
    assert not any(lives(each) for each in set(psutil.Process().children()) - before)
    # Its failure would count.
    assert all(each.was_submitted for each in launches.recent(NAME, 9))


def test_driver_is_handed_over_at_once_when_its_task_was_cleared_while_the_one_before_was(
    in_process: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = StreamOperator(task_id="stream", pipeline=NAME)
    handed: list[str] = []

    def submit(_: str) -> None:
        if not handed:
            handed.append("ended")
            operator.on_kill()
        handed.append("app-2")
        hook._yarn_application_id = "app-2"

    resolved = SimpleNamespace(arguments=(), conf={}, env={}, program="", mode="client")
    hook = SimpleNamespace(
        _is_yarn_cluster_mode=True, _yarn_application_id=None, log=operator.log, submit=submit, on_kill=lambda: None
    )
    monkeypatch.setattr(applications, "stream_submission", lambda *_, **__: resolved)
    monkeypatch.setattr(applications.yarn, "resource_manager", lambda: "")
    monkeypatch.setattr("include.airflow.streams.has_connection", lambda _: False)
    monkeypatch.setattr(operator, "_get_hook", lambda: hook)
    with pytest.raises(AirflowException, match="was ended"):
        operator._adopt_or_launch()
    noted = launches.find(operator._adopt_or_launch())
    assert noted is not None
    assert (handed, noted.application) == (["ended", "app-2"], "app-2")


def test_driver_of_another_user_has_its_time_to_start_when_its_environment_is_hidden(
    in_process: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int, number: int) -> None:
        raise PermissionError(pid)

    # As for a process that `/proc` does not show to this user.
    launches.note_intent("hidden", NAME, launches.this_host(), "/nowhere/stream.log")
    launches.note_pid("hidden", 2**22 + 1)
    monkeypatch.setattr(os, "kill", refuse)
    assert look_at(NAME, "hidden") is None
    in_process.ledger("UPDATE stream_launches SET launched_at = now() - interval '4 min'")
    assert look_at(NAME, "hidden") == {"event": "died"}


def test_stream_is_stalled_by_a_view_only_once_a_driver_has_begun_it(
    in_process: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A declaration that adds the view was deployed while the driver of before goes on."""
    [view] = load_pipeline(NAME).views
    behind = [Lag(NAME, "archive", "nest-logs", 0, 9, 9), Lag(NAME, view.name, "nest-logs", 0, 0, 9)]
    monkeypatch.setattr(stalls, "lag_of", lambda _: behind)
    generation = generations.current_or_first(NAME, "me@here")
    generations.note_start(generation, "archive", {}, {})
    progress = Progress(after=HOUR)
    for hours in (0, 2, 4):
        assert look_at_progress(NAME, progress, hours * HOUR.total_seconds(), "") is None
    generations.note_start(generation, view.name, {}, {})
    assert look_at_progress(NAME, progress, 5 * HOUR.total_seconds(), "") is None
    assert look_at_progress(NAME, progress, 7 * HOUR.total_seconds(), "") == {"event": "stalled", "query": view.name}
    in_process.ledger("DELETE FROM generations")


@pytest.fixture
def hung(in_process: Home) -> Iterator[str]:
    """A launch of this host whose driver lives, but lost its lease."""
    process = subprocess.Popen(["sleep", "600"], env={**os.environ, "TIDEMARK_LAUNCH": "here"})
    launches.note_intent("here", NAME, launches.this_host(), "/nowhere/stream.log")
    launches.note_pid("here", process.pid)
    yield "here"
    process.kill()
    process.wait()


@pytest.mark.parametrize("launch", ["", "far", "here"])
def test_command_is_neither_stalled_nor_shut_out_when_it_holds_the_lease_and_records_wait(
    in_process: Home, elsewhere: str, hung: str, launch: str
) -> None:
    in_process.run("produce", NAME, "--events", "10")
    # As an erasure holds it, also after the lease of the launch's driver had run out.
    with no_stream(NAME, "erase") as lease:
        progress = Progress()
        assert look_at(NAME, launch) is None
        assert look_at_progress(NAME, progress, 0, launch) is None
        assert look_at_progress(NAME, progress, HOUR.total_seconds(), launch) is None
        stop_driver(NAME, launch, patience=2)
        live = writers.live_writer(NAME)
        assert live is not None
        assert live.token == lease.token
        writers.renew(lease)


def test_log_is_returned_in_whole_new_lines_and_bounded_when_its_driver_lives(tmp_path: Path) -> None:
    file = tmp_path / "driver.log"
    log = FollowedLog(str(file))
    assert log.new_lines() == []
    file.write_text("one\ntwo\nhalf")
    assert log.new_lines() == ["one", "two"]
    with file.open("a") as more:
        more.write(" \x1b[31mred\n" + "".join(f"{number}\n" for number in range(20)))
    assert log.new_lines() == [f"… 16 lines before are in {file}", *map(str, range(15, 20))]
    assert log.new_lines() == []
    file.write_text("anew\n")
    assert log.new_lines() == ["anew"]


def test_line_of_a_live_driver_is_left_out_when_what_is_read_begins_within_it(tmp_path: Path) -> None:
    """It may begin within a secret, which then cannot be masked."""
    file = tmp_path / "driver.log"
    log = FollowedLog(str(file))
    long = "of-a-password " + "." * _READ
    file.write_text(f"{long}\nafter\n{long}")
    assert log.new_lines() == []
    assert log.new_lines() == []
    with file.open("a") as more:
        more.write("\nlast\n")
    assert log.new_lines() == ["last"]


def test_failed_driver_s_lines_are_printable_and_say_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They go into an alert too, which the ledger does not take with a NUL."""
    monkeypatch.setenv("OF_A_TOKEN", "canary-7d1e")
    file = tmp_path / "driver.log"
    file.write_text("one\n\ntwo \x00\x1b[31m canary-7d1e\npassword=hunter2 \u202e\n")
    launches.note_intent("masked", NAME, launches.this_host(), str(file))
    assert tail(launches.find("masked")) == ["one", "two   [31m ********", "password=********  "]
