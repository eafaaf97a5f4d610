"""A scrape comes every few seconds: the rows that it reads of the ledger do not grow with what lies behind them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg2
import pytest

from include.monitor.streams.metrics import Scrape, read
from include.pipelines import load_pipeline
from tests.conftest import Home
from tests.support import ledger_month
from tests.support.ledger_reads import rows_read

pytestmark = pytest.mark.services

PIPELINE = load_pipeline("isp_hits")
SHORT, LONG, YEAR = 40, 400, 365 * 24
"""Hours; each has an interval, twelve micro-batches, and quarantined records of three reasons."""
TABLES = "intervals, micro_batches, quarantine_counts, positions, topics, generations, writers, table_begins"


def clear(database: str) -> None:
    with psycopg2.connect(database) as connection, connection.cursor() as cursor:
        # PostgreSQL reads a table of a few pages whole, even with an index: a missing index must show before it hurts.
        cursor.execute("ALTER DATABASE ledger SET enable_seqscan = off")
        cursor.execute(f"TRUNCATE {TABLES}, declared_tables CASCADE")


def scraped(database: str, hours: int) -> tuple[Scrape, dict[str, int]]:
    """A scrape after so many hours of history, which end now, and the rows that it read of each table."""
    clear(database)
    start = datetime.now(UTC) - timedelta(hours=hours)
    ledger_month.fill(database, {PIPELINE.name: [PIPELINE.name]}, start, "", hours=hours)
    found: list[Scrape] = []

    def work() -> None:
        found.append(read([PIPELINE]))

    # Some counts of a backend that has just ended were seen missing: the most of three are taken.
    rows = max((rows_read(database, work) for _ in range(3)), key=lambda each: sum(each.values()))
    return found[0], rows


@pytest.mark.parametrize("long", [LONG, pytest.param(YEAR, marks=pytest.mark.slow)])
def test_scrape_reads_no_more_rows_of_the_ledger_when_history_has_grown(postgres: Home, long: int) -> None:
    (_, few), (scrape, many) = (scraped(postgres.database, hours) for hours in (SHORT, long))
    print(few, many)
    assert sum(few.values()) > 0
    assert sum(many.values()) <= 1.2 * sum(few.values()), f"{few} have become {many}"
    # What it tells is of all hours.
    (observed,) = scrape.pipelines
    assert [(each.state, each.count) for each in scrape.intervals] == [("registered", long)]
    assert scrape.intervals[0].last_end == observed.complete.complete_until
    assert sum(each.records for each in observed.reasons) == 3 * sum(1 + hour % 7 for hour in range(long))
    # The first of the last hour's twelve micro-batches was an hour ago when the ledger was filled.
    assert observed.state.records == 1100
