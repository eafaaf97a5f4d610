"""A micro-batch that the ledger already has: a replay of it, or another one under its number."""

from __future__ import annotations

from collections.abc import Sequence

from include.errors import UsageError


def check_replay(pipeline: str, batch: str, planned: Sequence[object], committed: Sequence[object]) -> None:
    """Raise UsageError when a committed micro-batch is planned with something else than it was committed with.

    Spark plans one again as it was, for the plan is written before the commit. Other offsets come from a checkpoint
    that is older than the ledger: under the number of a committed micro-batch they would be read and never archived.
    """
    if list(planned) != list(committed):
        raise UsageError(
            f"{batch} is planned with {_listed(planned)}, but the ledger has it with {_listed(committed)}: checkpoint "
            "and ledger do not belong together, as when the lake is an older copy; nothing was committed",
            remedy="restore the checkpoint that belongs to this ledger, or begin without it: "
            f'./tidemark new-generation {pipeline} --reason "…"',
            pipeline=pipeline,
        )


def _listed(parts: Sequence[object]) -> str:
    return ", ".join(map(str, parts)) or "nothing"
