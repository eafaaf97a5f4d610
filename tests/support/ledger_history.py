"""Hours of one pipeline in the ledger, written by SQL: each micro-batch has one offset of two topic partitions."""

from __future__ import annotations

from datetime import UTC, datetime

import psycopg2

PIPELINE, TOPIC, TOPIC_ID = "auction_bids", "auction-bids", "id"
VIEW = "pair_hours"
VIEW_TABLE = f"{PIPELINE}_{VIEW}"
START = datetime(2026, 1, 1, tzinfo=UTC)
BATCHES = 20
"""Micro-batches of each query in an hour, and offsets of a topic partition."""

_TABLES = (
    "intervals, micro_batches, positions, topics, generations, writers, flag_runs, limits_versions, erasures, "
    "erased_records, outages, quarantine_notes"
)

_FILL = f"""
TRUNCATE {_TABLES} RESTART IDENTITY CASCADE;
INSERT INTO topics (pipeline, topic, topic_id, topic_partitions) VALUES ('{PIPELINE}', '{TOPIC}', '{TOPIC_ID}', 2);
INSERT INTO intervals (id, pipeline, from_time, to_time, pinned_by, state, verdict)
SELECT 1 + h, '{PIPELINE}', %(start)s::timestamptz + h * interval '1 hour',
    %(start)s::timestamptz + (h + 1) * interval '1 hour', 'test',
    CASE h WHEN %(failed)s THEN 'failed' ELSE 'registered' END, '{{}}'
FROM generate_series(0, %(hours)s - 1) h;
INSERT INTO interval_ranges
    (interval_id, topic, topic_partition, topic_id, from_offset, until_offset, archived, empty, quarantined, gaps)
SELECT 1 + h, '{TOPIC}', p, '{TOPIC_ID}', h * {BATCHES}, (h + 1) * {BATCHES}, {BATCHES}, 0, 0, 0
FROM generate_series(0, %(hours)s - 1) h, generate_series(0, 1) p;
INSERT INTO attempts (id, interval_id, started_at, ended_at, run_by, code_version, source, exit_code, verdict)
SELECT 1 + h, 1 + h, now(), now(), 'test', '1', 'kafka', 0, '{{}}' FROM generate_series(0, %(hours)s - 1) h;
INSERT INTO builds (id, attempt_id, interval_id, findings, published_at, passed)
SELECT 1 + h, 1 + h, 1 + h, '{{}}', now(), true FROM generate_series(0, %(hours)s - 1) h;
INSERT INTO revisions (id, table_name, table_partition, interval_id, attempt_id, build_id, location, rows, content_hash,
    code_version, state, built_at, registered_at, files)
SELECT 'r-' || h, t, 'interval=' || h, 1 + h, 1 + h, 1 + h, t || '/interval=' || h || '/r-' || h, 1, 'h', '1',
    'registered', now(), now(), '{{"part-0.parquet": {{"rows": 1}}}}'
FROM generate_series(0, %(hours)s - 1) h, unnest(ARRAY['{PIPELINE}', '{VIEW_TABLE}']) t
WHERE h <> coalesce(%(failed)s, -1);
INSERT INTO micro_batches (id, pipeline, query, query_id, batch_id, token, records, rows, seconds)
SELECT 1 + b * 2 + q, '{PIPELINE}', (ARRAY['archive', '{VIEW}'])[1 + q], 'query-' || q, b, 1, 2, 2, 0.1
FROM generate_series(0, %(hours)s * {BATCHES} - 1) b, generate_series(0, 1) q;
INSERT INTO micro_batch_ranges (micro_batch_id, topic, topic_partition, topic_id, from_offset, until_offset,
    archived, empty, quarantined, gaps)
SELECT 1 + b * 2 + q, '{TOPIC}', p, '{TOPIC_ID}', b, b + 1, 1, 0, 0, 0
FROM generate_series(0, %(hours)s * {BATCHES} - 1) b, generate_series(0, 1) q, generate_series(0, 1) p;
INSERT INTO landing_files (micro_batch_id, fate, path, rows, bytes)
SELECT 1 + b * 2, 'archived', 'landing/' || b || '.parquet', 2, 100
FROM generate_series(0, %(hours)s * {BATCHES} - 1) b;
INSERT INTO positions (pipeline, query, topic, topic_partition, next_offset, micro_batch_id)
SELECT b.pipeline, b.query, r.topic, r.topic_partition, max(r.until_offset), max(b.id)
FROM micro_batches b JOIN micro_batch_ranges r ON r.micro_batch_id = b.id GROUP BY 1, 2, 3, 4;
INSERT INTO limits_versions (id, pipeline, learned_from, limits)
SELECT 1 + h, '{PIPELINE}', '[]', '[["burst", "a", ""]]' FROM generate_series(0, %(hours)s - 1) h;
INSERT INTO flag_runs (id, pipeline, limits_version, token, rules_version)
SELECT 1 + h, '{PIPELINE}', 1 + h, 1, '1' FROM generate_series(0, %(hours)s - 1) h;
INSERT INTO flag_run_starts (flag_run_id, topic_id, topic_partition, from_offset)
SELECT 1 + h, '{TOPIC_ID}', p, h * {BATCHES} FROM generate_series(0, %(hours)s - 1) h, generate_series(0, 1) p;
"""


def fill(database: str, hours: int, *, failed: int | None = None) -> None:
    """Write so many hours, all registered but the failed one, whose number is given."""
    with psycopg2.connect(database) as connection, connection.cursor() as cursor:
        # PostgreSQL reads a table of a few pages whole, even with an index: a missing index must show before it hurts.
        cursor.execute("ALTER DATABASE ledger SET enable_seqscan = off")
        cursor.execute(_FILL, {"start": START, "hours": hours, "failed": failed})
        for table in ("intervals", "attempts", "builds", "micro_batches", "limits_versions", "flag_runs"):
            cursor.execute(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), (SELECT max(id) FROM {table}))")


def change(database: str, statement: str) -> None:
    """Execute a statement, on a connection that does not outlast it."""
    with psycopg2.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
