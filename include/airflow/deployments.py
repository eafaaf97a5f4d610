"""Whether a stream's driver is to be replaced because other code was deployed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from include.ledger.streams import writers
from include.streams import new_code


@dataclass
class Deployments:
    """What was deployed while a driver is watched; a deployment is over when two looks in a row see the same."""

    pipeline: str
    _seen: str = ""

    def event(self) -> dict[str, Any] | None:
        """Return the event of a driver that is to be replaced: it is declared so, and new code continues where it is.

        A driver that runs older code again, since its host has no other, is left alone. Raises ServiceUnreachable.
        """
        found = new_code.look_closely(self.pipeline)
        if found is None:
            self._seen = ""
            if new_code.is_current(self.pipeline):
                writers.forget_replacement(self.pipeline)
            return None
        is_settled, self._seen = found.version == self._seen, found.version
        may = found.fit is not None and found.fit.restarts and not found.fit.needs
        if is_settled and may and writers.replace_for(self.pipeline, found.token, found.version):
            return {"event": "replaced", "changed": [path for path, _ in found.changed]}
        return None
