"""Launching a replay: the Spark application that tries quarantined records again."""

from __future__ import annotations

import json
import tempfile
from dataclasses import fields
from pathlib import Path

from include.ledger import quarantine as ledger_quarantine
from include.pipelines.spec import Pipeline
from include.quarantine.records import initial_counts, pending, select
from include.quarantine.selection import Selection
from include.spark.run import run_job
from include.spark.submission import submission


def replay(pipeline: Pipeline, selection: Selection, *, by: str) -> tuple[int, dict[str, int]]:
    """Replay a selection by a Spark application of its own; return its exit code and, with 0, the counts.

    No application starts when nothing is left to try. Raises UsageError when a named record is not in quarantine.
    """
    decided = ledger_quarantine.decisions(pipeline.name)
    chosen = select(pipeline.name, selection)
    if not pending(chosen, decided, selection):
        return 0, initial_counts(chosen, decided)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        named = {each.name.replace("_", "-"): getattr(selection, each.name) for each in fields(selection)}
        # In one word: an id may begin with a hyphen.
        selectors = [f"--{name}={value}" for name, value in named.items() if value is not None]
        arguments = ["--pipeline", pipeline.name, "--by", by, "--result", str(result), *selectors]
        name = f"replay {pipeline.name}"
        if code := run_job(submission("replay_quarantine", *arguments, name=name, decoder=pipeline.decoder)):
            return code, {}
        counts: dict[str, int] = json.loads(result.read_text())
        return 0, counts
