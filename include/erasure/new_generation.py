"""A new generation of a stream, with what it may bring back: merged files, and what erasures had removed."""

from __future__ import annotations

from collections.abc import Callable

from include.erasure import accounts
from include.housekeeping.run import put_back
from include.pipelines.spec import Pipeline
from include.streams import generations


def begin_generation(pipeline: Pipeline, *, reason: str, by: str, tell: Callable[[str], None]) -> int:
    """Open the next generation, put back merged files that the ledger names, and return the generation's number.

    Tells what was put back, and the erasures that the ledger does not know. Raises what `new_generation` raises.
    """
    number = generations.new_generation(pipeline, reason=reason, started_by=by)
    put_back(pipeline.name, tell)
    for each in accounts.unknown(pipeline.name):
        tell(f"{each}; {each.remedy}")
    return number
