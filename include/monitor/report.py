"""The page of an interval: one self-contained HTML file that says what was published and why, or why not."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from include.monitor.chart import chart
from include.monitor.text import cell, clean, interval_words, is_number, non_negative, number, one_line_json, quantity

MAX_ROWS = 200
"""Rows of a table on the page; what is left out is counted below it."""

FATES = {
    "archived": "has at least one row in the archive table",
    "empty": "a valid message with nothing to archive",
    "quarantined": "could not be decoded or broke a row rule; kept whole",
    "gaps": "no visible record there: compaction, a transaction marker, an aborted transaction",
}
CLASSES = {
    "matched": "Both layers hold the same: Kafka and the archive, the batch view and the speed view.",
    "pending": "One side holds more so far: the rest lies in another interval, or is still to be emitted.",
    "late": "These arrived after their window was closed: the batch view counts them, the speed view cannot.",
    "unexplained": "No rule accounts for these. One is enough to stop the run before anything is registered.",
}
EXPLAINED = {
    "quarantined": "Explained by the quarantine: rows that came out of it by a replay, which the speed view never saw.",
    "gap": "Explained by offsets at which Kafka shows no record.",
    "code": "Explained by a change of code: the records were landed, or counted live, by another version of it.",
}
"""What a class that is not counted in the verdict means."""

_TEMPLATES = Path(__file__).with_name("templates")

Tone = Literal["good", "bad", "open"]


@dataclass(frozen=True)
class Headline:
    """The verdict in one glance."""

    tone: Tone
    title: str
    reason: str


@dataclass(frozen=True)
class Cell:
    """A cell of a table and how it is set."""

    text: str
    numeric: bool = False


@dataclass(frozen=True)
class Table:
    """Rows as the page shows them, and how many were left out."""

    columns: tuple[Cell, ...]
    rows: tuple[tuple[Cell, ...], ...]
    left_out: int


def render_report(verdict: dict[str, Any], data: dict[str, Any], *, generated_at: str | None = None) -> str:
    """The page of an interval as HTML.

    `verdict` is `Verdict.as_json()`; `data` holds `description`, `sections` (title, note, columns, rows,
    truncated) and `chart` (title, unit, x, series). The result depends on the arguments alone.
    """
    css = _css()
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    interval = verdict.get("interval") or {}
    expectations = _expectations(verdict)
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
        generated_at=cell(generated_at) if generated_at else "",
        headline=headline(verdict),
        figures=_figures(verdict, expectations),
        records=_records(verdict.get("records") or {}),
        reconciliation=_reconciliation(verdict),
        expectations=expectations[:MAX_ROWS],
        expectations_left_out=max(len(expectations) - MAX_ROWS, 0),
        suite=cell((verdict.get("validation") or {}).get("suite")),
        chart=chart(data.get("chart")),
        sections=[_section(section) for section in data.get("sections") or []],
        ranges=_ranges(verdict.get("ranges") or []),
        topic_ids=sorted({(cell(r.get("topic")), cell(r.get("topic_id"))) for r in verdict.get("ranges") or []}),
        registered=_registered(verdict.get("registered") or []),
        revision_differences=_revision_differences(verdict.get("revision_differences") or []),
        commands=_commands(verdict, interval),
    )


def headline(verdict: dict[str, Any]) -> Headline:
    """Whether the interval was published, and why not."""
    unexplained = (verdict.get("reconciliation") or {}).get("unexplained") or 0
    validation = verdict.get("validation") or {}
    success = validation.get("success")
    stays = "Nothing of this run was registered; what an earlier run registered stays as it was."
    if unexplained:
        differences = quantity(unexplained, "difference is", "differences are")
        return Headline("bad", "Not published: the layers disagree", f"{differences} unexplained. {stays}")
    if success is False:
        failed = len(validation.get("failed") or []) or sum(
            not e.get("success") for e in verdict.get("expectations") or []
        )
        return Headline("bad", "Not published: validation failed", f"{quantity(failed, 'expectation')} failed. {stays}")
    if success is None:
        return Headline("open", "Not published: not validated", f"The run ended before its tables were judged. {stays}")
    registered = verdict.get("registered") or []
    if not registered:
        return Headline("good", "Complete, nothing to publish", "Every check passed and the interval holds no rows.")
    rows = sum(int(non_negative(entry.get("rows"))) for entry in registered)
    partitions = quantity(len(registered), "table partition")
    return Headline(
        "good", "Published", f"{partitions} with {quantity(rows, 'row')} registered after every check passed."
    )


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


def _records(records: dict[str, Any]) -> dict[str, Any]:
    if "in_ranges" not in records:
        return {}
    total = int(non_negative(records.get("in_ranges")))
    found = {fate: int(non_negative(records.get(fate))) for fate in FATES}
    accounted = sum(found.values())
    whole = max(total, accounted, 1)
    bars, offset = [], 0.0
    for fate, count in found.items():
        # A sliver is still seen; what is shown is in the table beside it.
        width = max(count / whole * 100, 0.6) if count else 0.0
        bars.append((fate, round(min(offset, 99.4), 4), round(width, 4)))
        offset += width
    return {
        "total": number(total),
        "terms": [(fate, number(count)) for fate, count in found.items()],
        "holds": accounted == total,
        "replayed": number(replayed) if (replayed := int(non_negative(records.get("replayed")))) else "",
        "off_by": number(abs(total - accounted)),
        "missing": accounted < total,
        "bars": bars,
        "rows": [(fate, number(count), _share(count, total), FATES[fate]) for fate, count in found.items()],
    }


def _share(count: int, total: int) -> str:
    if not total:
        return "–"
    share = count / total * 100
    if 0 < share < 0.1:
        return "< 0.1 %"
    return "> 99.9 %" if 99.9 < share < 100 else f"{share:.1f} %"


def _reconciliation(verdict: dict[str, Any]) -> list[dict[str, Any]]:
    counts = verdict.get("reconciliation") or {}
    if not counts:
        return []
    differences = verdict.get("differences") or []
    # These explain a difference too; they are listed where there are any.
    others = {str(d.get("class")) for d in differences} - set(CLASSES)
    classes = {
        **CLASSES,
        **{
            clean(name, 40): EXPLAINED.get(name, "These differences are explained by records of this fate.")
            for name in sorted(others)
        },
    }
    return [
        {
            "name": name,
            "count": number(counts.get(name)) if name in counts or name in CLASSES else "–",
            "words": words,
            "wrong": name == "unexplained" and bool(counts.get(name)),
            "examples": [
                {
                    "what": cell(d.get("what")),
                    "where": cell(d.get("where")),
                    "evidence": _evidence(d.get("evidence")),
                }
                for d in differences
                if clean(str(d.get("class")), 40) == name
            ][:20],
        }
        for name, words in classes.items()
    ]


def _evidence(evidence: Any) -> list[tuple[str, str]]:
    if isinstance(evidence, dict):
        return [(clean(str(key), 60), _plain(value)) for key, value in list(evidence.items())[:12]]
    return [("", one_line_json(evidence))] if evidence not in (None, "") else []


def _plain(value: Any) -> str:
    """A value for copying: a whole number without separators."""
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18
    return str(value) if whole else cell(value)


def _expectations(verdict: dict[str, Any]) -> list[dict[str, Any]]:
    shown = [
        {
            "success": expectation.get("success") is True,
            "words": cell(expectation.get("words") or expectation.get("expectation")),
            "expectation": cell(expectation.get("expectation")),
            "table": cell(expectation.get("table")),
            "column": cell(expectation.get("column")),
            "observed": cell(expectation.get("observed")),
            "unexpected": number(expectation.get("unexpected_count")),
        }
        for expectation in verdict.get("expectations") or []
    ]
    return sorted(shown, key=lambda expectation: expectation["success"])


def table(
    columns: Sequence[Any],
    rows: Iterable[Sequence[Any]],
    *,
    left_out: int = 0,
    coordinates: Sequence[str] = (),
) -> Table:
    """A table of at most MAX_ROWS rows; a column of numbers is set to the right.

    Numbers of the `coordinates` columns are written without separators, ready to be copied.
    """
    given = [list(row)[: len(columns)] for row in rows]
    given = [row + [None] * (len(columns) - len(row)) for row in given]
    numeric = [
        any(is_number(row[i]) for row in given) and all(row[i] is None or is_number(row[i]) for row in given)
        for i in range(len(columns))
    ]
    return Table(
        tuple(Cell(clean(str(name), 60).replace("_", " "), numeric[i]) for i, name in enumerate(columns)),
        tuple(
            tuple(
                Cell(_plain(value) if columns[i] in coordinates else cell(value), numeric[i])
                for i, value in enumerate(row)
            )
            for row in given[:MAX_ROWS]
        ),
        max(len(given) - MAX_ROWS, 0) + left_out,
    )


def _section(section: dict[str, Any]) -> dict[str, Any]:
    truncated = int(non_negative(section.get("truncated")))
    shown = table(section.get("columns") or [], section.get("rows") or [], left_out=truncated)
    return {
        "title": clean(str(section.get("title") or "Findings"), 120),
        "note": clean(str(section.get("note") or ""), 400),
        "table": shown,
        "total": number(len(section.get("rows") or []) + truncated),
    }


def _ranges(ranges: list[dict[str, Any]]) -> Table:
    columns = ("topic", "topic partition", "from offset", "until offset", "offsets", *FATES)
    rows = [
        (
            str(r.get("topic", "")),
            r.get("partition"),
            r.get("from_offset"),
            r.get("until_offset"),
            int(non_negative(r.get("until_offset"))) - int(non_negative(r.get("from_offset"))),
            *(r.get(fate) for fate in FATES),
        )
        for r in ranges
    ]
    return table(columns, rows, coordinates=("topic partition", "from offset", "until offset"))


def _revision_differences(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows that a rerun changed per table partition, and the first of them by key."""
    counts = ("added", "removed", "changed")
    names = ("table", "partition", "from_revision", "to_revision")
    rows = [(*(entry.get(name) or "–" for name in names), *(entry.get(count) for count in counts)) for entry in entries]
    examples = [
        (str(entry.get("table", "")), str(example.get("change", "")), str(example.get("key", "")))
        for entry in entries
        for example in entry.get("examples") or []
    ]
    return {
        "table": table((*names[:2], "before", "now", *counts), rows),
        "examples": table(("table", "change", "row"), examples),
    }


def _registered(entries: list[dict[str, Any]]) -> list[dict[str, str]]:
    names = ("table", "partition", "revision", "content_hash", "location")
    return [
        {**{name: cell(entry.get(name)) for name in names}, "rows": number(entry.get("rows"))}
        for entry in entries[:MAX_ROWS]
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
