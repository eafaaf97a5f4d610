"""Why records came into quarantine in the last hour, from the newest files; each file is read once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from include import lake
from include.errors import TidemarkError
from include.ledger.streams.overview import quarantine_paths
from include.monitor.text import clean

_MOST_FILES = 100
"""Files that are read; the records of others are counted without their reasons."""


@dataclass(frozen=True)
class ReasonCount:
    """How many records came for one reason."""

    reason: str
    records: int


def recent_reasons(pipeline: str) -> tuple[ReasonCount, ...]:
    """Return the reasons of the last hour's quarantined records, the most frequent first."""
    counted: Counter[str] = Counter()
    for number, (path, rows) in enumerate(quarantine_paths(pipeline, 10 * _MOST_FILES)):
        try:
            reasons = dict(_reasons(path)) if number < _MOST_FILES else {"(not read: too many files)": rows}
        except (OSError, TidemarkError):
            # Housekeeping merges files meanwhile.
            reasons = {"(its file is gone)": rows}
        counted.update(reasons)
    return tuple(ReasonCount(clean(reason, 80), records) for reason, records in counted.most_common())


@lru_cache(maxsize=1024)
def _reasons(path: str) -> tuple[tuple[str, int], ...]:
    with lake.open_parquet(lake.uri(path)) as opened:
        return tuple(Counter(map(str, opened.read(columns=["reason"])["reason"].to_pylist())).items())
