"""The verdict of an interval as `include/docs/interface.md` writes it, and its exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from include.errors import ReconciliationFailed, ValidationFailed
from include.ledger.intervals import odd_timestamps
from include.ledger.intervals.attempts import AttemptSpec
from include.ledger.intervals.findings import BuildFindings, FateCounts, Findings
from include.ledger.lineage import BuiltRevision
from include.monitor.text import quantity
from include.offsets import OffsetRange, TopicPartition
from include.times import format_time

_NOT_VALIDATED: Mapping[str, Any] = {"success": None, "suite": "", "failed": []}


@dataclass(frozen=True)
class Verdict:
    """What an interval found; `as_json` is its documented form."""

    pipeline: str
    interval: Mapping[str, str]
    code_version: str
    source: str = "kafka"
    ranges: Sequence[Mapping[str, Any]] = ()
    """topic, topic_id, partition, from_offset, until_offset and the counts of that topic partition."""
    findings: Findings = field(default_factory=Findings)
    registered: Sequence[Mapping[str, Any]] = ()
    report: str = ""
    odd_timestamps: Mapping[str, Any] = field(default_factory=lambda: odd_timestamps.as_json([]))
    """count, first: records of the ranges whose timestamps lie too far ahead to end the interval."""

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        kept = self.findings.as_json()
        return {
            "pipeline": self.pipeline,
            "interval": dict(self.interval),
            "code_version": self.code_version,
            "source": self.source,
            "ranges": [dict(each) for each in self.ranges],
            "records": kept.get("records", {}),
            "odd_timestamps": dict(self.odd_timestamps),
            "reconciliation": kept.get("reconciliation", {}),
            "explained": kept.get("explained", {}),
            "differences": kept.get("differences", []),
            "decoder_versions": kept.get("decoder_versions", []),
            "code_changes": kept.get("code_changes", {}),
            "revision_differences": kept.get("revision_differences", []),
            "unknown_fields": kept.get("unknown_fields", {}),
            "validation": kept.get("validation", dict(_NOT_VALIDATED)),
            "expectations": kept.get("expectations", []),
            "registered": [dict(each) for each in self.registered],
            "delta": kept.get("delta", {}),
            "iceberg": kept.get("iceberg", []),
            "report": self.report,
        }

    def with_proof(self, proof: str | None) -> Verdict:
        """Return the verdict with the URI of the proof beside each registered table partition; null without one."""
        return replace(self, registered=[{**each, "proof": proof} for each in self.registered])

    def in_words(self) -> str:
        """Return one line: what became of the interval, and why."""
        place = f"{self.pipeline} {self.interval.get('from')} to {self.interval.get('to')}"
        if self.exit_code == ReconciliationFailed.exit_code:
            differences = f"{self.reconciliation.get('unexplained', 0)} differences are unexplained"
            return f"{place}: nothing of this run is registered: {differences}; read {self.report}"
        if self.exit_code:
            validation = self.findings.validation
            missed = "it was not validated"
            if validation is not None:
                missed = "not met: " + ", ".join(each.words for each in validation.failed)
                if validation.waits:
                    warned = quantity(len(validation.warnings), "warning")
                    missed = f"it waits for a person's approval of {warned}; {missed}"
                elif validation.decision:
                    missed = f"it was refused by {validation.decision['by']}; {missed}"
            return f"{place}: nothing of this run is registered; {missed}; read {self.report}"
        records = self.records
        names = ("archived", "empty", "quarantined", "gaps", *(["erased"] if records.get("erased") else []))
        fates = " + ".join(f"{records.get(name, 0):,} {name}" for name in names)
        return (
            f"{place}: {len(self.registered)} table partitions are registered; "
            f"{records.get('in_ranges', 0):,} offsets = {fates}; nothing is unexplained"
        )

    @property
    def exit_code(self) -> int:
        """0 registered (or nothing to register), 3 unexplained differences, 2 validation failed or did not run.

        Without a passed checkpoint nothing is a success.
        """
        if self.findings.build is not None and self.findings.build.reconciliation.unexplained:
            return ReconciliationFailed.exit_code
        if self.findings.validation is None or not self.findings.validation.success:
            return ValidationFailed.exit_code
        return 0

    @property
    def records(self) -> dict[str, int]:
        """The verdict's `records`; empty before a build."""
        return dict(self.findings.as_json().get("records", {}))

    @property
    def reconciliation(self) -> dict[str, int]:
        """The verdict's `reconciliation`; empty before a build."""
        return dict(self.findings.as_json().get("reconciliation", {}))


def assemble_verdict(spec: AttemptSpec, registered: Sequence[BuiltRevision]) -> Verdict:
    """Return the verdict of an attempt from what its latest build and its publication found.

    The interval's registered revisions are listed when the attempt passed. The ranges are those that were built, even
    when the interval was pinned again since.
    """
    pinned, validation, build = spec.pinned, spec.findings.validation, spec.findings.build
    interval = {"from": format_time(pinned.interval.from_time), "to": format_time(pinned.interval.to_time)}
    return Verdict(
        pinned.pipeline,
        interval,
        spec.code_version,
        spec.source.value,
        [_range(each, build) for each in (build.ranges if build and build.ranges else pinned.ranges)],
        spec.findings,
        [each.as_registered() for each in registered] if validation is not None and validation.success else [],
        odd_timestamps=odd_timestamps.as_json(pinned.odd_timestamps),
    )


def _range(each: OffsetRange, build: BuildFindings | None) -> dict[str, Any]:
    fates: Mapping[TopicPartition, FateCounts] = build.fates if build is not None else {}
    counts = fates.get(each.topic_partition)
    return {**each.as_json(), **(asdict(counts) if counts else {})}
