"""Code that was deployed beside a running driver: what changed, and whether a driver of it fits the checkpoints."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from include.doctor import examine
from include.doctor.finding import Finding
from include.ledger.streams import generations, writers
from include.ledger.streams.writers import Lease
from include.pipelines import load_pipeline
from include.settings import REPOSITORY
from include.streams import new_code
from include.streams.fingerprint import Facts, fingerprints_of
from include.versions.loaded_modules import changed_code, loaded_code
from tests.conftest import Home, settings_of, wait_for
from tests.support.checkpoints import begin_checkpoint
from tests.support.leases import held_lease
from tests.support.threads import no_thread_starts

pytestmark = pytest.mark.services

NAME = "isp_hits"
MODULE = "spark_jobs/sinks/landing.py"


@pytest.fixture
def lease(postgres: Home) -> Iterator[Lease]:
    # Nobody renews it, and looking at new code takes a process that imports the project.
    with settings_of(postgres, TIDEMARK_LEASE_SECONDS="600"), held_lease(NAME) as taken:
        yield taken


def run_older(lease: Lease) -> None:
    """Let the driver run the deployed code, except for one module."""
    writers.note_code(lease, {**loaded_code(), MODULE: "0123456789ab"})


def begin_with(**changed: Facts) -> None:
    """Begin a generation whose queries were started by the current code, except for `changed`."""
    facts = {**fingerprints_of(load_pipeline(NAME)), **changed}
    with held_lease("another"):
        generations.current_or_first(NAME, "eve@host")
        generation = generations.current(NAME)
        assert generation is not None
        for query, noted in facts.items():
            generations.note_start(generation, query, noted, {})
            begin_checkpoint(generation, query)


def test_only_the_project_s_modules_are_noted_when_a_driver_starts() -> None:
    code = loaded_code()
    assert "include/ledger/streams/writers.py" in code
    assert all(path.startswith(("include/", "spark_jobs/", "expectations/")) for path in code)
    assert changed_code(code) == {}


def test_module_is_changed_when_its_file_is_written_again_or_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("include.versions.loaded_modules.REPOSITORY", tmp_path)
    (tmp_path / "a.py").write_text("A = 1\n")
    noted = changed_code({"a.py": ""})
    assert changed_code(noted) == {}
    # Of the same size, and as old as the one before.
    (tmp_path / "b.py").write_text("A = 2\n")
    (tmp_path / "b.py").rename(tmp_path / "a.py")
    assert changed_code(noted).keys() == {"a.py"}
    (tmp_path / "a.py").unlink()
    assert changed_code(noted) == {"a.py": ""}


def test_nothing_is_new_when_no_driver_runs_or_it_has_noted_nothing_yet(postgres: Home) -> None:
    assert new_code.look(NAME) is None
    with held_lease(NAME) as lease:
        assert new_code.look(NAME) is None
        assert not new_code.is_current(NAME)
        writers.note_code(lease, loaded_code())
        assert new_code.look(NAME) is None
        assert new_code.is_current(NAME)
    assert not new_code.is_current(NAME)


def test_changed_module_is_named_with_what_to_do_when_the_new_code_fits(lease: Lease) -> None:
    begin_with()
    run_older(lease)
    first = new_code.look(NAME)
    assert first is not None
    assert f"The driver runs other code than {socket.gethostname()} has, in {MODULE}; " in first.sentence
    fit = wait_for("the answer", lambda: (found := new_code.look(NAME)) and found.fit, 60)
    assert (fit.needs, fit.restarts) == ("", load_pipeline(NAME).restarts_on_new_code)
    found = new_code.look_closely(NAME)
    assert found is not None
    assert "Airflow replaces it at the end of a micro-batch" in found.sentence


def test_question_is_asked_later_when_its_thread_could_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = new_code.Fit("", restarts=True)
    monkeypatch.setattr(new_code, "_ask", lambda _: fit)
    asked, newer = new_code._Asked(), new_code.NewCode(NAME, 7, ((MODULE, "0123456789ab"),), None)
    with no_thread_starts():
        assert asked.answer(newer) != fit
    wait_for("the answer", lambda: asked.answer(newer) == fit, 30)


def test_new_generation_is_asked_for_until_there_is_one_when_the_new_code_has_another_window(
    lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = load_pipeline(NAME).views[0].name
    begin_with(**{view: {**fingerprints_of(load_pipeline(NAME))[view], "window length": "1 day"}})
    run_older(lease)
    found = new_code.look_closely(NAME)
    assert found is not None
    assert "window length: 1 day →" in found.sentence
    assert f"./tidemark new-generation {NAME}" in found.sentence
    # Somebody has opened one.
    begin_with()
    monkeypatch.setattr(new_code, "AGAIN", 0.0)
    again = new_code.look_closely(NAME)
    assert again is not None
    assert again.fit == new_code.Fit("", restarts=True)


def test_doctor_says_that_a_stream_will_not_start_when_none_runs_and_its_checkpoint_is_another_s(
    postgres: Home,
) -> None:
    def refused() -> list[Finding]:
        with settings_of(postgres):
            found = examine._tables(deep=False, logs=False)
            return [each for each in found if "its stream will not start" in each.what]

    view = load_pipeline(NAME).views[0].name
    begin_with(**{view: {**fingerprints_of(load_pipeline(NAME))[view], "window length": "1 day"}})
    (found,) = refused()
    assert found.what.startswith(f"{NAME}: its stream will not start: the checkpoint of {view} was made by another")
    assert "window length: 1 day →" in found.what
    assert (found.ok, found.remedy.split(" --")[0]) == (False, f"./tidemark new-generation {NAME}")
    with held_lease(NAME):
        assert refused() == []
    begin_with()
    assert refused() == []


def test_error_is_reported_when_the_code_cannot_be_loaded(
    lease: Lease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "__init__.py").write_text("this is no Python\n")
    monkeypatch.setattr(new_code, "REPOSITORY", tmp_path)
    run_older(lease)
    found = new_code.look_closely(NAME)
    assert found is not None
    assert "it cannot be loaded: SyntaxError" in found.sentence
    assert (REPOSITORY / MODULE).is_file()


def test_earlier_driver_s_notes_do_not_count_when_a_driver_runs_other_code(postgres: Home) -> None:
    with held_lease(NAME) as before:
        writers.note_code(before, {MODULE: "0123456789ab"})
    with held_lease(NAME) as after:
        assert writers.code_of(NAME, after.token) == {}
        assert new_code.look(NAME) is None
