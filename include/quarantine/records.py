"""The quarantine: its records and what became of each, one record whole, and discarding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import nsmallest
from typing import Any

from include.errors import UsageError
from include.ledger import quarantine as ledger_quarantine
from include.ledger.quarantine import Decisions, RecordKey
from include.offsets import Fate, OffsetRange, TopicPartition
from include.quarantine.reading import COORDINATES, begun_again, origin_of, read_file, record_key
from include.quarantine.selection import Selection
from include.times import format_time

_AT_ONCE = 10
"""How many micro-batches' files are queried at once."""

_SHOWN = [*COORDINATES, "kafka_timestamp", "reason", "detail"]


@dataclass(frozen=True)
class Quarantined:
    """A quarantined record that was selected."""

    key: RecordKey
    reason: str
    path: str
    decoder_version: str | None


@begun_again
def select(pipeline: str, selection: Selection) -> list[Quarantined]:
    """Return the records of a selection, whatever became of them.

    Raises UsageError when it names a record that is not in quarantine, or an offset without the id of its topic where
    several incarnations of the topic have a record there.
    """
    selected = [
        Quarantined(record_key(row, file), row["reason"], file.path, origin_of(row, file).decoder_version)
        for file in ledger_quarantine.files(pipeline, selection.range)
        for row in read_file(pipeline, file, [*COORDINATES, "reason"], selection.range)
        if selection.holds(row, origin_of(row, file).topic_id)
    ]
    _check_named(pipeline, selection.range, (each.key.topic_id for each in selected))
    return selected


def _check_named(pipeline: str, wanted: OffsetRange | None, topic_ids: Iterable[str]) -> None:
    """Raise UsageError when a selection names one offset, and not one record is there."""
    if wanted is None:
        return
    found = sorted(set(topic_ids))
    if not found:
        raise _not_there(pipeline, wanted)
    if len(found) > 1:
        raise UsageError(
            f"{wanted.topic_partition} offset {wanted.from_offset} is in quarantine for each of the topic ids "
            f"{', '.join(found)}: the topic was created again",
            remedy="say which one: --topic-id ID, or follow its link on the quarantine's page",
            pipeline=pipeline,
        )


def _not_there(pipeline: str, wanted: OffsetRange) -> UsageError:
    return UsageError(
        f"{wanted.topic_partition} offset {wanted.from_offset} is not in quarantine",
        remedy=f"./tidemark quarantine list {pipeline}",
        pipeline=pipeline,
    )


def records(
    pipeline: str, selection: Selection | None = None, *, state: str | None = None, whole: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield quarantined records of committed micro-batches, oldest batch first, with what became of each.

    Keys: the Kafka coordinates, `kafka_timestamp`, `reason`, `detail`, `topic_id`, `state` (quarantined,
    replayed, discarded), `since`, `by` (null while quarantined), `interval` (that delivers its rows; null
    until it is pinned, or with no rows), `note` (why it was discarded, what a replay last found);
    `whole` adds key, value and headers. Raises AnotherWriter when a file is merged, or written anew, meanwhile.
    """
    wanted = selection or Selection()
    files = ledger_quarantine.files(pipeline, wanted.range)
    decided = ledger_quarantine.decisions(pipeline, None if wanted.offset is None else {wanted.offset})
    columns = [*_SHOWN, *(["key", "value", "headers"] if whole else [])]
    for file in files:
        for row in read_file(pipeline, file, columns, wanted.range):
            key = record_key(row, file)
            if not wanted.holds(row, key.topic_id):
                continue
            became = _became(key, decided)
            if state in (None, became["state"]):
                known = {"kafka_timestamp": _moment(row["kafka_timestamp"]), "topic_id": key.topic_id}
                yield {**row, **known, **became}


@begun_again
def records_within(pipeline: str, within: OffsetRange, most: int) -> list[dict[str, Any]]:
    """Return the first quarantined records of a range with the keys of `records`, in the order of offsets.

    Those of its incarnation of the topic; of every one if the range names none.
    """
    rows = (
        (record_key(row, file), row)
        for file in ledger_quarantine.files(pipeline, within)
        for row in read_file(pipeline, file, _SHOWN, within)
        # A compacted file also holds records of micro-batches that were not asked for.
        if origin_of(row, file).topic_id
    )
    return _with_decisions(pipeline, dict(nsmallest(most, rows, key=lambda each: each[0].offset)))


@dataclass(frozen=True)
class Latest:
    """The latest quarantined records up to a micro-batch."""

    records: list[dict[str, Any]]
    """With the keys of `records`."""
    left_out: int
    """How many more there are in the same micro-batches."""
    following: int | None
    """The micro-batch to go on from; None when there are no more records."""


@begun_again
def latest_records(
    pipeline: str, selection: Selection, *, until: int | None, enough: int, most: int, files: int = 50
) -> Latest:
    """Return the latest quarantined records: of so many micro-batches that there are `enough`, and at most `most`.

    `until`: those of micro-batches up to this one. At most `files` files are read at once.
    """
    batches = ledger_quarantine.latest_batches(pipeline, until, files + 1)
    chosen: dict[RecordKey, dict[str, Any]] = {}
    found = following = 0
    while following < min(len(batches), files) and found < enough:
        begin, following = following, min(following + _AT_ONCE, len(batches), files)
        # A micro-batch of older code may have many files, and then be in two of these groups.
        at_once = sorted(set(batches[begin:following]) - set(batches[:begin]))
        latest, count = _latest_of(pipeline, selection, at_once, most - len(chosen))
        chosen.update(latest)
        found += count
    following_batch = batches[following] if following < len(batches) else None
    return Latest(_with_decisions(pipeline, chosen), found - len(chosen), following_batch)


def _latest_of(
    pipeline: str, selection: Selection, batches: list[int], most: int
) -> tuple[dict[RecordKey, dict[str, Any]], int]:
    """Return the first selected records of some micro-batches, the latest one first, and how many are selected.

    A compacted file holds other micro-batches too; these are read again in their turn.
    """
    count = 0

    def selected() -> Iterator[tuple[int, RecordKey, dict[str, Any]]]:
        nonlocal count
        for file in ledger_quarantine.files(pipeline, batches=batches):
            for row in read_file(pipeline, file, _SHOWN):
                origin = origin_of(row, file)
                if origin.topic_id and selection.holds(row, origin.topic_id):
                    count += 1
                    yield origin.micro_batch, record_key(row, file), row

    latest = nsmallest(most, selected(), key=lambda each: -each[0])
    return {key: row for _, key, row in latest}, count


def _with_decisions(pipeline: str, rows: Mapping[RecordKey, dict[str, Any]]) -> list[dict[str, Any]]:
    decided = ledger_quarantine.decisions(pipeline, {key.offset for key in rows})
    return [
        {
            **row,
            "kafka_timestamp": _moment(row["kafka_timestamp"]),
            "topic_id": key.topic_id,
            **_became(key, decided),
        }
        for key, row in rows.items()
    ]


def _moment(timestamp: datetime | str) -> str:
    """Return a record's timestamp as a text; one that Python cannot hold already is one."""
    return timestamp if isinstance(timestamp, str) else format_time(timestamp)


def _became(key: RecordKey, decided: Decisions) -> dict[str, Any]:
    if (replay := decided.replays.get(key)) is not None:
        has_rows = replay.fate == Fate.ARCHIVED
        return {
            "state": "replayed",
            "since": format_time(replay.replayed_at),
            "by": replay.replayed_by,
            "interval": str(replay.interval) if replay.interval and has_rows else None,
            "note": "" if has_rows else "valid, with nothing to archive",
        }
    if (discard := decided.discards.get(key)) is not None:
        return {
            "state": "discarded",
            "since": format_time(discard.noted_at),
            "by": discard.noted_by,
            "interval": None,
            "note": discard.reason,
        }
    failure = decided.failures.get(key)
    note = f"replayed {format_time(failure.noted_at)}, still {failure.reason}: {failure.detail}" if failure else ""
    return {"state": "quarantined", "since": None, "by": None, "interval": None, "note": note}


@begun_again
def find(pipeline: str, topic_partition: TopicPartition, offset: int, topic_id: str | None = None) -> dict[str, Any]:
    """Return one record whole. Raises UsageError like `select`."""
    wanted = Selection(topic_partition.topic, topic_partition.partition, offset, topic_id=topic_id)
    found = list(records(pipeline, wanted, whole=True))
    _check_named(pipeline, wanted.range, (row["topic_id"] for row in found))
    return found[0]


def pending(chosen: list[Quarantined], decided: Decisions, selection: Selection) -> list[Quarantined]:
    """Return those of the chosen records that a replay has to try: not delivered yet, and not discarded.

    A discarded record is tried only when its offset was named.
    """
    named = selection.offset is not None
    return [each for each in chosen if each.key not in decided.replays and (named or each.key not in decided.discards)]


def initial_counts(chosen: list[Quarantined], decided: Decisions, tried: int = 0) -> dict[str, int]:
    """Return a replay's counts before it tries anything; `selected` omits what was discarded and is not tried."""
    already = sum(each.key in decided.replays for each in chosen)
    return {
        "selected": already + tried,
        "replayed": 0,
        "empty": 0,
        "still_failing": 0,
        "already_replayed": already,
    }


def check_there(pipeline: str, selection: Selection) -> None:
    """Raise UsageError when a selection names one record, and it is not in quarantine or may be several."""
    if selection.range is not None:
        select(pipeline, selection)


def discard(
    pipeline: str,
    selection: Selection,
    *,
    reason: str,
    by: str,
    agreed: Callable[[Sequence[Quarantined]], None] = lambda _: None,
) -> dict[str, int]:
    """Record that records of the quarantine are discarded, and why.

    Their bytes stay, and so does their fate: they count as quarantined. What was replayed or discarded before stays.
    Returns counts; raises UsageError like `select`, and what `agreed` raises when it is given the records.
    """
    with ledger_quarantine.deciding(pipeline) as check:
        decided = ledger_quarantine.decisions(pipeline)
        agreed(chosen := select(pipeline, selection))
        keys = {each.key for each in chosen}
        new = keys - decided.replays.keys() - decided.discards.keys()
        check()
        ledger_quarantine.record_discards(pipeline, new, reason=reason, by=by)
        replayed = len(keys & decided.replays.keys())
        return {
            "selected": len(keys),
            "discarded": len(new),
            "already_discarded": len(keys) - len(new) - replayed,
            "already_replayed": replayed,
        }


def printable(value: bytes | None, limit: int = 4000) -> str:
    """Return bytes as text that is safe on a terminal: what is not printable ASCII or UTF-8 is escaped."""
    if value is None:
        return "(null)"
    text = value[:limit].decode("utf-8", "backslashreplace")
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return safe + (f" … ({len(value)} bytes)" if len(value) > limit else "")
