"""Decides when a driver is replaced, because other code was deployed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from include.ledger.streams import writers
from include.streams import new_code


@dataclass
class Deployments:
    """Code deployed while a driver is watched; a deployment is over when two looks in a row see the same."""

    pipeline: str
    _seen: str = ""

    def event(self) -> dict[str, Any] | None:
        """Return the event of a driver to be replaced: its pipeline declares that, and new code continues where it is.

        A driver that runs older code again, because its host has no other, is left alone for an hour. Raises
        ServiceUnreachable.
        """
        newer = new_code.look_closely(self.pipeline)
        if newer is None:
            self._seen = ""
            if new_code.is_current(self.pipeline):
                writers.forget_replacement(self.pipeline)
            return None
        is_settled, self._seen = newer.version == self._seen, newer.version
        may = newer.fit is not None and newer.fit.restarts and not newer.fit.needs
        if is_settled and may and writers.replace_for(self.pipeline, newer.token, newer.version):
            return {"event": "replaced", "changed": [path for path, _ in newer.changed]}
        return None
