"""A month of five pipelines in the ledger, written by SQL: 3,600 intervals, 200 topic partitions of one pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import psycopg2
from psycopg2.extensions import cursor as Cursor

HOURS = 30 * 24
PARTITIONS = 200
PER_HOUR = 100
"""Records of a topic partition in an hour."""
BATCHES_PER_HOUR = 12


def fill(database: str, tables: Mapping[str, Sequence[str]], start: datetime, wide: str, *, hours: int = HOURS) -> None:
    """Write registered intervals of each pipeline from `start` on, with their micro-batches and revisions.

    `tables`: the tables of each pipeline. `wide` has `PARTITIONS` topic partitions, the others two.
    """
    with psycopg2.connect(database) as connection, connection.cursor() as cursor:
        # Half a million rows refer to rows that are written beside them.
        cursor.execute("SET LOCAL session_replication_role = replica")
        for number, (pipeline, of_pipeline) in enumerate(tables.items()):
            partitions = PARTITIONS if pipeline == wide else 2
            values = {
                "pipeline": pipeline,
                "tables": sorted(of_pipeline),
                "topic": f"{pipeline}-log",
                "first": 1 + number * HOURS,
                "start": start,
                "partitions": partitions,
                "hours": hours,
                "per_hour": PER_HOUR,
                "batches": 1 if pipeline == wide else BATCHES_PER_HOUR,
                "first_batch": 1 + number * HOURS * BATCHES_PER_HOUR,
            }
            _intervals(cursor, values)
            _stream(cursor, values)
            for table in of_pipeline:
                _table(cursor, {**values, "table": table, "is_archive": table == pipeline})
        cursor.execute(_TOTALS, {"pipelines": list(tables)})
    connection = psycopg2.connect(database)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
    connection.close()


_INTERVALS = """
INSERT INTO declared_tables (pipeline, tables) VALUES (%(pipeline)s, to_jsonb(%(tables)s::text[]));
INSERT INTO table_begins (pipeline, table_name, first_begin)
SELECT %(pipeline)s, name, %(start)s FROM unnest(%(tables)s::text[]) name;
INSERT INTO intervals (id, pipeline, from_time, to_time, pinned_by, state, verdict, adjoins, declared)
SELECT %(first)s + h, %(pipeline)s, %(start)s::timestamptz + h * interval '1 hour',
       %(start)s::timestamptz + (h + 1) * interval '1 hour', 'test@host', 'registered', '{}', h > 0,
       (SELECT id FROM declared_tables WHERE pipeline = %(pipeline)s)
FROM generate_series(0, %(hours)s - 1) h;
INSERT INTO interval_ranges
    (interval_id, topic, topic_partition, topic_id, from_offset, until_offset, archived, empty, quarantined, gaps)
SELECT %(first)s + h, %(topic)s, p, 'topic-id', h * %(per_hour)s, (h + 1) * %(per_hour)s, %(per_hour)s - 3, 1, 1, 1
FROM generate_series(0, %(hours)s - 1) h, generate_series(0, %(partitions)s - 1) p;
INSERT INTO attempts (id, interval_id, started_at, ended_at, run_by, code_version, source, exit_code, verdict)
SELECT %(first)s + h, %(first)s + h, %(start)s::timestamptz + (h + 1) * interval '1 hour',
       %(start)s::timestamptz + (h + 1) * interval '1 hour' + interval '3 minutes', 'airflow scheduled', 'v1', 'kafka',
       0, '{}'
FROM generate_series(0, %(hours)s - 1) h;
INSERT INTO builds (id, attempt_id, interval_id, findings, published_at, matched, pending, late, unexplained, passed,
                    proved, columns, changes)
SELECT %(first)s + h, %(first)s + h, %(first)s + h,
       jsonb_build_object('ranges', (SELECT jsonb_agg(jsonb_build_object(
           'topic', %(topic)s, 'partition', p, 'from_offset', h * %(per_hour)s, 'topic_id', md5(h || '/' || p)))
           FROM generate_series(0, %(partitions)s - 1) p)),
       %(start)s::timestamptz + (h + 1) * interval '1 hour', %(per_hour)s, 0, h %% 5, 0, true, true,
       (SELECT jsonb_object_agg(name, '{"value": "string"}'::jsonb) FROM unnest(%(tables)s::text[]) name),
       jsonb_build_object('kept', '[]'::jsonb, 'drops', '[]'::jsonb, 'points', (SELECT jsonb_agg(jsonb_build_object(
           'table', name, 'partition', 'interval=' || h, 'revision', 'r' || h)) FROM unnest(%(tables)s::text[]) name))
FROM generate_series(0, %(hours)s - 1) h;
INSERT INTO approvals (build_id, interval_id, suite, warnings, approved, decided_by)
SELECT %(first)s + h, %(first)s + h, 'v1', '[]', true, 'test@host' FROM generate_series(0, %(hours)s - 1, 5) h;
"""

_STREAM = """
INSERT INTO micro_batches (id, pipeline, query, query_id, batch_id, token, committed_at, records, rows, seconds,
                           decoder_version)
SELECT %(first_batch)s + b, %(pipeline)s, 'archive', %(pipeline)s, b, 1,
       %(start)s::timestamptz + b * interval '1 hour' / %(batches)s, 100, 100, 1, 'v1'
FROM generate_series(0, %(hours)s * %(batches)s - 1) b;
INSERT INTO micro_batch_ranges
    (micro_batch_id, topic, topic_partition, topic_id, from_offset, until_offset, archived, empty, quarantined, gaps)
SELECT %(first_batch)s + b, %(topic)s, p, 'topic-id', b * %(per_hour)s / %(batches)s,
       (b + 1) * %(per_hour)s / %(batches)s, 5, 1, 1, 1
FROM generate_series(0, %(hours)s * %(batches)s - 1) b, generate_series(0, %(partitions)s - 1) p;
INSERT INTO landing_files (micro_batch_id, fate, path, rows, bytes)
SELECT %(first_batch)s + b, fate, fate || '/' || %(pipeline)s || '/' || b || '.parquet', 90, 9000
FROM generate_series(0, %(hours)s * %(batches)s - 1) b, unnest(ARRAY['archived', 'quarantined']) fate;
INSERT INTO quarantine_counts (pipeline, hour, reason, records, last_batch)
SELECT %(pipeline)s, %(start)s::timestamptz + h * interval '1 hour', reason, 1 + h %% 7,
       %(first_batch)s + (h + 1) * %(batches)s - 1
FROM generate_series(0, %(hours)s - 1) h, unnest(ARRAY['not_json', 'missing_field', 'event_time']) reason;
"""

# Triggers keep these, which this session does without.
_TOTALS = """
DELETE FROM pinned_counts WHERE pipeline = ANY(%(pipelines)s);
INSERT INTO pinned_counts SELECT pipeline, count(*) FROM intervals WHERE pipeline = ANY(%(pipelines)s) GROUP BY 1;
DELETE FROM quarantine_totals WHERE pipeline = ANY(%(pipelines)s);
INSERT INTO quarantine_totals
SELECT pipeline, reason, sum(records) FROM quarantine_counts WHERE pipeline = ANY(%(pipelines)s) GROUP BY 1, 2;
"""

_TABLE = """
INSERT INTO revisions (id, table_name, table_partition, interval_id, attempt_id, build_id, location, rows,
                       content_hash, code_version, state, built_at, registered_at, files)
SELECT 'r' || h, %(table)s,
       to_char((%(start)s::timestamptz + h * interval '1 hour') AT TIME ZONE 'UTC',
               '"date="YYYY-MM-DD"/interval="YYYY-MM-DD"T"HH24'),
       %(first)s + h, %(first)s + h, %(first)s + h, 'file:///nowhere/' || h, 90 + h %% 20, md5(h::text),
       CASE WHEN h < %(hours)s / 2 THEN 'v1' ELSE 'v2' END, 'registered',
       %(start)s::timestamptz + (h + 1) * interval '1 hour',
       %(start)s::timestamptz + (h + 1) * interval '1 hour' + interval '3 minutes',
       '{"part-0.parquet": {"rows": 90, "bytes": 9000, "sha256": "00"}}'
FROM generate_series(0, %(hours)s - 1) h;
INSERT INTO expectation_results (build_id, number, table_name, expectation, column_name, words, success, observed,
                                 value, low, high, unexpected_count, checked)
SELECT %(first)s + h, n + CASE WHEN %(is_archive)s THEN 0 ELSE 100 + abs(hashtext(%(table)s)) %% 100000 * 10 END,
       %(table)s, 'expect_column_values_to_not_be_null', 'column_' || n, 'column_' || n || ' is never null', true,
       '0 %% unexpected', 1, 0.9, 1, 0, 90
FROM generate_series(0, %(hours)s - 1) h, generate_series(0, 7) n;
"""


def _intervals(cursor: Cursor, values: Mapping[str, object]) -> None:
    cursor.execute(_INTERVALS, values)


def _stream(cursor: Cursor, values: Mapping[str, object]) -> None:
    cursor.execute(_STREAM, values)


def _table(cursor: Cursor, values: Mapping[str, object]) -> None:
    cursor.execute(_TABLE, values)


def month_before(moment: datetime) -> datetime:
    """Return where a month of `HOURS` begins that ends at the last full hour."""
    return moment.replace(minute=0, second=0, microsecond=0) - timedelta(hours=HOURS)
