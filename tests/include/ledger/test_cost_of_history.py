"""What erasures, served views and flags ask of the ledger does not grow with what lies behind them: rows it read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial

import psycopg2
import pytest

from include.erasure.keys import Keys
from include.ledger import inventory
from include.ledger.archive import committed
from include.ledger.completeness.served import served_state
from include.ledger.database import engine
from include.ledger.erasures import intent, unfinished
from include.ledger.erasures.intent import Found, Request
from include.ledger.intervals.states import RevisionState
from include.ledger.quarantine import RecordKey
from include.ledger.streams import flags, writers
from include.offsets import OffsetRange, TopicPartition
from tests.conftest import Home
from tests.support import ledger_history
from tests.support.ledger_history import BATCHES, PIPELINE, TOPIC, TOPIC_ID, VIEW, VIEW_TABLE
from tests.support.ledger_reads import rows_read, statements_of

pytestmark = pytest.mark.services

SHORT, LONG = 10, 100
"""Hours: 200 and 2,000 micro-batches of each query."""


@pytest.fixture
def database(postgres: Home) -> Iterator[str]:
    yield postgres.database
    engine().dispose()


def assert_no_more(rows: dict[str, int], *, than: dict[str, int]) -> None:
    """After ten times as much history, of which there are hundreds of rows; small tables' plans may differ by some."""
    assert sum(rows.values()) > 0
    assert sum(rows.values()) <= 1.5 * sum(than.values()) + 40, f"{than} has become {rows}"


def of_tables(found: dict[str, int], *tables: str) -> dict[str, int]:
    return {table: found.get(table, 0) for table in tables}


@pytest.mark.parametrize("many", [1, 60])
def test_erasure_reads_no_more_ranges_when_2000_micro_batches_are_committed(database: str, many: int) -> None:
    """Half of its records have rows in landing, the others in revisions only; older landing files were removed."""
    found = {}
    for hours in (SHORT, LONG):
        ledger_history.fill(database, hours)
        first = hours * BATCHES // 2
        ledger_history.change(database, f"UPDATE landing_files SET removed_at = now() WHERE id <= {first}")
        offsets = range(first, first + many)
        landed, registered = ({RecordKey(TOPIC, TOPIC_ID, partition, each) for each in offsets} for partition in (0, 1))
        lease = writers.acquire(PIPELINE)

        def erase(lease: writers.Lease, found: Found, offsets: Sequence[int]) -> None:
            request = Request(PIPELINE, ["bidder"], "asked", "me@here", "00" * 16, [], False)
            erasure = intent.begin(lease, request, found, Keys(["Bert"]))
            begun = unfinished.unfinished(PIPELINE)
            assert begun is not None
            assert begun.intervals == tuple(sorted({1 + each // BATCHES for each in offsets}))
            assert set(unfinished.files_to_look_at(begun)) == {f"landing/{each}.parquet" for each in offsets}
            assert unfinished.twins_of(erasure) == {}

        counted = rows_read(database, partial(erase, lease, Found(landed, registered, set(), many), offsets))
        found[hours] = of_tables(counted, "micro_batch_ranges", "micro_batches", "interval_ranges", "landing_files")
        own = [(1 + 2 * each, partition, 1) for each in offsets for partition in (0, 1)]
        assert erased_in(database, "micro_batch_ranges", "micro_batch_id") == own
        assert sum(row[2] for row in erased_in(database, "interval_ranges", "interval_id")) == 2 * many
    assert_no_more(found[LONG], than=found[SHORT])


def erased_in(database: str, table: str, key: str) -> list[tuple[int, ...]]:
    with psycopg2.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {key}, topic_partition, erased FROM {table} WHERE erased > 0 ORDER BY 1, 2")
        return cursor.fetchall()


_OF_OTHERS = f"""
UPDATE builds SET findings = jsonb_build_object(
    'differences', jsonb_build_array(jsonb_build_object('where', '{{"bidder": "Anna ' || id || '"}}')));
UPDATE attempts SET verdict = (SELECT findings FROM builds WHERE attempt_id = attempts.id);
UPDATE intervals SET verdict = (SELECT verdict FROM attempts WHERE interval_id = intervals.id);
INSERT INTO expectation_results
    (build_id, number, table_name, expectation, column_name, words, success, observed, unexpected_count)
SELECT id, 0, '{PIPELINE}', 'distinct', 'bidder', 'is one of "these"', true, '["Anna"]', 0 FROM builds;
INSERT INTO listed_rows (interval_id, build_id, report, key, "row")
SELECT id, 0, 'Bidders', '{{"bidder": "Anna ' || id || '"}}', '{{"said": "\\"no\\""}}' FROM intervals;
INSERT INTO outages (pipeline, report, key, micro_batch, topic, topic_id, topic_partition, record_offset, element,
    began_at, "row")
SELECT '{PIPELINE}', 'Bidders', '{{"bidder": "Anna ' || id || '"}}', 1, '{TOPIC}', '{TOPIC_ID}', 0, id, 0, now(), '{{}}'
FROM intervals;
INSERT INTO quarantine_notes
    (pipeline, topic, topic_id, topic_partition, record_offset, kind, noted_by, decoder_version, reason,
    detail)
SELECT '{PIPELINE}', '{TOPIC}', '{TOPIC_ID}', 0, id, 'failed', 'me@here', '1', 'r', '"bidder": "Anna"' FROM intervals;
"""


class Counting(Keys):
    """Keys that count the texts that they look through."""

    looked_at = 0

    def named_in(self, value: str) -> bool:
        self.looked_at += 1
        return super().named_in(value)


def test_beginning_of_an_erasure_loads_what_may_name_the_key_only_when_much_names_others(database: str) -> None:
    ledger_history.fill(database, LONG)
    ledger_history.change(database, _OF_OTHERS)
    ledger_history.change(database, "UPDATE builds SET findings = replace(findings::text, 'Anna 7', 'Bert')::jsonb")
    ledger_history.change(database, "UPDATE expectation_results SET observed = '[\"Bert\"]' WHERE build_id IN (7, 8)")
    ledger_history.change(database, "UPDATE builds SET published_at = NULL WHERE id = 8")
    lease = writers.acquire(PIPELINE)
    keys = Counting(["Bert"])
    request = Request(PIPELINE, ["bidder"], "asked", "me@here", "00" * 16, [], False)
    intent.begin(lease, request, Found(set(), set(), set(), 0), keys)
    begun = unfinished.unfinished(PIPELINE)
    assert begun is not None
    # Anna 7 alone, for 70 to 79 are longer words, and two results of expectations.
    assert (begun.counts["ledger_entries"], begun.counts["expectations"]) == (1 + 2, 1)
    assert keys.looked_at < 100, "hundreds of texts name others"


@pytest.mark.parametrize("partitions", ["of all", "of one"])
def test_publication_reads_no_more_batches_when_an_interval_was_given_up_long_ago(
    database: str, partitions: str
) -> None:
    found, since = {}, {}
    for behind in (5, 50):
        failed = LONG - behind
        ledger_history.fill(database, LONG, failed=failed)
        if partitions == "of one":
            # Nothing has come in the other one since.
            where = f"topic_partition = 1 AND until_offset > {failed * BATCHES}"
            ledger_history.change(database, f"DELETE FROM micro_batch_ranges WHERE {where}")
        counted = rows_read(database, lambda: since.update(state=served_state(PIPELINE, VIEW, VIEW_TABLE)))
        assert since["state"].unsettled == failed * BATCHES
        found[behind] = of_tables(counted, "micro_batch_ranges", "micro_batches")
    assert_no_more(found[50], than=found[5])


_OF_ANOTHER = f"""
INSERT INTO topics (pipeline, topic, topic_id, topic_partitions) VALUES ('another', '{TOPIC}', '{TOPIC_ID}', 2);
INSERT INTO micro_batches (id, pipeline, query, query_id, batch_id, token, records, rows, seconds)
SELECT id + 1000000, 'another', query, 'of another', batch_id, token, records, rows, seconds
FROM micro_batches WHERE query = 'archive' AND batch_id >= {{first}};
INSERT INTO micro_batch_ranges (micro_batch_id, topic, topic_partition, topic_id, from_offset, until_offset,
    archived, empty, quarantined, gaps)
SELECT r.micro_batch_id + 1000000, r.topic, r.topic_partition, r.topic_id, r.from_offset, r.until_offset, 1, 0, 0, 0
FROM micro_batch_ranges r JOIN micro_batches b ON b.id = r.micro_batch_id + 1000000;
INSERT INTO positions (pipeline, query, topic, topic_partition, next_offset, micro_batch_id)
SELECT 'another', query, topic, topic_partition, next_offset, micro_batch_id + 1000000 FROM positions
WHERE query = 'archive';
"""


def test_beginning_of_an_archive_is_found_as_soon_when_another_pipeline_read_the_topic_for_long_before(
    database: str,
) -> None:
    found = {}
    for hours in (SHORT, LONG):
        ledger_history.fill(database, hours)
        first = (hours - SHORT // 2) * BATCHES
        ledger_history.change(database, _OF_ANOTHER.format(first=first))

        def look(first: int = first) -> None:
            begins = committed.first_committed_offsets("another")
            assert begins == {TopicPartition(TOPIC, 0): first, TopicPartition(TOPIC, 1): first}

        found[hours] = of_tables(rows_read(database, look), "micro_batch_ranges", "micro_batches")
    assert_no_more(found[LONG], than=found[SHORT])


def test_run_of_flags_reads_no_more_runs_when_2000_began_before(database: str) -> None:
    found = {}
    for hours in (SHORT, LONG):
        ledger_history.fill(database, hours)
        first = (hours - 1) * BATCHES
        pinned = [OffsetRange(TopicPartition(TOPIC, p), first + 5, first + BATCHES, TOPIC_ID) for p in (0, 1)]

        def look(pinned: list[OffsetRange] = pinned, hours: int = hours) -> None:
            assert [each.version for each in flags.in_force(PIPELINE, pinned)] == [hours, hours]

        found[hours] = rows_read(database, look)
    assert_no_more(found[LONG], than=found[SHORT])


def test_limits_are_not_read_when_erased_rules_are_asked_for(database: str) -> None:
    ledger_history.fill(database, SHORT)
    ledger_history.change(database, """UPDATE limits_versions SET erased_rules = '["burst"]' WHERE id = 3""")
    with statements_of(engine()) as sent:
        assert flags.erased_rules(PIPELINE) == {3: ["burst"]}
        assert flags.erased_rules("another") == {}
    assert [each for each in sent if re.search(r"\b(limits|learned_from)\b", each)] == []


def test_look_for_the_states_of_a_part_of_a_table_reads_no_others_when_100_hours_are_registered(database: str) -> None:
    found = {}
    for hours in (SHORT, LONG):
        ledger_history.fill(database, hours)
        part = [f"{VIEW_TABLE}/interval={each}/r-{each}" for each in range(hours - 3, hours)]

        def look(part: list[str] = part) -> None:
            unknown = f"{part[0]}-unknown"
            assert inventory.states_at(VIEW_TABLE, [*part, unknown]) == dict.fromkeys(part, RevisionState.REGISTERED)

        found[hours] = of_tables(rows_read(database, look), "revisions")
    assert_no_more(found[LONG], than=found[SHORT])


def test_look_for_new_limits_reads_the_last_revisions_only_when_1000_are_registered(database: str) -> None:
    found = {}
    over = timedelta(hours=3)
    for hours in (SHORT, LONG):
        ledger_history.fill(database, hours)
        wanted = [(VIEW_TABLE, f"interval={each}", f"r-{each}") for each in range(hours - 3, hours)]

        def look(wanted: list[tuple[str, str, str]] = wanted) -> None:
            assert sorted(flags.registered_keys(PIPELINE, [VIEW_TABLE], over)) == sorted(wanted)

        with statements_of(engine()) as sent:
            found[hours] = rows_read(database, look)
        assert [each for each in sent if re.search(r"\bfiles\b", each)] == []
        rows = flags.registered_within(PIPELINE, [VIEW_TABLE], over)
        assert [(each.table, each.partition, each.revision) for each in rows] == sorted(wanted)
        assert {tuple(each.files) for each in rows} == {("part-0.parquet",)}
    assert_no_more(found[LONG], than=found[SHORT])
