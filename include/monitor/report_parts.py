"""Parts of an interval's page in words: fates, differences by class, expectations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from include.monitor.text import cell, clean, non_negative, number, one_line_json, percent, plain, quantity

FATES = {
    "archived": "has at least one row in the archive table",
    "empty": "a valid message with nothing to archive",
    "quarantined": "could not be decoded or broke a row rule; kept whole",
    "erased": "erased on request; what it was before is not kept",
    "gaps": "no visible record there: compaction, a transaction marker, an aborted transaction",
}
CLASSES = {
    "matched": "Both layers hold the same: Kafka and the archive, the batch view and the speed view.",
    "pending": "One side holds more so far: the rest lies in another interval, or is still to be emitted.",
    "late": "Rows that arrived after a window was closed, once per window and view: the batch view counts them, the "
    "speed view cannot.",
    "unexplained": "No rule accounts for these. One is enough to stop the run before anything is registered.",
}
EXPLAINED = {
    "quarantined": "Explained by the quarantine: rows that came out of it by a replay, which the speed view never saw.",
    "gap": "Explained by offsets at which Kafka shows no record, or by a topic that no longer has a flag, or its row.",
    "compacted_since": "Explained by compaction after archiving: the archive has these records, Kafka no longer.",
    "erased": "Explained by an erasure: the flag's topic keeps it until its retention; its record, or limits that it "
    "was raised by, are gone.",
    "code": "Explained by a change of code: the records were landed, or counted live, by another version of it.",
}
"""What a class means that `explained` counts in the verdict."""

MOST_EXAMPLES = 20
"""How many rows of an expectation are shown."""

_MARKS = {"fail": "failed", "warn": "warned", "info": "noted"}
"""By severity, the label of an expectation that was not met."""


def records_part(records: dict[str, Any]) -> dict[str, Any]:
    """Return the offsets by fate, as a bar and as rows; nothing before they were counted."""
    if "in_ranges" not in records:
        return {}
    total = int(non_negative(records.get("in_ranges")))
    every = {fate: int(non_negative(records.get(fate))) for fate in FATES}
    counts = {fate: count for fate, count in every.items() if count or fate != "erased"}
    accounted = sum(counts.values())
    whole = max(total, accounted, 1)
    bars, offset = [], 0.0
    for fate, count in counts.items():
        # A sliver stays visible; the table beside it has the exact numbers.
        width = max(count / whole * 100, 0.6) if count else 0.0
        bars.append((fate, round(min(offset, 99.4), 4), round(width, 4)))
        offset += width
    return {
        "total": number(total),
        "terms": [(fate, number(count)) for fate, count in counts.items()],
        "holds": accounted == total,
        "replayed": number(replayed) if (replayed := int(non_negative(records.get("replayed")))) else "",
        "off_by": number(abs(total - accounted)),
        "missing": accounted < total,
        "bars": bars,
        "rows": [(fate, number(count), _share(count, total), FATES[fate]) for fate, count in counts.items()],
    }


def odd_timestamps_part(odd: dict[str, Any]) -> dict[str, str]:
    """Return how many timestamps are odd and where the first is; nothing when none is."""
    count, first = int(non_negative(odd.get("count"))), odd.get("first") or {}
    if not count:
        return {}
    where = f"{cell(first.get('topic'))}-{cell(first.get('partition'))} offset {cell(first.get('offset'))}"
    return {
        "count": quantity(count, "record has a timestamp", "records have timestamps"),
        "where": where,
        "time": cell(first.get("timestamp")),
    }


def _share(count: int, total: int) -> str:
    return percent(count / total) if total else "–"


def reconciliation_part(verdict: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the classes of differences with their counts, what each means, and its examples."""
    counts = verdict.get("reconciliation") or {}
    if not counts:
        return []
    differences = verdict.get("differences") or []
    # These explain a difference too; they are listed where there are any.
    explained = verdict.get("explained") or {}
    others = {*(str(d.get("class")) for d in differences), *map(str, explained)} - set(CLASSES)
    both = {**counts, **explained}
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
            # Verdicts of before have no such counts.
            "count": number(both.get(name)) if name in both or name in CLASSES else "–",
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
        return [(clean(str(key), 60), plain(value)) for key, value in list(evidence.items())[:12]]
    return [("", one_line_json(evidence))] if evidence not in (None, "") else []


def expectations_part(verdict: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the expectations, those that were not met first, the gravest of them before the others."""
    shown = [
        {
            "success": expectation.get("success") is True,
            "mark": "met" if expectation.get("success") is True else _MARKS[_severity(expectation)],
            "examples": [_example(row) for row in list(expectation.get("examples") or [])[:MOST_EXAMPLES]],
            "words": cell(expectation.get("words") or expectation.get("expectation")),
            "expectation": cell(expectation.get("expectation")),
            "table": cell(expectation.get("table")),
            "column": cell(expectation.get("column")),
            "observed": cell(expectation.get("observed")),
            "unexpected": number(expectation.get("unexpected_count")),
        }
        for expectation in verdict.get("expectations") or []
    ]
    gravity = [*_MARKS.values(), "met"]
    return sorted(shown, key=lambda each: gravity.index(each["mark"]))


def _severity(expectation: Mapping[str, Any]) -> str:
    # Older verdicts have no severities; an unknown severity counts as the gravest.
    said = expectation.get("severity")
    return str(said) if said in _MARKS else "fail"


def _example(row: Any) -> list[tuple[str, str]]:
    return [(clean(str(key), 60), plain(value)) for key, value in row.items()] if isinstance(row, Mapping) else []


def approval_part(verdict: dict[str, Any]) -> dict[str, Any]:
    """Return what a person decided, or is asked, and what was not compared with earlier intervals."""
    validation = verdict.get("validation") or {}
    decision = validation.get("decision") or {}
    return {
        "decision": {name: cell(decision.get(name)) for name in ("decision", "by", "at", "reason")} if decision else {},
        "not_checked": [clean(str(each), 400) for each in validation.get("not_checked") or []],
    }
