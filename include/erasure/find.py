"""Search everything that a pipeline keeps for keys: rows by their columns, records in quarantine by their bytes."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

from include import lake
from include.erasure.keys import Keys
from include.erasure.quarantined import find_quarantined
from include.errors import error_class
from include.ledger.erasures import kept_rows
from include.ledger.erasures.intent import Found
from include.ledger.quarantine import RecordKey
from include.ledger.streams.incarnations import closed
from include.pipelines.spec import Pipeline
from include.settings import write_private
from include.spark.run import run_job
from include.spark.submission import submission


@dataclass(frozen=True)
class Search:
    """What holds one of the keys."""

    found: Found
    rows_of_others: int
    """Rows of other keys in the same messages: an erased record is erased whole."""


def search(pipeline: Pipeline, columns: Sequence[str], keys: Keys) -> Search:
    """Return the records that hold one of the keys. The keys reach the driver in a private file.

    Raises FileUnreadable, or the error of the search's exit code, when a file cannot be read: what it holds is then
    unknown; AnotherWriter when the caller has no lock on files and one was replaced meanwhile.
    """
    quarantined = find_quarantined(pipeline.name, keys)
    landed = kept_rows.landed_rows(pipeline.name)
    registered = kept_rows.revised_rows(pipeline.name, _revisions(pipeline))
    replayed = kept_rows.replayed_records(pipeline.name)
    question = {
        "keys": keys.keys,
        "columns": list(columns),
        "landing": [asdict(each) for each in landed],
        "registered": [asdict(each) for each in registered],
        # An interval of another incarnation may hold their rows.
        "replayed": sorted(each.coordinates for each in replayed) if closed(pipeline.name) else [],
        # They are erased for their bytes, and their rows with them, whoever these are about.
        "quarantined": [astuple(each) for each in sorted(quarantined & replayed)],
    }
    with tempfile.TemporaryDirectory() as folder:
        asked, result = Path(folder) / "asked.json", Path(folder) / "found.json"
        write_private(asked, json.dumps(question))
        write_private(result, "{}")
        arguments = ("--pipeline", pipeline.name, "--asked", str(asked), "--result", str(result))
        if code := run_job(submission("erase_subject", *arguments, name=f"search {pipeline.name}", short=True)):
            raise error_class(code)(
                f"the search ended with {code}; nothing was changed",
                remedy="read its log above",
                pipeline=pipeline.name,
            )
        said = json.loads(result.read_text())
    by_file = {name: {RecordKey(*each) for each in said[name]} for name in ("landing", "registered")}
    found = Found(by_file["landing"], by_file["registered"] - by_file["landing"], quarantined, said["rows"])
    return Search(found, said["rows_of_others"])


def _revisions(pipeline: Pipeline) -> dict[int, list[str]]:
    """Return the files of all revisions of the archive table that are on disk, by the number of their interval."""
    found: dict[int, list[str]] = defaultdict(list)
    for interval, each in kept_rows.revisions_kept(pipeline.table):
        if lake.exists(each.location):
            found[interval] += [f"{each.location}/{name}" for name in sorted(each.files)]
    return found
