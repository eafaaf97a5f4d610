"""Delete what older generations of a stream leave: checkpoints that nothing reads, and logs of drivers that ended."""

from __future__ import annotations

import re
import socket
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

from include import lake
from include.housekeeping.sweep import Done, Times
from include.lake.checkpoints import generation_folders
from include.ledger.streams import generations, launches
from include.pipelines.spec import Pipeline
from include.settings import settings


def sweep_checkpoints(pipeline: Pipeline, times: Times, done: Done, kept: Collection[str]) -> None:
    """Delete the checkpoints and bases of generations before the current one, if nothing changed there recently.

    A stream never returns to an older generation. Those in `kept` stay: they tell that another ledger knew this lake.
    """
    current = generations.current(pipeline.name)
    for number, location in generation_folders(pipeline.name).items():
        if current is None or number >= current.number or location in kept:
            continue
        entries = [entry for entry in lake.list_entries(location) if not entry.is_folder]
        if any(entry.modified is not None and entry.modified >= times.revisions for entry in entries):
            continue
        done.generations["generations"] += 1
        for counts in (done.generations, done.deleted):
            counts["files"] += len(entries)
            counts["bytes"] += sum(entry.bytes for entry in entries)
        if done.may_change():
            lake.delete(location)


def sweep_logs(pipeline: Pipeline, times: Times, done: Done) -> None:
    """Delete the logs of drivers on this host that have been silent for long, but never the newest driver's."""
    name = re.compile(rf"{re.escape(pipeline.name)}-[0-9a-f]{{8}}\.log")
    newest = launches.last(pipeline.name)
    kept = newest.log if newest and newest.host.startswith(f"{socket.gethostname()}/") else ""
    folder = settings().home / "logs" / "streams"
    for log in sorted(folder.glob("*.log")) if folder.is_dir() else []:
        if name.fullmatch(log.name) and str(log) != kept and _changed(log) < times.revisions:
            for counts in (done.logs, done.deleted):
                counts["files"] += 1
                counts["bytes"] += log.stat().st_size
            if not done.dry_run:
                log.unlink()


def _changed(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)
