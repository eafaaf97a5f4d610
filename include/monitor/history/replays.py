"""Replays begun on a page: one at a time per pipeline, in a thread that waits for its end."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from include import quarantine
from include.errors import AnotherWriter, TidemarkError, error_class, one_line
from include.pipelines.spec import Pipeline
from include.quarantine import Selection


@dataclass(frozen=True)
class ReplayRun:
    """A replay that was begun by this process, and how it ended."""

    by: str
    selection: str
    began_at: datetime
    ended_at: datetime | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    problem: str = ""
    """Why it failed; empty while it runs and when it did not."""


class Replays:
    """The last replay of each pipeline."""

    def __init__(self) -> None:
        self._last: dict[str, ReplayRun] = {}
        self._lock = threading.Lock()

    def last(self, pipeline: str) -> ReplayRun | None:
        """Return the pipeline's last replay; None when this process began none."""
        return self._last.get(pipeline)

    def begin(self, pipeline: Pipeline, selection: Selection, *, by: str) -> None:
        """Begin a replay. Raise AnotherWriter while one is under way, UsageError when a named record is not there."""
        quarantine.check_there(pipeline.name, selection)
        named = (selection.topic, selection.partition, selection.offset, selection.reason, selection.topic_id)
        words = " ".join(str(each) for each in named if each is not None)
        with self._lock:
            last = self._last.get(pipeline.name)
            if last is not None and last.ended_at is None:
                raise AnotherWriter("a replay is under way", remedy="wait for its end", pipeline=pipeline.name)
            run = ReplayRun(by, words, datetime.now(UTC))
            # The driver dies with the thread that started it, so it gets a thread of its own, which waits.
            arguments = (pipeline, selection, run)
            threading.Thread(target=self._run, args=arguments, name=f"replay {pipeline.name}", daemon=True).start()
            # Not before: a thread that cannot start would be under way for ever.
            self._last[pipeline.name] = run

    def _run(self, pipeline: Pipeline, selection: Selection, run: ReplayRun) -> None:
        counts: Mapping[str, int] = {}
        problem = ""
        try:
            code, counts = quarantine.replay(pipeline, selection, by=run.by)
            if code:
                problem = f"exit code {code}: {error_class(code).meaning}; the log of this server says why"
        except TidemarkError as error:
            problem = str(error)
        except OSError as error:
            problem = f"it could not be started: {error.strerror}"
        except Exception as error:
            problem = f"unexpected: {one_line(repr(error))}; the log of this server says why"
            raise
        finally:
            ended = replace(run, ended_at=datetime.now(UTC), counts=counts, problem=problem)
            # Not before its beginning is noted.
            with self._lock:
                self._last[pipeline.name] = ended
