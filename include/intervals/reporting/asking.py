"""Notify the operators that an interval waits for a person, once per set of warnings, and of the decision."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from include.intervals.reporting.addresses import interval_page
from include.ledger.alerts import Alert, open_alerts
from include.ledger.intervals.attempts import AttemptSpec
from include.ledger.validation import approvals
from include.ledger.validation.approvals import Question
from include.monitor.history.remedies import approve_command
from include.times import Interval, format_time

_NOT_ASKED = {"ended": "nobody is asked about its latest build"}

_KEYS = "approval/"

SHOWN = 5
"""How many warnings an alert quotes at most."""


def has_asked(pipeline: str) -> bool:
    """Return whether an interval of a pipeline waits for a person. Raises ServiceUnreachable."""
    return bool(open_alerts(f"{_KEYS}{pipeline}/"))


def notify_asked(spec: AttemptSpec) -> None:
    """Notify that a person is asked about the attempt's build, or no longer is. Raises ServiceUnreachable."""
    validation, pinned = spec.findings.validation, spec.pinned
    asked = approvals.last_of_build(spec.build) if validation is not None and validation.waits else None
    if asked is None:
        _recover(pinned.pipeline, pinned.interval, _NOT_ASKED)
        return
    from include import alerts

    alert = _alert(asked)
    with alerts.sent_together():
        _recover(asked.pipeline, asked.interval, {"ended": "other warnings are asked about now"}, but=alert.key)
        alerts.raise_alert(alert)


def notify_decided(asked: Question) -> None:
    """Notify of what a person decided, unless somebody is asked about a newer build. Raises ServiceUnreachable."""
    if asked.decision is None:
        return
    last = approvals.last_of_interval(asked.pipeline, asked.interval)
    still_asked = last is not None and last.id != asked.id and last.decision is None
    _recover(asked.pipeline, asked.interval, asked.decision.as_json(), but=_key(last) if last and still_asked else "")


def notify_overtaken(pipeline: str, intervals: Iterable[Interval]) -> None:
    """Notify that nobody is asked about these intervals any more, where that is so. Raises ServiceUnreachable.

    They were pinned again, or records of them were erased, and nothing has announced a build since.
    """
    for interval in intervals:
        if open_alerts(_prefix(pipeline, interval)) and approvals.last_of_interval(pipeline, interval) is None:
            _recover(pipeline, interval, _NOT_ASKED)


def _recover(pipeline: str, interval: Interval, facts: dict[str, str], but: str = "") -> None:
    for each in open_alerts(_prefix(pipeline, interval)):
        if each.key != but:
            # Alerts load HTTP and mail clients, which an interval without any does not need.
            from include import alerts

            alerts.recover(each.key, facts)


def _prefix(pipeline: str, interval: Interval) -> str:
    return f"{_KEYS}{pipeline}/{format_time(interval.from_time)}/"


def _key(asked: Question) -> str:
    warnings = "\n".join("\t".join(key) for key in sorted(asked.keys))
    return _prefix(asked.pipeline, asked.interval) + hashlib.sha256(warnings.encode()).hexdigest()[:16]


def _alert(asked: Question) -> Alert:
    number, quoted = len(asked.warnings), [f"{each['table']}: {each['words']}" for each in asked.warnings[:SHOWN]]
    return Alert(
        _key(asked),
        asked.pipeline,
        f"{number} {'warning waits' if number == 1 else 'warnings wait'} for approval: {'; '.join(quoted)}",
        f"interval__{asked.pipeline}, {asked.interval}, task publish",
        asked.asked_at,
        # Without the question's number: another run asks the same under a new number, and must not notify again.
        f"look at {interval_page(asked.pipeline, asked.interval)}, then approve it, or refuse it with --refuse, there "
        f"or in Airflow: {approve_command(asked.pipeline, asked.interval)}",
        {"warnings": [f"{each['table']}: {each['words']} (observed {each['observed']})" for each in asked.warnings]},
    )
