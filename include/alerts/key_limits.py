"""Views without a window that have more keys than declared: an alert when it begins, and one when it is over."""

from __future__ import annotations

from datetime import UTC, datetime

from include import alerts
from include.intervals.reporting.addresses import stream_page
from include.ledger.alerts import Alert, dismissed_alerts, open_alerts
from include.ledger.alerts.noted import note_cause_over
from include.ledger.totals import key_counts
from include.pipelines.spec import AdditiveView, Pipeline


def watch(pipeline: Pipeline) -> tuple[int, int]:
    """Alert about the pipeline's views over their limit; return how many there are, and how many no longer are.

    Alerts about a view that was removed, or has windows now, are over. A view whose alert was dismissed raises none
    until it has been within its limit again.
    """
    totals = [view for view in pipeline.views if view.is_total]
    declared = {_key(pipeline, view.name) for view in totals}
    gone = [each.key for each in open_alerts(_key(pipeline, "")) if each.key not in declared]
    recovered = sum(alerts.recover(key) for key in gone)
    counts = key_counts(pipeline.name) if totals else {}
    over = {view.name for view in totals if counts.get(view.name, 0) > view.max_keys}
    for view in totals:
        key = _key(pipeline, view.name)
        if view.name not in over:
            recovered += alerts.recover(key)
            note_cause_over(key)
        # The name of a view may be the beginning of another's.
        elif not any(each.key == key for each in dismissed_alerts(key)):
            alerts.raise_alert(_alert(pipeline, view, counts[view.name]))
    return len(over), recovered


def _key(pipeline: Pipeline, view: str) -> str:
    return f"keys/{pipeline.name}/{view}"


def _alert(pipeline: Pipeline, view: AdditiveView, keys: int) -> Alert:
    return Alert(
        _key(pipeline, view.name),
        pipeline.name,
        f"the view {view.name} has {keys:,} keys, {view.max_keys:,} are declared at most: its state, its topic and its "
        "tables keep all of them for ever",
        f"the stream of {pipeline.name}, {view.speed.topic}",
        datetime.now(UTC),
        f"look at the keys, {stream_page(pipeline.name)}: raise max_keys if they are right; else quarantine such rows "
        "by a rule or choose another key, and ./tidemark new-generation",
        {"keys": keys, "max_keys": view.max_keys},
    )
