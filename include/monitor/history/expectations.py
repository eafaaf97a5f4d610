"""What each expectation of a table found, interval by interval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from include.ledger.intervals.findings import without_numbers
from include.ledger.pages.trend import ExpectationFacts, IntervalFacts
from include.monitor.history.plot import Mark, Series, Trend


@dataclass(frozen=True)
class ExpectationHistory:
    """An expectation over the intervals."""

    words: str
    expectation: str
    column: str
    judged: int
    met: int
    last: str
    """What it observed last."""
    trend: Trend

    @property
    def pass_rate(self) -> str:
        """Share of intervals in which it was met, in percent; never rounded up to all."""
        percent = 100 * self.met / self.judged
        return "100 %" if self.met == self.judged else f"{min(percent, 99.9):.1f} %"


def expectation_histories(
    observed: Sequence[ExpectationFacts], builds: Sequence[IntervalFacts], marks: tuple[Mark, ...]
) -> tuple[ExpectationHistory, ...]:
    """Return the history of each expectation, whatever its bounds were; those that failed most first.

    `observed` is in the order of the suite, and of one place in it in the order of the builds.
    """
    places = {each.build: place for place, each in enumerate(builds)}
    by_expectation: dict[tuple[str, str, str, int], list[ExpectationFacts]] = {}
    before: Counter[tuple[int, str, str, str]] = Counter()
    for each in observed:
        # The words name the bounds, of which an interval may have its own: the count of rows, what is usual.
        named = (each.expectation, each.column, without_numbers(each.words))
        # A suite may expect the same twice, e.g. of two pairs of columns, which nothing here tells apart.
        by_expectation.setdefault((*named, before[each.build, *named]), []).append(each)
        before[each.build, *named] += 1
    histories = [_history(f"expectation-{n}", facts, places, marks) for n, facts in enumerate(by_expectation.values())]
    return tuple(sorted(histories, key=lambda each: each.met - each.judged))


def _history(
    key: str, facts: Sequence[ExpectationFacts], places: dict[int, int], marks: tuple[Mark, ...]
) -> ExpectationHistory:
    values: list[float | None] = [None] * len(places)
    low, high = list(values), list(values)
    for each in facts:
        place = places[each.build]
        values[place], low[place], high[place] = each.value, each.low, each.high
    met = sum(each.success for each in facts)
    last = max(facts, key=lambda each: places[each.build])
    # An interval of nulls alone has no share.
    measured = max(
        (each for each in facts if each.value is not None), key=lambda each: places[each.build], default=last
    )
    is_share = (measured.checked or 0) > 0 and measured.value is not None and 0 <= measured.value <= 1
    unit = "share of rows that met it" if is_share else "observed"
    bounds = tuple(sorted({bound for bound in (last.low, last.high) if bound is not None}))
    # One line would be the bound of one interval alone.
    has_band = len({(each.low, each.high) for each in facts}) > 1 and len(bounds) > 1
    trend = Trend(
        key,
        last.words,
        unit,
        "The band lies between the bounds of each interval." if has_band else "",
        "lines",
        (Series("observed", tuple(values)),),
        tuple(low) if has_band else (),
        tuple(high) if has_band else (),
        bounds=() if has_band else bounds,
        marks=marks,
        tone="bad" if met < len(facts) else "",
    )
    return ExpectationHistory(last.words, last.expectation, last.column, len(facts), met, last.observed, trend)
