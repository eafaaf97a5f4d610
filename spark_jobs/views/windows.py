"""Windows of a view."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column
from pyspark.sql import functions as F

from include.pipelines.spec import TimeWindow

Window = tuple[datetime, datetime]
"""Start and end of a window, in UTC."""


def window_of(series: TimeWindow) -> Column:
    """The window of a row by its `event_time`, of windows that do not overlap."""
    return F.window("event_time", series.length, startTime=series.start or None)
