"""Explanation of a table partition: back to the offsets behind it, by ledger, catalog and its files.

PyArrow is imported only for files that are large, changed or not on this machine's disk: importing it takes longer
than everything else here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from include import catalog
from include.errors import ServiceUnreachable, UsageError
from include.ledger import lineage
from include.ledger.intervals.states import RevisionState
from include.ledger.lineage import BuiltRevision, History, IntervalHistory
from include.pipelines import pipeline_of_table
from include.pipelines.spec import IDENTITY
from include.pipelines.spec.file_formats import format_of
from include.times import format_time


def explain(table: str, partition: str) -> dict[str, Any]:
    """Return revision, files, interval, ranges with the fate of every offset, verdict, who ran it, earlier revisions.

    For each file: what was noted when it was built, what it has `now` and what `differs`, by its hash or its footer.

    The table of a view that is no longer declared keeps its registered partitions. Raises UsageError for an unknown
    table, or a partition that is not registered.
    """
    _check_known(table)
    revisions = lineage.revisions_of_partition(table, partition)
    registered = next((each for each in revisions if each.state == RevisionState.REGISTERED), None)
    if registered is None:
        others = lineage.registered_partitions(table)
        raise UsageError(
            f"{table} has no registered partition {partition!r}",
            remedy=f"registered: {', '.join(others[-5:]) or 'none'}",
        )
    interval = lineage.interval_of_attempt(registered.run.attempt)
    built, findings = registered.built, registered.run.findings
    return {
        "table": table,
        "partition": partition,
        "revision": built.revision,
        "location": built.location,
        "catalog": _catalog(built),
        "rows": built.rows,
        "content_hash": built.content_hash,
        "files": _files(built),
        "interval": _interval(interval),
        "run": _run(registered),
        "ranges": _ranges(interval),
        "records": findings.get("records", {}),
        "reconciliation": findings.get("reconciliation", {}),
        "validation": findings.get("validation", {}),
        "report": interval.report,
        "revisions": [_revision(each) for each in revisions],
    }


def _check_known(table: str) -> None:
    """Raise UsageError for a table that no pipeline declares and that has no registered partition."""
    try:
        pipeline_of_table(table)
    except UsageError:
        with suppress(ServiceUnreachable):
            if lineage.registered_partitions(table):
                return
        raise


def _interval(interval: IntervalHistory) -> dict[str, Any]:
    return {
        "from": format_time(interval.interval.from_time),
        "to": format_time(interval.interval.to_time),
        "state": interval.state,
        "pinned_by": interval.pinned_by,
        "pinned_at": format_time(interval.pinned_at),
    }


def _ranges(interval: IntervalHistory) -> list[dict[str, Any]]:
    """Return the ranges that are registered, with the fates of their offsets.

    They are those that are pinned, unless the interval was pinned again since.
    """
    bounds = [
        [(each.topic, each.partition, each.from_offset, each.until_offset) for each in ranges]
        for ranges in (interval.ranges, interval.published_ranges)
    ]
    is_pinned_again = bool(interval.published_ranges) and bounds[0] != bounds[1]
    return [asdict(each) for each in (interval.published_ranges if is_pinned_again else interval.ranges)]


def _run(revision: History) -> dict[str, Any]:
    run = revision.run
    return {
        "attempt": run.attempt,
        "run_by": run.run_by,
        "code_version": revision.code_version,
        "source": run.source,
        "started_at": format_time(run.started_at),
        "built_at": format_time(revision.built_at),
        "registered_at": _time(revision.registered_at),
        "ended_at": _time(run.ended_at),
        "exit_code": run.exit_code,
    }


def _revision(revision: History) -> dict[str, Any]:
    """Return a revision that the partition has or had, with who built it and what became of it."""
    return {
        "revision": revision.built.revision,
        "state": revision.state,
        "rows": revision.built.rows,
        "content_hash": revision.built.content_hash,
        "code_version": revision.code_version,
        "run_by": revision.run.run_by,
        "source": revision.run.source,
        "built_at": format_time(revision.built_at),
        "registered_at": _time(revision.registered_at),
        "retired_at": _time(revision.retired_at),
        "files_lie_there": _exists(revision.built.location),
    }


def _time(moment: datetime | None) -> str | None:
    return format_time(moment) if moment else None


def _catalog(built: BuiltRevision) -> dict[str, Any]:
    """Return where the catalog points now, and whether that is the ledger's registered revision."""
    entry = catalog.partitions([built.table]).get((built.table, built.partition))
    return {
        "location": entry.location if entry else None,
        "agrees": entry is not None
        and catalog.comparable_location(entry.location) == catalog.comparable_location(built.location),
    }


def _files(built: BuiltRevision) -> list[dict[str, Any]]:
    """Return the revision's files as noted when built, beside what they have now, and what differs."""
    files = []
    hashes = _hashes(built)
    for name, noted in sorted(built.files.items()):
        sha256 = hashes.get(name)
        if sha256 is not None and sha256 == noted.get("sha256"):
            facts = _FACTS if format_of(name) == "parquet" else _FACTS[:2]
            now = {fact: noted[fact] for fact in facts if fact in noted}
        else:
            now = _footer(built.location, name, noted)
            if now and sha256 is not None:
                now.setdefault("sha256", sha256)
        differs = sorted(key for key in now.keys() & noted.keys() if now[key] != noted[key]) if now else ["file"]
        files.append({"name": name, **noted, "now": now, "differs": differs})
    return files


_FACTS = ("sha256", "bytes", "rows", *IDENTITY[:3])

_MOST_HASHED = 64 * 2**20
"""Bytes of a revision's files that are hashed at most: about a tenth of a second."""


def _on_disk(location: str) -> Path | None:
    """Return the path of a URI on this machine's disk; None for another one."""
    parts = urlsplit(location)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _exists(location: str) -> bool:
    if (path := _on_disk(location)) is not None:
        return path.exists()
    from include import lake

    return lake.exists(location)


def _hashes(built: BuiltRevision) -> dict[str, str | None]:
    """Return the hash of each file that can be read.

    None are known when the files are on no disk of this machine, or too large to find out at once.
    """
    folder = _on_disk(built.location)
    if folder is None or sum(int(noted["bytes"]) for noted in built.files.values()) > _MOST_HASHED:
        return {}
    return {name: _sha256(folder / name) for name in built.files}


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _footer(folder: str, name: str, noted: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file's footer has: bytes, rows and offset bounds; nothing when it is missing or damaged.

    Files of other formats than Parquet have no such footer: their hash shows whether they are as noted.
    """
    from pyarrow import ArrowInvalid

    from include import lake

    location = f"{folder}/{name}"
    try:
        if format_of(location) != "parquet":
            is_as_noted = "sha256" in noted and lake.has_sha256(location, noted["sha256"])
            return {"sha256": noted["sha256"] if is_as_noted else lake.sha256(location), "bytes": lake.size(location)}
        footer = lake.read_footer(location)
        facts: dict[str, Any] = {"rows": footer.num_rows, "bytes": lake.size(location)}
    except (OSError, ArrowInvalid):
        return {}
    for column in IDENTITY[:3]:
        bounds = lake.column_bounds(footer, column)
        if bounds:
            facts[column] = list(bounds)
    return facts
