"""The verdict of an interval as CONTRACT.md writes it, and its exit code."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from include.errors import ReconciliationFailed, ValidationFailed


@dataclass
class Verdict:
    """What an interval found; `as_json` is the contract's form."""

    pipeline: str
    interval: dict[str, str]
    code_version: str
    source: str = "kafka"
    ranges: list[dict[str, Any]] = field(default_factory=list)
    """topic, topic_id, partition, from_offset, until_offset and the counts of that topic partition."""
    records: dict[str, int] = field(default_factory=dict)
    """in_ranges, archived, empty, quarantined, gaps; and beside the ranges: replayed, the records out of quarantine
    whose rows this interval delivers."""
    reconciliation: dict[str, int] = field(default_factory=dict)
    """matched, pending, late, unexplained."""
    differences: list[dict[str, Any]] = field(default_factory=list)
    """First examples of what is not `matched`: class, what, where, evidence."""
    decoder_versions: list[str] = field(default_factory=list)
    """The code that decoded the archive's rows: the current one, or that of the landing when read from the archive."""
    code_changes: dict[str, int] = field(default_factory=dict)
    """added, removed, changed: archive rows that the current code decodes otherwise than the code that landed them."""
    revision_differences: list[dict[str, Any]] = field(default_factory=list)
    """table, partition, from_revision, to_revision, added, removed, changed, examples: what a rerun changed."""
    validation: dict[str, Any] = field(default_factory=lambda: {"success": None, "suite": "", "failed": []})
    expectations: list[dict[str, Any]] = field(default_factory=list)
    """Every expectation: table, expectation, column, words, success, observed, unexpected_count."""
    registered: list[dict[str, Any]] = field(default_factory=list)
    delta: dict[str, Any] = field(default_factory=dict)
    """view, version: of a Delta archive, the view and the version of the table that it shows from now on."""
    report: str = ""

    def as_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)

    @property
    def exit_code(self) -> int:
        """0 registered (or nothing to register), 3 unexplained differences, 2 validation failed."""
        if self.reconciliation.get("unexplained", 0):
            return ReconciliationFailed.exit_code
        if self.validation["success"] is False:
            return ValidationFailed.exit_code
        return 0
