"""Code that was deployed while a driver runs: which of the driver's modules changed, and whether it may be replaced.

A process keeps the modules that it has imported, so whoever looks (a page, Airflow's trigger) may run older code than
the driver. Whether a driver of the new code fits the stream's checkpoints is therefore checked in a separate process:
`python -m include.streams.new_code PIPELINE` writes the answer as JSON.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace

from include.catalog.declared import check_storage_early
from include.errors import TidemarkError, one_line
from include.intervals.references import as_file, without_rows
from include.ledger.streams import generations, writers
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline
from include.settings import REPOSITORY
from include.streams import fingerprint
from include.streams.checkpoints import contents_of_generation, facts_of_begun
from include.streams.event_time import check_event_time
from include.versions.loaded_modules import changed_code

PATIENCE = 60.0
"""Seconds that the check may take."""

AGAIN = 60.0
"""Seconds after which a check that found something missing is repeated: it may be there by then."""


@dataclass(frozen=True)
class Fit:
    """Whether a driver of the deployed code can continue from the stream's checkpoints."""

    needs: str
    """What it needs first; empty when its queries are those of the checkpoints."""
    restarts: bool
    """Whether the pipeline declares that Airflow then replaces the driver."""


@dataclass(frozen=True)
class NewCode:
    """Code that was deployed since a pipeline's driver started."""

    pipeline: str
    token: int
    """Fencing token of the driver that runs older code."""
    changed: tuple[tuple[str, str], ...]
    """Paths of its modules that changed, with a hash of their present content."""
    fit: Fit | None
    """None while the check runs."""

    @property
    def version(self) -> str:
        """What was deployed, as a text to compare."""
        return json.dumps(self.changed)

    @property
    def sentence(self) -> str:
        """What a person needs to know and do."""
        paths = [path for path, _ in self.changed]
        named = ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
        restart = f"./tidemark stream {self.pipeline} --stop ends it after its micro-batch; Airflow starts the next one"
        if self.fit is None:
            todo = "whether a driver of the new code fits is being checked"
        elif self.fit.needs:
            todo = f"a driver of the new code needs more: {self.fit.needs}"
        elif self.fit.restarts:
            todo = "Airflow replaces it at the end of a micro-batch, and each hour while its host has no other code"
        else:
            todo = f"the new code continues where it is: {restart}"
        return f"The driver runs other code than {socket.gethostname()} has, in {named}; {todo}."


def look(pipeline: str) -> NewCode | None:
    """Return what was deployed since the pipeline's live driver started; None when nothing was, or none runs.

    Whether it fits is checked in the background. Raise ServiceUnreachable.
    """
    newer = _find(pipeline)
    return newer and replace(newer, fit=_asked.answer(newer))


def look_closely(pipeline: str) -> NewCode | None:
    """Return the same once it is known whether it fits; a first check takes a second. Raise ServiceUnreachable."""
    newer = _find(pipeline)
    return newer and replace(newer, fit=_asked.wait_for_answer(newer))


def is_current(pipeline: str) -> bool:
    """Return whether a driver runs, and runs the deployed code. Raise ServiceUnreachable."""
    live = writers.live_writer(pipeline)
    code = writers.code_of(pipeline, live.token) if live else {}
    return bool(code) and not changed_code(code)


def _find(pipeline: str) -> NewCode | None:
    live = writers.live_writer(pipeline)
    if live is None or not (changed := changed_code(writers.code_of(pipeline, live.token))):
        return None
    return NewCode(pipeline, live.token, tuple(sorted(changed.items())), None)


class _Asked:
    """Answers by deployed code; each is asked for once, and again when something was needed."""

    def __init__(self) -> None:
        self._answers: dict[str, tuple[NewCode, float, Fit]] = {}
        self._asking: set[str] = set()
        self._guard = threading.Lock()

    def answer(self, newer: NewCode) -> Fit | None:
        """Return the known answer, None before the first; begin to ask when there is none to rely on."""
        with self._guard:
            known, is_old = self._known(newer)
            if not is_old or newer.pipeline in self._asking:
                return known
            threading.Thread(target=self.wait_for_answer, args=(newer,), name="new code", daemon=True).start()
            # Not before: a thread that cannot start would be asking for ever.
            self._asking.add(newer.pipeline)
            return known

    def wait_for_answer(self, newer: NewCode) -> Fit:
        """Wait for the answer and return it."""
        try:
            known, is_old = self._known(newer)
            if known is not None and not is_old:
                return known
            fit = _ask(newer.pipeline)
            with self._guard:
                self._answers[newer.pipeline] = (newer, time.monotonic(), fit)
            return fit
        finally:
            with self._guard:
                self._asking.discard(newer.pipeline)

    def _known(self, newer: NewCode) -> tuple[Fit | None, bool]:
        """Return the known answer about the new code, and whether to ask again."""
        about, at, fit = self._answers.get(newer.pipeline, (None, 0.0, None))
        if fit is None or about != newer:
            return None, True
        return fit, bool(fit.needs) and time.monotonic() - at > AGAIN


_asked = _Asked()


def _ask(pipeline: str) -> Fit:
    """Return the answer of a process of the deployed code; code that cannot be loaded does not fit."""
    command = [sys.executable, "-m", "include.streams.new_code", pipeline]
    try:
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE, check=False)
        return Fit(**json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return Fit(f"loading it took more than {PATIENCE:.0f} s", restarts=False)
    except OSError as error:
        return Fit(f"it cannot be checked: {error.strerror}", restarts=False)
    except (ValueError, TypeError):
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Fit(f"it cannot be loaded: {one_line(last, 300)}", restarts=False)


def check_fit(pipeline: Pipeline) -> None:
    """Raise TidemarkError unless this process's code fits the registered tables and the generation's checkpoints."""
    generation = generations.current(pipeline.name)
    noted = facts_of_begun(generation) if generation else {}
    check_storage_early(pipeline)
    contents = contents_of_generation(pipeline.name)
    # A view that has not begun will take what its source holds then; nothing of it is compared here.
    taken = {
        name: as_file(pipeline, name, contents[name]) if name in contents else without_rows(reference)
        for name, reference in pipeline.references.items()
        if reference.source
    }
    known = replace(pipeline, references={**pipeline.references, **taken})
    check_event_time(known)
    for query, facts in fingerprint.fingerprints_of(known).items():
        if query in noted:
            fingerprint.check(pipeline.name, query, noted[query], facts)


def fit_now(pipeline: Pipeline) -> Fit:
    """Return whether this process's code fits the registered tables and the current generation's checkpoints."""
    try:
        check_fit(pipeline)
    except TidemarkError as error:
        return Fit(str(error), pipeline.restarts_on_new_code)
    return Fit("", pipeline.restarts_on_new_code)


def main(arguments: list[str]) -> int:
    """Write the answer for a pipeline."""
    try:
        fit = fit_now(load_pipeline(arguments[0]))
    except TidemarkError as error:
        fit = Fit(str(error), restarts=False)
    print(json.dumps(asdict(fit)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
