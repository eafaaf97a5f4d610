"""The page of an interval: one self-contained HTML file that says what was published and why, or why not."""

from __future__ import annotations

import base64
import hashlib
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from include.monitor.chart import chart
from include.monitor.report_parts import (
    approval_part,
    expectations_part,
    odd_timestamps_part,
    reconciliation_part,
    records_part,
)
from include.monitor.report_tables import (
    MAX_ROWS,
    ranges_table,
    registered_rows,
    revision_differences_tables,
    section_table,
)
from include.monitor.text import cell, clean, interval_words, non_negative, number, quantity

_TEMPLATES = Path(__file__).with_name("templates")

Tone = Literal["good", "bad", "open"]


@dataclass(frozen=True)
class Headline:
    """The verdict at a glance."""

    tone: Tone
    title: str
    reason: str


def render_report(verdict: dict[str, Any], data: dict[str, Any]) -> str:
    """Return the page of an interval as HTML.

    `verdict` is `Verdict.as_json()`; `data` holds `description`, `sections` (title, note, columns, rows,
    truncated) and `chart` (title, unit, x, series, others). The result depends on the arguments alone.
    """
    css = _css()
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    interval = verdict.get("interval") or {}
    expectations = expectations_part(verdict)
    return _template().render(
        css=Markup(css),  # our own file; data never passes through here
        style_hash=f"'sha256-{digest}'",
        pipeline=cell(verdict.get("pipeline")),
        description=clean(str(data.get("description") or ""), 400),
        interval=interval_words(str(interval.get("from", "")), str(interval.get("to", ""))),
        interval_from=cell(interval.get("from")),
        interval_to=cell(interval.get("to")),
        source=cell(verdict.get("source")),
        code_version=cell(verdict.get("code_version")),
        headline=headline(verdict),
        figures=_figures(verdict, expectations),
        records=records_part(verdict.get("records") or {}),
        odd_timestamps=odd_timestamps_part(verdict.get("odd_timestamps") or {}),
        reconciliation=reconciliation_part(verdict),
        expectations=expectations[:MAX_ROWS],
        expectations_left_out=max(len(expectations) - MAX_ROWS, 0),
        approval=approval_part(verdict),
        suite=cell((verdict.get("validation") or {}).get("suite")),
        chart=chart(data.get("chart")),
        sections=[section_table(section) for section in data.get("sections") or []],
        ranges=ranges_table(verdict.get("ranges") or []),
        topic_ids=sorted({(cell(r.get("topic")), cell(r.get("topic_id"))) for r in verdict.get("ranges") or []}),
        registered=registered_rows(verdict.get("registered") or []),
        registered_left_out=max(len(verdict.get("registered") or []) - MAX_ROWS, 0),
        revision_differences=revision_differences_tables(verdict.get("revision_differences") or []),
        commands=_commands(verdict, interval),
    )


def headline(verdict: dict[str, Any]) -> Headline:
    """Return whether the interval was published, and why not."""
    unexplained = (verdict.get("reconciliation") or {}).get("unexplained") or 0
    validation = verdict.get("validation") or {}
    success = validation.get("success")
    stays = "Nothing of this run was registered; what an earlier run registered stays as it was."
    if unexplained:
        differences = quantity(unexplained, "difference is", "differences are")
        return Headline("bad", "Not published: the layers disagree", f"{differences} unexplained. {stays}")
    decision = validation.get("decision") or {}
    if success is False and decision:
        return Headline("bad", "Not published: refused", f"By {cell(decision.get('by'))}. {stays}")
    if success is False and validation.get("question"):
        warned = _missed(verdict, "warn")
        return Headline(
            "open",
            "Not published: waits for approval",
            f"{quantity(warned, 'warning')}, and no expectation failed. A person decides. {stays}",
        )
    if success is False:
        failed = _missed(verdict, "fail") or len(validation.get("failed") or [])
        return Headline("bad", "Not published: validation failed", f"{quantity(failed, 'expectation')} failed. {stays}")
    if success is None:
        return Headline("open", "Not published: not validated", f"The run ended before its tables were judged. {stays}")
    registered, noted = verdict.get("registered") or [], _missed(verdict, "info")
    unmet = f"{quantity(noted, 'expectation that is only noted was', 'expectations that are only noted were')} not met"
    if not registered:
        checks = f"No check held it back, {unmet}," if noted else "Every check passed"
        return Headline("good", "Complete, nothing to publish", f"{checks} and the interval holds no rows.")
    rows = sum(int(non_negative(entry.get("rows"))) for entry in registered)
    partitions = quantity(len(registered), "table partition")
    all_passed = "after no check held it back" if noted else "after every check passed"
    after = f"after {cell(decision.get('by'))} approved its warnings" if decision else all_passed
    told = f"{partitions} with {quantity(rows, 'row')} registered {after}"
    return Headline("good", "Published", f"{told}; {unmet}." if noted else f"{told}.")


def _missed(verdict: dict[str, Any], severity: str) -> int:
    missed = (each for each in verdict.get("expectations") or [] if not each.get("success"))
    return sum(each.get("severity", "fail") == severity for each in missed)


def _figures(verdict: dict[str, Any], expectations: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    records = verdict.get("records") or {}
    differences = verdict.get("reconciliation") or {}
    passed = sum(e["success"] for e in expectations)
    unexplained = differences.get("unexplained")
    return [
        (number(records.get("in_ranges")), "offsets in its ranges", ""),
        (number(records.get("quarantined")), "records in quarantine", ""),
        (number(unexplained), "unexplained differences", "bad" if unexplained else ""),
        (
            f"{passed} of {len(expectations)}" if expectations else "–",
            "expectations met",
            "bad" if passed < len(expectations) else "",
        ),
    ]


def _commands(verdict: dict[str, Any], interval: dict[str, Any]) -> list[tuple[str, str]]:
    pipeline = _argument(verdict.get("pipeline"))
    times = f"--from {_argument(interval.get('from'))} --to {_argument(interval.get('to'))}"
    commands = [("The offset ranges this interval is pinned to", f"./tidemark ranges {pipeline} {times}")]
    for entry in (verdict.get("registered") or [])[:2]:
        names = f"{_argument(entry.get('table'))} {_argument(entry.get('partition'))}"
        commands.append(
            (
                f"From {cell(entry.get('table'))} down to files, offsets and verdict",
                f"./tidemark explain {names}",
            )
        )
        commands.append(
            (
                "Build it again from the same offsets and compare the content hashes",
                f"./tidemark rebuild {names}",
            )
        )
    validation = verdict.get("validation") or {}
    if (question := validation.get("question")) and not validation.get("decision"):
        approve = f"./tidemark approve {pipeline} {times} --question {_argument(question)} --reason …"
        commands.append(("Approve its warnings, or with --refuse do not", approve))
    commands.append(("Run the interval again, on the same offsets", f"./tidemark interval {pipeline} {times}"))
    if non_negative((verdict.get("records") or {}).get("quarantined")):
        commands.append(("The records in quarantine, with their reasons", f"./tidemark quarantine list {pipeline}"))
    return commands


def _argument(value: Any) -> str:
    return shlex.quote(clean(str(value if value is not None else ""), 160))


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("interval.html")


@cache
def _css() -> str:
    return (_TEMPLATES / "interval.css").read_text(encoding="utf-8")
