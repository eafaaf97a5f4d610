"""The oracle of wiki_changes in plain Python: which changes are good, which edits they are, and who made the most."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from include.lake import SAFE_VALUE
from tests.conftest import iso
from tests.support.audit import Coordinates, Fates, Record


def as_change(value: bytes | None, timestamp: int) -> dict[str, Any] | None:
    """The change that must be archived; {} for a canary event, None for one that must be in quarantine.

    Written independently from the declared rules; only the allow-list of folder names is the project's.
    """
    if value is None or len(value) > 1_048_576:
        return None
    try:
        change = json.loads(value.decode("utf-8"))
        meta = change["meta"]
        when = meta.get("dt")
        moment = datetime.fromisoformat(when) if when else datetime.fromtimestamp(change["timestamp"], UTC)
        distance = moment.timestamp() - timestamp / 1000
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    if meta.get("domain") == "canary":
        return {}
    good = (
        isinstance(meta.get("id"), str)
        and -30 * 86400 <= distance <= 600
        and re.fullmatch(SAFE_VALUE, change.get("server_name") or "")
        and len((change.get("user") or "").encode("utf-8", "replace")) <= 255
        and isinstance(change.get("length", {}), dict)
    )
    return {**change, "moment": moment} if good else None


def fates_of(records: dict[Coordinates, Record]) -> Fates:
    """What the audit expects of a topic's records."""
    changes = {at: as_change(record.value, record.timestamp) for at, record in records.items()}
    good = {at for at, change in changes.items() if change}
    bad = {at for at, change in changes.items() if change is None}
    return Fates({(*at, 0): changes[at] or {} for at in good}, good, changes.keys() - good - bad, bad)


def text_of(text: str) -> str:
    """A text as Java holds it: half a character becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def edits_of(archived: dict[Coordinates, dict[str, Any]]) -> Counter[tuple[str, bool, str]]:
    counts: Counter[tuple[str, bool, str]] = Counter()
    for change in archived.values():
        if change["type"] in ("edit", "new") and change["user"] is not None:
            start = change["moment"].replace(minute=change["moment"].minute // 10 * 10, second=0, microsecond=0)
            counts[text_of(change["user"]), change["bot"], iso(start)] += 1
    return counts


def top_of(counts: Counter[tuple[str, bool, str]], window: str) -> list[list[object]]:
    """The ten largest of a window, equal ones by name."""
    inside = [(user, bot, count) for (user, bot, start), count in counts.items() if start == window]
    return [list(row) for row in sorted(inside, key=lambda row: (-row[2], row[0], str(row[1])))[:10]]
