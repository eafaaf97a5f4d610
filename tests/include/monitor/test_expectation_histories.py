"""The expectations of a table over intervals that have bounds of their own."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from include.ledger.pages.trend import ExpectationFacts, IntervalFacts
from include.monitor.history.expectations import expectation_histories

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
HOURS = 100
BUILDS = [
    IntervalFacts(n, BEGIN + timedelta(hours=n), BEGIN + timedelta(hours=n + 1), "registered", n, 0, 0, 0, None)
    for n in range(HOURS)
]
BETWEEN, LATEST = "expect_table_row_count_to_be_between", "expect_column_max_to_be_between"


def facts(
    build: int, kind: str, column: str, words: str, low: float | None = None, high: float | None = None
) -> ExpectationFacts:
    return ExpectationFacts(build, kind, column, words, build != 7, str(build), float(build), low, high, 0, None)


def test_expectation_has_one_history_when_every_interval_has_bounds_of_its_own() -> None:
    observed = [
        *(
            facts(n, BETWEEN, "", f"the table has {n} to {2 * n} rows, as the {n} before", n, 2 * n)
            for n in range(HOURS)
        ),
        *(
            facts(n, LATEST, "event_time", f"the newest row is of {BUILDS[n].from_time:%Y-%m-%d %H:%M:%S} UTC or later")
            for n in range(HOURS)
        ),
    ]
    histories = expectation_histories(observed, BUILDS, ())
    assert [(each.judged, each.met, each.pass_rate) for each in histories] == [(HOURS, HOURS - 1, "99.0 %")] * 2
    assert histories[0].words == "the table has 99 to 198 rows, as the 99 before"
    assert [(trend.low[3:5], trend.high[3:5], trend.bounds) for trend in [histories[0].trend]] == [((3, 4), (6, 8), ())]


def test_bound_is_a_line_when_every_interval_has_the_same() -> None:
    share = "the share of rows with user is at least 0.9"
    (history,) = expectation_histories([facts(n, "expect_share", "user", share, 0.9) for n in (0, 1)], BUILDS, ())
    assert (history.trend.bounds, history.trend.low, history.trend.note) == ((0.9,), (), "")


def test_share_stays_a_share_when_the_last_interval_had_no_value_to_look_at() -> None:
    share = facts(0, "expect_lengths", "isp", "the length of isp is at most 200", 1, 1)
    observed = [replace(share, value=0.9, checked=90), replace(share, build=1, value=None)]
    (history,) = expectation_histories(observed, BUILDS, ())
    assert (history.trend.unit, history.trend.bounds) == ("share of rows that met it", (1,))


def test_expectation_has_one_history_when_a_bound_of_its_suite_is_changed() -> None:
    words = {0: "t is between -5 and 10", 1: "t is between 0.5 and 1", 2: "t is between 0.5 and 1"}
    observed = [facts(build, "expect_between", "t", text, 0.5, 1) for build, text in words.items()]
    (history,) = expectation_histories(observed, BUILDS, ())
    assert (history.judged, history.trend.bounds) == (3, (0.5, 1))


def test_expectations_stay_apart_when_a_suite_expects_something_like_the_usual() -> None:
    observed = []
    for build in range(HOURS):
        # Two pairs of columns, which have the same words; the suite's own newest row; the usual one.
        observed += [facts(build, "expect_pair", "", "column pair a greater than b")] * 2
        observed.append(facts(build, LATEST, "event_time", "column max to be between (event_time)", 5, 6))
        if build > 48:
            observed.append(facts(build, LATEST, "event_time", f"the newest row is of 05:{build} or later"))
    assert [each.judged for each in expectation_histories(observed, BUILDS, ())] == [HOURS, HOURS, HOURS, HOURS - 49]
