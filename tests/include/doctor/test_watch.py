"""The doctor looks beside the pages: nobody waits for it, and what it found stays when it cannot look."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

from include.doctor.disagreement import MEANINGS, Kind
from include.doctor.watch import DoctorWatch
from include.errors import ServiceUnreachable
from include.monitor.history.doctor_look import Found, Look
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline
from tests.conftest import wait_for
from tests.support.threads import no_thread_starts

NAME = "isp_hits"
FOUND = Look((Found("wrong size", "part-0", "readers fail", "run it again", False, "2026-11-20T05"),), False,
             datetime.now(UTC))  # fmt: skip


def test_page_does_not_wait_and_one_look_is_taken_at_a_time_when_it_takes_long() -> None:
    taken, go_on, ended = [], threading.Event(), threading.Event()

    def slow(pipeline: Pipeline) -> Look:
        taken.append(pipeline.name)
        go_on.wait(30)
        ended.set()
        return FOUND

    watch, pipeline = DoctorWatch(slow), load_pipeline(NAME)
    assert watch.look(pipeline, patience=0) == Look()
    assert watch.look(pipeline, patience=0) == Look()
    go_on.set()
    assert ended.wait(30)
    assert watch.look(pipeline, patience=30) == FOUND
    # It is not too old yet.
    assert watch.look(pipeline) == FOUND
    assert taken == [NAME]


def test_look_is_taken_later_when_its_thread_could_not_start() -> None:
    watch, pipeline = DoctorWatch(lambda _: FOUND), load_pipeline(NAME)
    with no_thread_starts():
        watch.look(pipeline, patience=0)
    assert watch.look(pipeline, patience=30) == FOUND


def test_what_was_found_stays_with_the_reason_when_it_cannot_look_again() -> None:
    answers: list[Look | Exception] = [FOUND, ServiceUnreachable("PostgreSQL does not answer", remedy="start it")]

    def next_answer(_: Pipeline) -> Look:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    watch, pipeline = DoctorWatch(next_answer, every=0.0), load_pipeline(NAME)
    assert watch.look(pipeline, patience=30) == FOUND
    again = wait_for("another look", lambda: (look := watch.look(pipeline)).error and look, 30)
    assert "PostgreSQL does not answer" in again.error
    assert (again.found, again.looked_at) == (FOUND.found, FOUND.looked_at)


def test_look_holds_only_the_interval_s_findings_when_it_is_about_one() -> None:
    assert FOUND.about("2026-11-20T05").found == FOUND.found
    assert FOUND.about("2026-11-20T06").found == ()
    assert FOUND.about("2026-11-20T06").looked_at == FOUND.looked_at


def test_meaning_is_given_when_a_kind_is_found() -> None:
    kinds = {each for part in Kind.__args__ for each in (getattr(part, "__args__", None) or (part,))}
    assert set(MEANINGS) == kinds
