"""Windows of a view."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column
from pyspark.sql import functions as F

from include.pipelines.spec import AdditiveView, TimeWindow
from include.times import in_words

Window = tuple[datetime, datetime]
"""Start and end of a window, in UTC."""


def window_column(view: AdditiveView) -> Column:
    """Return a row's windows under the view's declared name; the view must have windows."""
    return window_of(view.time_windows).alias(view.window)


def window_of(windows: TimeWindow) -> Column:
    """Return the windows of a row by its `event_time`: one, or several where they overlap."""
    slide, start = (in_words(each) if each else None for each in (windows.slide, windows.start))
    return F.window("event_time", in_words(windows.length), slide, start)
