"""Compares the outages that the stream noted with those that an interval's rows give, row by row.

    the row finds a thing down, or up again, and that was noted      matched
    it was not noted                                                 unexplained
    it was noted, but the row does not give it                       unexplained
    either, of a thing that other code decodes otherwise             code

What was down when the interval began is taken from the ledger. A thing whose rows lie in several topic partitions has
no order; it is left out, and so are rows in which the stream did not look for outages, because the report was declared
later, or looked for other ones, by another key or another column `up`. So is a thing whose outage an erasure deleted:
rows of others may still give it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from include.ledger import listings
from include.ledger.archive.decoders import decoded_otherwise
from include.ledger.erasures.coordinates import erased_within
from include.ledger.streams import outages
from include.ledger.streams.outages import Outage, Place, Watched
from include.offsets import Coordinates, OffsetRange, TopicPartition
from include.pipelines.spec import Listing, Pipeline
from include.reconciliation import Difference, DifferenceClass, Reconciliation
from include.versions import decoder_version
from spark_jobs.archive.files import within
from spark_jobs.reconciliation.interval_run import IntervalRun

_PLACE = ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_element")

Change = tuple[str, Place, bool]
"""The key of a thing, the row that changes its state, and whether it is up from there on."""


def reconcile_outages(run: IntervalRun, report: Listing, rows: DataFrame) -> Reconciliation:
    """Compare what the stream noted of a report's outages with what an interval's archive rows give."""
    pipeline, pinned = run.pipeline.name, run.pinned
    same_watch = report.watched_as(run.pipeline.archive.formerly)
    watched = outages.watched_in(pipeline, report.title, same_watch, pinned.ranges)
    if not watched.ranges:
        return Reconciliation()
    noted = _noted(run.pipeline, report, watched)
    changes_noted = {change for each in noted for change in _changes_in(each, watched.ranges, pinned.topic_ids)}
    # The first range of a topic partition comes last, and stays.
    begins = {r.topic_partition: r.from_offset for r in sorted(watched.ranges, reverse=True)}
    lasting = {each.key for each in noted if _lasts(each, watched.first_batch, begins, pinned.topic_ids)}
    # A thing that moved between topic partitions has no order either.
    left_out = {each.key for each in noted if each.ended and each.ended.partition != each.began.partition}
    # The rows no longer show what an erased record found.
    erased = set(erased_within(pipeline, pinned.ranges))
    left_out |= {each.key for each in noted if _records(each, pinned.topic_ids) & erased}
    given: set[Change] = set()
    for key, place, is_up, is_first in _states(report, rows.where(within(watched.ranges))):
        if place is None:
            left_out.add(key)
        elif not is_first or is_up == (key in lasting):
            given.add((key, place, is_up))
    otherwise = decoded_otherwise(pipeline, pinned.ranges, decoder_version(pipeline))
    left_out |= outages.deleted_of(pipeline, report.title, {key for key, *_ in given ^ changes_noted}, watched)
    different = sorted(change for change in given ^ changes_noted if change[0] not in left_out)
    # A row that other code decodes differently also decides about the states after it.
    changed = {key for key, place, _ in different if _lies_in(place, otherwise)}
    differences = [_difference(report, change, given, changed) for change in different]
    return Reconciliation.of([], {"matched": len(given & changes_noted)}) + Reconciliation.of(differences)


def _noted(pipeline: Pipeline, report: Listing, watched: Watched) -> list[Outage]:
    """Return what the stream noted, by the names that the key's columns have now."""
    former = pipeline.archive.former_in(report.key)
    noted = outages.outages_within(pipeline.name, report.title, watched)
    return [replace(each, key=listings.present_key(each.key, former)) for each in noted]


def _lasts(
    outage: Outage, first_batch: int, begins: Mapping[TopicPartition, int], topic_ids: Mapping[str, str]
) -> bool:
    """Return whether a thing was down before the first offset that is compared of its topic partition, in `begins`.

    What began in an incarnation of the topic that was closed since may have ended in the present one.
    """

    def is_before(place: Place, topic_id: str | None) -> bool | None:
        """Return whether a place lies before that offset; None where nothing of its incarnation is compared."""
        begin = begins.get(TopicPartition(place.topic, place.partition))
        return None if begin is None or topic_ids.get(place.topic) != topic_id else place.offset < begin

    if outage.ended and is_before(outage.ended, outage.ended_topic_id):
        return False
    began = is_before(outage.began, outage.began_topic_id)
    return outage.micro_batch < first_batch if began is None else began


def _states(report: Listing, rows: DataFrame) -> Iterator[tuple[str, Place | None, bool, bool]]:
    """Yield key, place, whether it is up, and whether it is the first, of rows in the order of the log.

    For each thing these are its first row, and the rows whose state differs from the one before. A thing in several
    topic partitions has no place.
    """
    thing = Window.partitionBy(*report.key)
    before = F.lag(report.up).over(thing.orderBy(*_PLACE))
    log = F.struct("kafka_topic", "kafka_partition")
    states = (
        rows.where(F.col(report.up).isNotNull())
        .select(*dict.fromkeys([*report.key, *_PLACE, report.up]), before.alias("before"))
        .withColumn("is_alone", F.min(log).over(thing) == F.max(log).over(thing))
    )
    changed = states.where(F.col("before").isNull() | (F.col("before") != F.col(report.up)))
    for row in changed.toLocalIterator():
        key = listings.key_of(row.asDict(), report.key)
        place = Place(*(row[name] for name in _PLACE)) if row["is_alone"] else None
        yield key, place, row[report.up], row["before"] is None


def _changes_in(outage: Outage, ranges: Iterable[OffsetRange], topic_ids: Mapping[str, str]) -> Iterator[Change]:
    """Yield the changes of an outage that lie in the ranges."""
    ends = [(outage.began, outage.began_topic_id, False), (outage.ended, outage.ended_topic_id, True)]
    for place, topic_id, is_up in ends:
        if place is not None and topic_ids.get(place.topic) == topic_id and _lies_in(place, ranges):
            yield outage.key, place, is_up


def _records(outage: Outage, topic_ids: Mapping[str, str]) -> set[Coordinates]:
    """Return the records that began and ended an outage, in these incarnations of the topics."""
    places = (outage.began, outage.began_topic_id), (outage.ended, outage.ended_topic_id)
    return {
        (place.topic, place.partition, place.offset)
        for place, topic_id in places
        if place is not None and topic_ids.get(place.topic) == topic_id
    }


def _lies_in(place: Place, ranges: Iterable[OffsetRange]) -> bool:
    return any(r.holds(TopicPartition(place.topic, place.partition), place.offset) for r in ranges)


def _difference(report: Listing, change: Change, given: Collection[Change], changed: Collection[str]) -> Difference:
    key, place, is_up = change
    state = "up again" if is_up else "down"
    text = (
        f"the row finds {key} {state}, which the stream did not note"
        if change in given
        else f"the stream noted that {key} is {state}, which the row does not give"
    )
    cls = DifferenceClass.CODE if key in changed else DifferenceClass.UNEXPLAINED
    return Difference(cls, f"outages of {report.title}", str(place), text)
