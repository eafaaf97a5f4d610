"""`bench iceberg`: CPU seconds of committing an interval to an Iceberg table, by how many were committed before.

The intervals before are laid down, not run: their files in manifests, and as many snapshots as the table keeps in its
metadata, with summaries and tags as large as those of real ones. What is measured is real: the ledger's questions, the
footer of the interval's file, manifests and their merging, metadata and the catalog's row. Not in it: PostgreSQL's own
time.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count, pairwise
from pathlib import Path
from shutil import copyfile
from statistics import mean, median
from typing import Any

from pyiceberg.table import Table

from include import lake
from include.iceberg import catalog as iceberg_catalog
from include.iceberg import tables
from include.ledger.completeness.properties import properties_after
from include.ledger.database import engine
from include.ledger.intervals import builds
from include.pipelines.spec import Retention
from include.settings import REPOSITORY, settings
from tests.benchmarks.home import bench_home
from tests.benchmarks.targets import Target
from tests.support.open_tables import LONG_AGO, PASSED, OpenTable, lay_files, pipeline_named, rows_of

WARM_UP = 3
"""Warm-up commits, which import and open what the others use; they are not measured."""


def run(
    rounds: int = 220, past: Sequence[int] = (10, 1_000, 10_000), keep: int = Retention().snapshots
) -> dict[str, Any]:
    """Mean CPU seconds of a commit after so many others, and their ratio to the first of these numbers.

    A hundred manifests are merged: so many rounds are two merges of each table.
    """
    with bench_home() as home, _here(home.environment()):
        return measure(rounds, past, keep)


def measure(rounds: int, past: Sequence[int], keep: int) -> dict[str, Any]:
    """Run the benchmark on running services; the tables alternate, because a machine's speed varies."""
    tables_of = {str(number): _commits(number, keep) for number in past}
    for commits in tables_of.values():
        for _ in range(WARM_UP):
            next(commits)
    turns = [{n: next(commits) for n, commits in tables_of.items()} for _ in range(rounds)]
    every = {n: [turn[n].seconds for turn in turns] for n in tables_of}
    manifests = {n: [turn[n].manifests for turn in turns] for n in tables_of}
    first = mean(every[str(past[0])])
    return {
        "registering_seconds": [registering_seconds(number) for number in range(3)],
        "kept_snapshots": keep,
        "merges": {n: sum(after < before for before, after in pairwise(counts)) for n, counts in manifests.items()},
        "cpu_seconds": {n: {"mean": mean(s), "median": median(s), "max": max(s)} for n, s in every.items()},
        "cpu_ratio": {n: round(mean(s) / first, 3) for n, s in every.items()},
    }


def targets(found: dict[str, Any]) -> list[Target]:
    """Return the targets: a commit's cost depends on the interval, not on the table; registering adds at most 3 s."""
    ratios = [Target(f"cpu_ratio.{n}", ratio, at_most=1.1) for n, ratio in found["cpu_ratio"].items()]
    return [*ratios, Target("registering_seconds", max(found["registering_seconds"]), at_most=3)]


_REGISTER = """
import sys, time
began = time.perf_counter()
from include.iceberg import tables
took = time.perf_counter() - began
from include.ledger.intervals import builds
from tests.support.open_tables import pipeline_named
pipeline = pipeline_named(sys.argv[1])
(begun,) = builds.begun_registrations(pipeline.name)
began = time.perf_counter()
tables.prepare(pipeline)
tables.put_build(pipeline, begun.pinned.id, begun.build, begun.changes)
print(took + time.perf_counter() - began)
"""


def registering_seconds(number: int) -> float:
    """Seconds by the clock that a publication takes longer, PyIceberg's import and the commit of a table included."""
    archive = OpenTable(pipeline_named(f"registered_{number}_{os.getpid()}"))
    archive.run(0, {"2026-11-18": rows_of(0, 50)})
    spec, built = archive.build(1, {"2026-11-18": rows_of(1, 50)})
    begun = builds.begin_registration(spec, PASSED, archive.changes(spec, built))
    command = [sys.executable, "-c", _REGISTER, archive.pipeline.name]
    told = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
    builds.finish_registration(begun)
    return float(told)


@contextmanager
def _here(environment: dict[str, str]) -> Iterator[None]:
    os.environ.update({name: value for name, value in environment.items() if name.startswith("TIDEMARK_")})
    settings.cache_clear()
    engine.cache_clear()
    try:
        yield
    finally:
        engine().dispose()


@dataclass(frozen=True)
class Commit:
    """What one commit took, and left."""

    seconds: float
    """Of CPU."""
    manifests: int
    """How many the head has."""


def _commits(past: int, keep: int) -> Iterator[Commit]:
    """Make one commit after another to a table of so many intervals."""
    declared = pipeline_named(f"after_{past}_{keep}_{os.getpid()}")
    archive = OpenTable(replace(declared, retention=Retention(snapshots=keep)))
    archive.run(0, {"2026-11-18": rows_of(0, 50)})
    lay_files(archive.load(), past)
    _lay_snapshots(archive.load(), min(past, keep))
    for hour in count(1):
        spec, built = archive.build(hour, {"2026-11-18": rows_of(hour, 50)})
        tables.prepare(archive.pipeline)
        begun = builds.begin_registration(spec, PASSED, archive.changes(spec, built))
        # A full collection costs what this process holds, the other tables included.
        gc.collect()
        began = time.process_time()
        tables.put_build(archive.pipeline, begun.pinned.id, begun.build, begun.changes, properties_after(begun))
        took = time.process_time() - began
        builds.finish_registration(begun)
        yield Commit(took, _manifests(archive.load()))


def _manifests(table: Table) -> int:
    head = table.current_snapshot()
    return len(head.manifests(table.io)) if head is not None else 0


def _lay_snapshots(table: Table, past: int) -> None:
    """Let the table's metadata have so many snapshots, the head included, each with its tag."""
    path = Path(lake.filesystem(table.metadata_location)[1])
    metadata = json.loads(path.read_text())
    head = next(each for each in metadata["snapshots"] if each["snapshot-id"] == metadata["current-snapshot-id"])
    own = next(each for each in metadata["snapshots"] if "tidemark.build" in each["summary"])
    made, tags, parent = [], {}, {}
    for number in range(1, past):
        at = LONG_AGO + timedelta(hours=number)
        summary = {**own["summary"], "tidemark.interval": f"{at:%Y-%m-%dT%H}", "tidemark.build": str(number)}
        listed = head["manifest-list"].replace(".avro", f"-{number}.avro")
        copyfile(*(lake.filesystem(each)[1] for each in (head["manifest-list"], listed)))
        made.append(
            {
                **head, **parent, "snapshot-id": number, "sequence-number": number, "summary": summary,
                "manifest-list": listed,
            }
        )  # fmt: skip
        tags[f"{at:%Y-%m-%dT%H}-{number}"] = {"snapshot-id": number, "type": "tag"}
        parent = {"parent-snapshot-id": number}
    head.update(parent, **{"sequence-number": past + 1000, "summary": {**head["summary"], **own["summary"]}})
    metadata.update({
        "snapshots": [*made, head],
        "refs": {"main": metadata["refs"]["main"], **tags},
        "snapshot-log": [
            {"snapshot-id": each["snapshot-id"], "timestamp-ms": each["timestamp-ms"]} for each in [*made, head]
        ],
        "last-sequence-number": past + 1000,
    })  # fmt: skip
    location = table.metadata_location.replace(".metadata.json", "-laid.metadata.json")
    Path(lake.filesystem(location)[1]).write_text(json.dumps(metadata))
    with iceberg_catalog.opened() as catalog:
        catalog.drop_table(table.name())
        catalog.register_table(table.name(), location)
