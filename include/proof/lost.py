"""Proofs whose files are gone."""

from __future__ import annotations

from include import lake
from include.lake.scan import scan_files
from include.ledger import proofs
from include.pipelines.spec import Pipeline


def lost_files(pipeline: Pipeline) -> list[str]:
    """Return the paths below the lake of a pipeline's proofs whose files are gone, in the order of the chain."""
    # The ledger is read first: a proof is noted after its file.
    written = proofs.paths(pipeline.name)
    there = scan_files("proofs", pipeline.name) if written else {}
    return [each for each in written if lake.uri(each) not in there]
