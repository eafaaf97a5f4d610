"""Durations are declared in one grammar: another is refused at once, with how to write it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from include.errors import UsageError
from include.pipelines import load_pipeline
from include.pipelines.spec import CompactedTopic, EventTimeWithin, Flags, Retention, TimeWindow
from include.times import every
from tests.support.shipped import SHIPPED

FLAGS = {"topic": "t", "rules": "r", "limits": "l", "learned_from": (), "columns": ()}

DECLARED: dict[str, Callable[[str], object]] = {
    "length of a window": lambda text: TimeWindow(text),
    "slide of a window": lambda text: TimeWindow("1d", slide=text),
    "start of a window": lambda text: TimeWindow("1d", start=text),
    "watermark": lambda text: CompactedTopic("t", watermark=text),
    "event time behind": lambda text: EventTimeWithin(behind=text, ahead="1h"),
    "event time ahead": lambda text: EventTimeWithin(behind="1h", ahead=text),
    "retention of landing": lambda text: Retention(landing=text),
    "retention of revisions": lambda text: Retention(revisions=text),
    "retention of replaced files": lambda text: Retention(replaced=text),
    "flags learned over": lambda text: Flags(**FLAGS, learned_over=text),  # type: ignore[arg-type]
    "flags commit every": lambda text: Flags(**FLAGS, commit_every=text),  # type: ignore[arg-type]
    "schedule": every,
}


@pytest.mark.parametrize("declared", DECLARED)
def test_duration_is_refused_when_it_is_written_as_spark_writes_it(declared: str) -> None:
    assert DECLARED[declared]("1m")
    for text in ("1 hour", "60 minutes", "1 hours", "PT1H"):
        with pytest.raises(UsageError, match=rf"not a duration: '{text}' — write it like 10s, 50m, 3h or 30d"):
            DECLARED[declared](text)


def test_period_of_commits_is_refused_when_spark_does_not_take_it_or_the_stream_would_count_as_stalled() -> None:
    for text in ("0s", "4s", "301s", "10m"):
        with pytest.raises(UsageError, match=f"commit_every of the flags is {text} — declare one from 5s to 5m"):
            Flags(**FLAGS, commit_every=text)  # type: ignore[arg-type]
    for text in ("5s", "5m"):
        assert Flags(**FLAGS, commit_every=text).commit_every == text  # type: ignore[arg-type]


@pytest.mark.parametrize(("length", "slide"), [("10m", "3m"), ("5m", "10m"), ("10m", "0m"), ("0m", "")])
def test_window_is_refused_when_its_slide_does_not_divide_it(length: str, slide: str) -> None:
    with pytest.raises(UsageError, match="does not divide a window"):
        TimeWindow(length, slide)


def test_several_series_are_made_when_windows_overlap() -> None:
    windows = TimeWindow("10m", slide="5m", start="2m")
    assert windows.tumbling() == (TimeWindow("10m", "", "120s"), TimeWindow("10m", "", "420s"))
    assert str(windows) == "10 minutes every 5 minutes from 2 minutes"
    assert [str(view.windows) for name in SHIPPED for view in load_pipeline(name).views].count("1 hour") == 4
