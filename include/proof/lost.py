"""Proofs whose files are gone, and where others may come from."""

from __future__ import annotations

from include import lake
from include.lake.scan import scan_files
from include.ledger import proofs
from include.ledger.erasures.named_partitions import is_any_renamed
from include.pipelines.spec import Pipeline


def lost_files(pipeline: Pipeline) -> list[str]:
    """Return the paths below the lake of a pipeline's proofs whose files are gone, in the order of the chain."""
    # The ledger is read first: a proof is noted after its file.
    written = proofs.paths(pipeline.name)
    there = scan_files("proofs", pipeline.name) if written else {}
    return [each for each in written if lake.uri(each) not in there]


def copy_to_use(pipeline: Pipeline) -> str:
    """Return in words from which copy of the lake they may be put back: an erasure would have replaced earlier ones."""
    if is_any_renamed(pipeline.table):
        return "a copy since the last erasure, never from an earlier one, which may name what was erased"
    return "the lake's last copy"
