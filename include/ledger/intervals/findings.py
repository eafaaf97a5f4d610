"""What an attempt found, part by part, and the only place that turns it to JSON and back.

The JSON is that of the verdict where the verdict has it; the ledger keeps it with the build that it is about.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from include.offsets import OffsetRange, TopicPartition
from include.reconciliation import Difference, ReconciliationCounts

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Part = TypeVar("Part", bound="DataclassInstance")

Severity = Literal["fail", "warn", "info"]
"""What follows when an expectation is not met: nothing is registered, a person is asked, or it is only reported."""

_GRAVITY: Mapping[Severity, int] = {"fail": 0, "warn": 1, "info": 2}

ExpectationKey = tuple[str, str, str, str]
"""Table, expectation, column, and the sentence without its numbers."""


def without_numbers(words: str) -> str:
    """Return an expectation's sentence without its bounds, of which an interval may have its own."""
    return re.sub(r"-?\d+(?:\.\d+)?", "#", words)


@dataclass(frozen=True)
class FateCounts:
    """Offsets of one topic partition by their fate."""

    archived: int = 0
    empty: int = 0
    quarantined: int = 0
    gaps: int = 0
    erased: int = 0


@dataclass(frozen=True)
class RecordCounts:
    """Offsets of an interval by their fate, and the records that replays put into it."""

    in_ranges: int = 0
    archived: int = 0
    empty: int = 0
    quarantined: int = 0
    gaps: int = 0
    erased: int = 0
    replayed: int = 0
    """Records out of quarantine whose rows the interval delivers, besides those of its ranges."""
    lost: int = 0
    """Offsets of accepted losses, among the gaps."""
    compacted_since: int = 0
    """Archived records that compaction has since removed from Kafka's log; they count by their fate."""


@dataclass(frozen=True)
class RevisionDifference:
    """What a rerun changed in one table partition; null counts: the registered files are gone or damaged."""

    table: str
    partition: str
    from_revision: str | None
    to_revision: str | None
    added: int | None = 0
    removed: int | None = 0
    changed: int | None = 0
    examples: tuple[Mapping[str, str], ...] = ()
    """`change` and `key` of the first changed rows."""


@dataclass(frozen=True)
class ExpectationResult:
    """What one expectation found."""

    table: str
    expectation: str
    column: str
    words: str
    success: bool
    observed: str
    unexpected_count: int
    value: float | None = None
    """What it observed as a number; of an expectation over rows, the share that met it."""
    low: float | None = None
    """The least value with which it is met."""
    high: float | None = None
    """The greatest value with which it is met."""
    checked: int | None = None
    """Rows that it looked at."""
    severity: Severity = "fail"
    """A check that raised an error has failed, whatever was declared."""
    examples: tuple[Mapping[str, str], ...] = ()
    """Coordinates, or the key, and the value of the first rows that do not meet it; safe to print."""

    @property
    def key(self) -> ExpectationKey:
        """What identifies it, whatever its bounds are."""
        return self.table, self.expectation, self.column, without_numbers(self.words)

    def as_json(self) -> dict[str, Any]:
        """Return the form that the ledger and the verdict keep."""
        return {**asdict(self), "examples": [dict(row) for row in self.examples]}


@dataclass(frozen=True)
class BuildFindings:
    """What a build read, counted and compared."""

    ranges: tuple[OffsetRange, ...]
    """The ranges that it read."""
    fates: Mapping[TopicPartition, FateCounts]
    records: RecordCounts
    reconciliation: ReconciliationCounts
    differences: tuple[Difference, ...] = ()
    decoder_versions: tuple[str, ...] = ()
    code_changes: Mapping[str, int] = field(default_factory=dict)
    revision_differences: tuple[RevisionDifference, ...] = ()
    report: Mapping[str, Any] = field(default_factory=dict)
    """`sections` and `chart` of the interval's page."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """How long each part of the build took, s."""
    references: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the content of each reference that it used."""
    unknown_fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the schema does not name (`spark_jobs/intervals/drift.py`); empty where they are not kept."""
    view_versions: Mapping[str, str] = field(default_factory=dict)
    """By a view's table, the version of the code that added it up."""
    explained: Mapping[str, int] = field(default_factory=dict)
    """How much is of each class of differences that `reconciliation` does not count."""


@dataclass(frozen=True)
class Validation:
    """What the checkpoints found."""

    success: bool
    suite: str
    expectations: tuple[ExpectationResult, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    """How long the checkpoint of each table took, s."""
    not_checked: tuple[str, ...] = ()
    """What could not be compared with earlier intervals, and why; a sentence each."""
    question: int | None = None
    """What a person is asked about the warnings; None when nobody is."""
    decision: Mapping[str, str] = field(default_factory=dict)
    """decision (`approved` or `refused`), by, reason, at; empty when nobody has decided."""

    @property
    def failed(self) -> tuple[ExpectationResult, ...]:
        """Expectations that were not met, the gravest first."""
        missed = (each for each in self.expectations if not each.success)
        return tuple(sorted(missed, key=lambda each: _GRAVITY[each.severity]))

    @property
    def warnings(self) -> tuple[ExpectationResult, ...]:
        """Expectations of severity `warn` that were not met."""
        return tuple(each for each in self.failed if each.severity == "warn")

    @property
    def is_only_warned(self) -> bool:
        """Whether nothing but warnings keeps it from being registered, so that a person may let it pass."""
        return bool(self.warnings) and not any(each.severity == "fail" for each in self.failed)

    @property
    def waits(self) -> bool:
        """Whether a person has to decide about it."""
        return self.is_only_warned and not self.success and not self.decision

    def as_verdict(self) -> dict[str, Any]:
        """Return the form of the verdict's `validation`."""
        names = ("expectation", "column", "observed", "unexpected_count")
        failed = [{name: getattr(each, name) for name in names} for each in self.failed]
        said = {"not_checked": list(self.not_checked), "question": self.question, "decision": dict(self.decision)}
        return {"success": self.success, "suite": self.suite, "failed": failed, **{k: v for k, v in said.items() if v}}


@dataclass(frozen=True)
class DeltaVersion:
    """The version of the Delta table that the archive's view now shows."""

    view: str
    version: int


@dataclass(frozen=True)
class IcebergSnapshot:
    """The snapshot of an Iceberg table that holds what a verdict registered."""

    table: str
    snapshot_id: int
    tag: str
    metadata: str
    """URI of the metadata as it was then, for readers without the catalog."""


@dataclass(frozen=True)
class Findings:
    """What an attempt's latest build and its publication found; None for a part that did not run."""

    build: BuildFindings | None = None
    validation: Validation | None = None
    delta: DeltaVersion | None = None
    iceberg: tuple[IcebergSnapshot, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the form that the ledger keeps."""
        kept: dict[str, Any] = _build_json(self.build) if self.build else {}
        if self.validation:
            kept["validation"] = self.validation.as_verdict()
            kept["expectations"] = [each.as_json() for each in self.validation.expectations]
            kept["validation_seconds"] = dict(self.validation.seconds)
        if self.delta:
            kept["delta"] = asdict(self.delta)
        if self.iceberg:
            kept["iceberg"] = [asdict(each) for each in self.iceberg]
        return kept


def findings_of(kept: Mapping[str, Any]) -> Findings:
    """Return what `Findings.as_json` gave; missing parts are None."""
    validation = kept.get("validation")
    return Findings(
        _build_of(kept) if "reconciliation" in kept else None,
        Validation(
            validation["success"],
            validation["suite"],
            tuple(_part(ExpectationResult, each) for each in kept.get("expectations", ())),
            kept.get("validation_seconds", {}),
            tuple(validation.get("not_checked", ())),
            validation.get("question"),
            validation.get("decision", {}),
        )
        if validation
        else None,
        _part(DeltaVersion, kept["delta"]) if kept.get("delta") else None,
        tuple(_part(IcebergSnapshot, each) for each in kept.get("iceberg", ())),
    )


def _build_json(build: BuildFindings) -> dict[str, Any]:
    return {
        "ranges": [each.as_json() for each in build.ranges],
        "fates": {str(tp): asdict(counts) for tp, counts in build.fates.items()},
        "records": asdict(build.records),
        "reconciliation": asdict(build.reconciliation),
        "differences": [each.as_json() for each in build.differences],
        "decoder_versions": list(build.decoder_versions),
        "code_changes": dict(build.code_changes),
        "revision_differences": [{**asdict(e), "examples": list(e.examples)} for e in build.revision_differences],
        "report": dict(build.report),
        "build_seconds": dict(build.seconds),
        "references": dict(build.references),
        "unknown_fields": dict(build.unknown_fields),
        "view_versions": dict(build.view_versions),
        "explained": dict(build.explained),
    }


def _build_of(kept: Mapping[str, Any]) -> BuildFindings:
    return BuildFindings(
        tuple(range_of(each) for each in kept.get("ranges", ())),
        {_topic_partition(name): _part(FateCounts, counts) for name, counts in kept.get("fates", {}).items()},
        _part(RecordCounts, kept.get("records", {})),
        _part(ReconciliationCounts, kept["reconciliation"]),
        tuple(Difference.of_json(each) for each in kept.get("differences", ())),
        tuple(kept.get("decoder_versions", ())),
        kept.get("code_changes", {}),
        tuple(_part(RevisionDifference, each) for each in kept.get("revision_differences", ())),
        kept.get("report", {}),
        kept.get("build_seconds", {}),
        kept.get("references", {}),
        kept.get("unknown_fields", {}),
        kept.get("view_versions", {}),
        kept.get("explained", {}),
    )


def _part(kind: type[Part], kept: Mapping[str, Any]) -> Part:
    """Return a part from its JSON; keys of another version of the code are left out."""
    known = {each.name for each in fields(kind)}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items() if name in known}
    return kind(**values)


def _topic_partition(name: str) -> TopicPartition:
    return TopicPartition(name.rpartition("-")[0], int(name.rpartition("-")[2]))


def range_of(kept: Mapping[str, Any]) -> OffsetRange:
    """Return the range that `as_json` gave."""
    tp = TopicPartition(kept["topic"], kept["partition"])
    return OffsetRange(tp, kept["from_offset"], kept["until_offset"], kept["topic_id"])
