"""From an interval down to a file, a range of offsets and one record, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, islice
from typing import Any

from pyarrow import ArrowInvalid

from include import lake, quarantine
from include.errors import AnotherWriter, FileUnreadable, ValidationFailed
from include.ledger.erasures.coordinates import erased_within
from include.ledger.intervals.attempts import REBUILD
from include.ledger.intervals.states import RevisionState
from include.ledger.lineage import RangeFates
from include.ledger.pages import calendar as calendar_pages
from include.ledger.pages import interval as pages
from include.ledger.pages.interval import AttemptFacts, BatchPart, RevisionFacts
from include.monitor.history.doctor_look import Look
from include.monitor.history.remedies import Advice, run_command
from include.monitor.history.states import MEANINGS, RED, CellState, advice_for, interval_state
from include.offsets import ERASED, OffsetRange, TopicPartition
from include.pipelines.spec import IDENTITY, Pipeline
from include.times import Interval

MOST_ROWS = 20
MOST_QUARANTINED = 100


@dataclass(frozen=True)
class IntervalPage:
    """An interval."""

    pipeline: str
    label: str
    interval: Interval
    state: CellState
    meaning: str
    advice: Advice | None
    """What to do, if the interval needs attention."""
    command: str
    """The command that runs it again."""
    pinned_at: datetime
    pinned_by: str
    repinned: tuple[datetime, ...]
    attempts: tuple[AttemptFacts, ...]
    tables: Mapping[str, tuple[RevisionFacts, ...]]
    ranges: tuple[RangeFates, ...]
    verdict: Mapping[str, Any]
    before: str
    """Label of the pinned interval before it; empty for the first."""
    after: str
    topic_ids: Mapping[str, str]
    doctor: Look = field(default_factory=Look)
    """What the doctor found about it last."""
    has_report: bool = False
    """Whether an attempt's report lies in the lake."""
    is_asked: bool = False
    """Whether a person has still to decide about its latest build."""

    @property
    def missed(self) -> Sequence[Mapping[str, Any]]:
        """The expectations that the last attempt's output did not meet, the gravest first."""
        last = next((each for each in self.attempts if each.run_by != REBUILD), None)
        if not self.is_asked and (last is None or last.exit_code != ValidationFailed.exit_code):
            # The verdict is of an earlier attempt.
            return ()
        return (self.verdict.get("validation") or {}).get("failed") or ()

    @property
    def unknown_fields(self) -> Mapping[str, Any]:
        """Paths that the schema does not name, of a pipeline that keeps them; empty for any other."""
        return self.verdict.get("unknown_fields") or {}


def interval_of(pipeline: Pipeline, label: str) -> Interval | None:
    """Return the interval of the schedule that a label names; None for anything else."""
    return pipeline.schedule.labelled(label)


def read_interval(pipeline: Pipeline, label: str) -> IntervalPage | None:
    """Return the page of a pinned interval; None when none of that label is pinned."""
    named = interval_of(pipeline, label)
    whole = pages.whole_interval(pipeline.name, named.from_time) if named else None
    if whole is None:
        return None
    (known,) = calendar_pages.known_intervals([pipeline.name], whole.interval.from_time, whole.interval.to_time)[:1]
    state = interval_state(known, whole.interval, None)
    tables: dict[str, list[RevisionFacts]] = {table: [] for table in pipeline.tables}
    for each in whole.revisions:
        tables.setdefault(each.table, []).append(each)
    return IntervalPage(
        pipeline.name,
        label,
        whole.interval,
        state,
        MEANINGS[state],
        advice_for(pipeline.name, whole.interval, state, known) if state in RED else None,
        run_command(pipeline.name, whole.interval),
        whole.pinned_at,
        whole.pinned_by,
        whole.repinned,
        whole.attempts,
        {table: tuple(of_table) for table, of_table in tables.items()},
        whole.ranges,
        whole.verdict,
        whole.before.label if whole.before else "",
        whole.after.label if whole.after else "",
        {each.topic: each.topic_id for each in whole.ranges},
        is_asked=known.question is not None,
    )


@dataclass(frozen=True)
class FilePage:
    """A file of a revision."""

    pipeline: str
    label: str
    revision: RevisionFacts
    name: str
    facts: Mapping[str, Any]
    location: str
    is_there: bool
    ranges: tuple[RangeFates, ...]
    """Pinned ranges that its rows may come from, by the bounds noted when it was built."""
    command: str
    """Builds a registered file again; empty for a file of another revision, which nothing builds again."""


def read_file(page: IntervalPage, table: str, partition: str, revision: str, name: str) -> FilePage | None:
    """Return the page of a file; None when the interval has no such file."""
    for each in page.tables.get(table, ()):
        if (each.partition, each.revision) == (partition, revision) and name in each.files:
            facts, location = each.files[name], f"{each.location}/{name}"
            ranges = tuple(fates for fates in page.ranges if _may_hold(facts, fates))
            is_there = lake.exists(location)
            command = page.command if each.state == RevisionState.REGISTERED else ""
            return FilePage(page.pipeline, page.label, each, name, facts, location, is_there, ranges, command)
    return None


def _may_hold(facts: Mapping[str, Any], fates: RangeFates) -> bool:
    """Return whether a file with these noted bounds may hold a row of the range; a view's rows come from all."""
    topics, partitions, offsets = (facts.get(name) for name in IDENTITY[:3])
    return (
        (not topics or topics[0] <= fates.topic <= topics[1])
        and (not partitions or partitions[0] <= fates.partition <= partitions[1])
        and (not offsets or (offsets[0] < fates.until_offset and offsets[1] >= fates.from_offset))
        and fates.from_offset < fates.until_offset
    )


@dataclass(frozen=True)
class RangePage:
    """A pinned range."""

    pipeline: str
    label: str
    range: RangeFates
    batches: tuple[BatchPart, ...]
    batches_left_out: bool
    quarantined: tuple[Mapping[str, Any], ...]
    """Its first records in quarantine."""
    unreadable: str
    """Why none are listed: a file of the quarantine cannot be read; the counts are the ledger's."""


def read_range(page: IntervalPage, topic_partition: TopicPartition) -> RangePage | None:
    """Return the page of a pinned range; None when the interval has no range of that topic partition."""
    fates = _range(page, topic_partition)
    if fates is None:
        return None
    within = OffsetRange(topic_partition, fates.from_offset, fates.until_offset, fates.topic_id)
    batches = pages.batches_of(page.pipeline, within)
    records, unreadable = _quarantined(page.pipeline, within, MOST_QUARANTINED)
    shown, left_out = tuple(batches[: pages.MOST_BATCHES]), len(batches) > pages.MOST_BATCHES
    return RangePage(page.pipeline, page.label, fates, shown, left_out, records, unreadable)


def _quarantined(pipeline: str, within: OffsetRange, most: int) -> tuple[tuple[Mapping[str, Any], ...], str]:
    """Return the first quarantined records of a range; none, and why, when a file of them cannot be read."""
    try:
        return tuple(quarantine.records_within(pipeline, within, most)), ""
    except (AnotherWriter, FileUnreadable) as error:
        return (), str(error)


def _range(page: IntervalPage, topic_partition: TopicPartition) -> RangeFates | None:
    wanted = (topic_partition.topic, topic_partition.partition)
    return next((each for each in page.ranges if (each.topic, each.partition) == wanted), None)


@dataclass(frozen=True)
class RecordPage:
    """A record."""

    pipeline: str
    label: str
    range: RangeFates
    offset: int
    fate: str
    """archived, empty, quarantined, erased or gap; a phrase where the ledger counts fates without naming offsets."""
    words: str
    batch: BatchPart | None
    """The micro-batch that committed it."""
    table: str
    rows: tuple[Mapping[str, Any], ...]
    """Its first rows in the registered archive table."""
    file: str
    """Where they lie."""
    quarantined: Mapping[str, Any] | None
    """What became of it in quarantine."""
    unreadable: str
    """Why it is not known whether it is there: a file of the quarantine cannot be read."""


def read_record(
    pipeline: Pipeline, page: IntervalPage, topic_partition: TopicPartition, offset: int
) -> RecordPage | None:
    """Return the page of a record; None when its offset does not lie in the interval."""
    fates = _range(page, topic_partition)
    if fates is None or not fates.from_offset <= offset < fates.until_offset:
        return None
    within = OffsetRange(topic_partition, offset, offset + 1, fates.topic_id)
    batch = next(iter(pages.batches_of(page.pipeline, within)), None)
    records, unreadable = _quarantined(page.pipeline, within, 1)
    kept = next(iter(records), None)
    is_erased = bool(erased_within(page.pipeline, [within]))
    # Registered files hold an erased record's rows until their interval is built again.
    file, rows = ("", ()) if kept or is_erased else _rows(page.tables.get(pipeline.table, ()), within)
    if is_erased:
        fate, words = ERASED, "what was kept of it was erased; Kafka may still have it"
    elif kept is not None:
        fate, words = "quarantined", "it is kept whole in quarantine"
    elif rows:
        fate, words = "archived", "it has rows in the registered archive table"
    else:
        fate, words = _fate(batch, may_be_quarantined=bool(unreadable))
    at = (page.pipeline, page.label, fates, offset)
    return RecordPage(*at, fate, words, batch, pipeline.table, rows, file, kept, unreadable)


def _fate(batch: BatchPart | None, *, may_be_quarantined: bool) -> tuple[str, str]:
    """Return the fate of a record that no file that can be read has, and how it is known."""
    if batch is None:
        return "unknown", "no micro-batch of the archive has committed it: the stream is behind, or it was lost"
    names = ("archived", "empty", "gaps", *(("quarantined",) if may_be_quarantined else ()))
    possible = [name for name in names if getattr(batch, name)]
    if len(possible) == 1:
        return possible[0].removesuffix("s"), "every other record of its micro-batch in this range has this fate, too"
    words = "its micro-batch has several fates, and none of the files that can be read here holds a row of it"
    return " or ".join(possible).replace("gaps", "gap") or "unknown", words


def _rows(revisions: Sequence[RevisionFacts], within: OffsetRange) -> tuple[str, tuple[Mapping[str, Any], ...]]:
    """Return the first rows of a record in the registered Parquet files, and the file."""
    offset = within.from_offset
    for revision in revisions:
        for name, facts in revision.files.items() if revision.state == RevisionState.REGISTERED else ():
            low, high = facts.get(IDENTITY[2]) or (0, -1)
            if not (low <= offset <= high) or not name.endswith(".parquet"):
                continue
            try:
                with lake.open_parquet(f"{revision.location}/{name}", page_by_page=True) as opened:
                    found = lake.rows_within(opened, opened.schema_arrow.names, lake.bounds_of(within))
                    rows = tuple(islice(chain.from_iterable(map(lake.python_rows, found)), MOST_ROWS))
            except (OSError, ArrowInvalid):
                continue
            if rows:
                return f"{revision.location}/{name}", rows
    return "", ()
