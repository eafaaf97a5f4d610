"""The doctor's last findings: a thread looks while pages ask, so that no page waits for catalog and files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache

from include.doctor.compare import disagreements_of
from include.doctor.disagreement import MEANINGS, Disagreement
from include.errors import TidemarkError, one_line
from include.monitor.history.doctor_look import Found, Look
from include.pipelines.spec import Pipeline

EVERY = 60.0
"""Seconds after which a look is too old."""

SHARE = 50
"""A look that took a second is repeated after at least this many: it costs at most two percent of a core."""

PATIENCE = 0.4
"""Seconds for which a page waits for the very first look."""

MOST = 200
"""How many disagreements of a pipeline are kept; more of them have one cause."""


@dataclass
class _Pipeline:
    look: Look = field(default_factory=Look)
    due: float = float("-inf")
    is_looking: bool = False


LookAt = Callable[[Pipeline], Look]


class DoctorWatch:
    """Looks at pipelines that are asked for, one at a time."""

    def __init__(self, look_at: LookAt | None = None, every: float = EVERY) -> None:
        self._look_at, self._every = look_at or look_now, every
        self._known: dict[str, _Pipeline] = {}
        self._changed = threading.Condition()
        self._alone = threading.Lock()

    def look(self, pipeline: Pipeline, patience: float = PATIENCE) -> Look:
        """Return the last look; begin another when that is too old. Waits a moment for the very first one."""
        with self._changed:
            known = self._known.setdefault(pipeline.name, _Pipeline())
            if not known.is_looking and time.monotonic() >= known.due:
                arguments = (pipeline, known)
                threading.Thread(target=self._look, args=arguments, daemon=True, name="doctor watch").start()
                # Not before: a thread that cannot start would be looking for ever.
                known.is_looking = True
            if known.look.looked_at is None:
                self._changed.wait_for(lambda: not known.is_looking, patience)
            return known.look

    def _look(self, pipeline: Pipeline, known: _Pipeline) -> None:
        with self._alone:
            began = time.monotonic()
            try:
                look = self._look_at(pipeline)
            except TidemarkError as error:
                look = replace(known.look, error=str(error))
            except Exception as error:  # the thread's edge: the page must say why nothing is known
                look = replace(known.look, error=one_line(str(error)) or type(error).__name__)
            ended = time.monotonic()
        with self._changed:
            known.look, known.is_looking = look, False
            known.due = ended + max(self._every, SHARE * (ended - began))
            self._changed.notify_all()


def look_now(pipeline: Pipeline) -> Look:
    """Return what ledger, catalog and files of a pipeline disagree about. Raises ServiceUnreachable."""
    disagreements = disagreements_of(pipeline, deep=False)
    return Look(tuple(map(_found, disagreements[:MOST])), len(disagreements) > MOST, datetime.now(UTC))


def _found(each: Disagreement) -> Found:
    label = each.interval.label if each.interval else ""
    return Found(each.kind, each.what, MEANINGS[each.kind], each.remedy, bool(each.repair), label)


@cache
def doctor_watch() -> DoctorWatch:
    """Return this process's watch."""
    return DoctorWatch()
