"""The quarantine's pages: records by reason and time, and one record whole with every byte visible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from include import quarantine
from include.errors import AnotherWriter, FileUnreadable
from include.ledger.pages.trend import quarantine_by_hour, quarantine_reasons
from include.ledger.quarantine import is_being_decided
from include.monitor.history.plot import Trend, largest_series
from include.pipelines.spec import Pipeline
from include.quarantine import Selection, printable
from include.quarantine.misfits import misfits

DAYS = 30
RECORDS = 50
MOST_RECORDS = 500
"""How many records a page lists; a micro-batch may hold more."""
_HEX = 4096
"""How many bytes are shown; all of them can be downloaded."""
_LINE = 16


@dataclass(frozen=True)
class ReasonTotal:
    """Records of a reason."""

    reason: str
    records: int
    """Those that came into quarantine in the time shown."""
    ever: int
    """All that came; what is decided about the reason is decided about these."""
    last_hour: datetime
    last_batch: int


@dataclass(frozen=True)
class QuarantinePage:
    """The quarantine of a pipeline."""

    pipeline: str
    since: datetime
    until: datetime
    totals: tuple[ReasonTotal, ...]
    hours: tuple[datetime, ...]
    trend: Trend
    reason: str
    """The reason that the listed records are restricted to; empty for all."""
    records: tuple[Mapping[str, Any], ...]
    left_out: int
    """Records of the same micro-batches that are not listed."""
    following: int | None
    """Micro-batch that the next page begins with; None on the last one."""
    is_decided: bool
    """Whether a replay or discard is under way, wherever it was begun."""
    replay: Any
    """The last replay that this server began; None before it."""
    may_act: bool
    token: str
    unreadable: str = ""
    """Why no records are listed: a file of them cannot be read; the counts are the ledger's."""
    discarded: Discarded | None = None
    """What the discard did that led here."""


@dataclass(frozen=True)
class Discarded:
    """How a discard of all records with a reason ended."""

    reason: str
    records: int
    before: int
    """Those that were replayed or discarded before, and stay as they are."""


def read_quarantine(
    pipeline: Pipeline, *, now: datetime, reason: str, until: int | None, may_act: bool, replay: Any, token: str
) -> QuarantinePage:
    """Return the quarantine by reason and time, and its latest records up to a micro-batch."""
    since = now - timedelta(days=DAYS)
    by_hour = quarantine_by_hour(pipeline.name, since, now)
    hours = tuple(sorted({each.hour for each in by_hour}))
    places = {hour: place for place, hour in enumerate(hours)}
    counts: dict[str, list[float | None]] = {}
    recent = Counter[str]()
    for each in by_hour:
        counts.setdefault(each.reason, [None] * len(hours))[places[each.hour]] = each.records
        recent[each.reason] += each.records
    totals = (
        ReasonTotal(each.reason, recent[each.reason], each.records, each.hour, each.last_batch)
        for each in quarantine_reasons(pipeline.name)
    )
    ordered = sorted(totals, key=lambda total: (-total.records, -total.ever, total.reason))
    series = largest_series(counts)
    note = "Hours with records only, by the time of their commit."
    trend = Trend("reasons", "Records by reason", "records that came into quarantine in an hour", note, "stack", series)
    selection = Selection(reason=reason or None)
    unreadable = ""
    try:
        latest = quarantine.latest_records(pipeline.name, selection, until=until, enough=RECORDS, most=MOST_RECORDS)
    except (AnotherWriter, FileUnreadable) as error:
        latest, unreadable = quarantine.Latest([], 0, None), str(error)
    return QuarantinePage(
        pipeline.name,
        since,
        now,
        tuple(ordered),
        hours,
        trend,
        reason,
        tuple(latest.records),
        latest.left_out,
        latest.following,
        is_being_decided(pipeline.name),
        replay,
        may_act,
        token,
        unreadable,
    )


@dataclass(frozen=True)
class Bytes:
    """Bytes as hex and as text, every byte visible."""

    size: int
    lines: tuple[tuple[str, str, str], ...]
    """Position, bytes as hex, bytes as ASCII with a dot for any other."""
    text: str
    """As UTF-8, control characters escaped."""
    left_out: int


@dataclass(frozen=True)
class RecordWhole:
    """A quarantined record with everything that is kept of it."""

    pipeline: str
    topic: str
    partition: int
    offset: int
    timestamp: str
    topic_id: str
    reason: str
    detail: str
    misfits: tuple[str, ...]
    """Fields that are not of their declared types, as far as that can be told."""
    state: str
    since: str | None
    by: str | None
    interval: str | None
    note: str
    key: Bytes | None
    value: Bytes | None
    headers: tuple[tuple[str, Bytes | None], ...]
    is_decided: bool
    may_act: bool
    token: str


def read_whole(pipeline: Pipeline, record: Mapping[str, Any], *, may_act: bool, token: str) -> RecordWhole:
    """Return a record of `quarantine.find` as its page shows it."""
    return RecordWhole(
        pipeline.name,
        record["kafka_topic"],
        record["kafka_partition"],
        record["kafka_offset"],
        record["kafka_timestamp"],
        record["topic_id"],
        record["reason"],
        visible(record["detail"]),
        tuple(misfits(pipeline.decoder, record)),
        record["state"],
        record["since"],
        record["by"],
        record["interval"],
        visible(record["note"]),
        shown(record["key"]),
        shown(record["value"]),
        tuple((visible(str(each["key"])), shown(each["value"])) for each in record["headers"] or ()),
        is_being_decided(pipeline.name),
        may_act,
        token,
    )


def visible(text: str | None) -> str:
    """Return a text with its control and formatting characters escaped."""
    return printable(text.encode("utf-8", "surrogatepass")) if text else ""


def shown(content: bytes | None) -> Bytes | None:
    """Return bytes as the page shows them; None for none."""
    if content is None:
        return None
    part = content[:_HEX]
    lines = tuple(_hex_line(part, start) for start in range(0, len(part), _LINE))
    return Bytes(len(content), lines, printable(content), max(len(content) - _HEX, 0))


def _hex_line(content: bytes, start: int) -> tuple[str, str, str]:
    part = content[start : start + _LINE]
    return f"{start:06x}", part.hex(" "), "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)


def bytes_of(record: Mapping[str, Any], part: str) -> bytes | None:
    """Return the bytes of a record's value or key; None if it has none."""
    content = record.get(part) if part in ("value", "key") else None
    return content if isinstance(content, bytes) else None
