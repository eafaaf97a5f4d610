"""What findings and verdicts repeat of records, and how they read without it.

Names, counts and offsets stay whatever the keys are: pages and later steps read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from include.ledger.erasures.columns import KeyColumns
from include.ledger.erasures.to_forget import KeysToForget

_OF_RECORDS: Mapping[str, type] = {"report": dict, "unknown_fields": dict, "examples": list, "evidence": str}
"""Parts that show values of records, with their types. A verdict's report is the path of its page."""

SAID, MEASURED = ("observed", "words"), ("value", "low", "high")
"""Names of what a result of an expectation has of the rows: texts, and the same as numbers."""


@dataclass(frozen=True)
class FindingsScrub:
    """Removes keys from findings, verdicts and warnings."""

    columns: KeyColumns
    is_own: bool
    """Whether the interval held erased records: then nothing stays that shows values of records."""

    def without(self, value: Any) -> Any:
        """Return findings, a verdict or warnings, or a part of these, without the keys."""
        if isinstance(value, list):
            return [self.without(each) for each in value]
        if not isinstance(value, dict):
            return value
        clean = {name: self._part(name, each) for name, each in value.items()}
        return self._result(clean) if "observed" in value else clean

    def _part(self, name: str, value: Any) -> Any:
        kind = _OF_RECORDS.get(name)
        if self.is_own and kind is not None and isinstance(value, kind):
            return kind()
        match name, value:
            case "reason", _:
                return self.columns.keys.without(value)
            case "where", str():
                return self._where(value).without(value)
            case "evidence", _:
                # Of another interval it holds counts, hashes and offsets beside the values.
                return self.columns.keys.words.without(value)
            case "examples", list():
                return [self._example(each) for each in value]
            case "paths", list():
                return [{**each, "path": self.columns.keys.without(each.get("path"))} for each in value]
            case "sections", list():
                return [self._section(each) for each in value]
            case "series", list():
                # A name joins the values of a view's key; its values are counts.
                return [{**each, "name": self.columns.keys.without(each.get("name"))} for each in value]
        return self.without(value)

    def _where(self, value: str) -> KeysToForget:
        """Return which keys a difference's place may name: the key of a view, as JSON, any; coordinates no number."""
        return self.columns.keys if value.startswith("{") else self.columns.keys.words

    def _example(self, row: Mapping[str, str]) -> dict[str, Any]:
        clean = self.columns.alone(row)
        # Texts stay texts: what was beside a key reads as the key does.
        erased = next((each for each in clean.values() if each is not None), None)
        return {name: erased if each is None else each for name, each in clean.items()}

    def _section(self, section: Mapping[str, Any]) -> dict[str, Any]:
        columns = section.get("columns") or []
        rows = [self.columns.without_others(columns, each) for each in section.get("rows") or []]
        return {**section, "rows": rows}

    def _result(self, result: Mapping[str, Any]) -> dict[str, Any]:
        return {**result, **without_observed(self.columns, result, str(result.get("column") or ""))}


def without_observed(columns: KeyColumns, result: Mapping[str, Any], column: str) -> dict[str, Any]:
    """Return what an expectation of a column observed, in words and as numbers, without the keys."""
    sought = columns.sought_in(column)
    clean = {name: sought.without(result[name]) for name in SAID if name in result}
    if clean.get("observed") == result.get("observed"):
        return clean
    return {**clean, **{name: None for name in MEASURED if name in result}}
