"""Search the quarantine: its records are bytes, so the keys are looked for in bytes."""

from __future__ import annotations

from typing import Any

from include import lake
from include.erasure.keys import Keys
from include.ledger import quarantine as ledger_quarantine
from include.ledger.quarantine import RecordKey
from include.quarantine.reading import open_file, record_key

_ROWS = 2_000
"""How many records are in memory at once."""


def find_quarantined(pipeline: str, keys: Keys) -> set[RecordKey]:
    """Return the quarantined records whose key, value, headers or detail name one of the keys.

    Raises like `open_file`.
    """
    found: set[RecordKey] = set()
    for file in ledger_quarantine.files(pipeline):
        with open_file(pipeline, file.path) as opened:
            for batch in opened.iter_batches(batch_size=_ROWS):
                found.update(record_key(row, file) for row in lake.python_rows(batch) if _names(row, keys))
    return found


def _names(row: dict[str, Any], keys: Keys) -> bool:
    headers = [part for each in row.get("headers") or () for part in ((each["key"] or "").encode(), each["value"])]
    values = (row.get("key"), row.get("value"), (row.get("detail") or "").encode(), *headers)
    return any(keys.named_in_bytes(each) for each in values)
