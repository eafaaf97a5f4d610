"""What a step of an interval was given, read, found and wrote, in at most LINES lines.

The lines are rendered from what the ledger holds of the attempt, so Airflow's tasks and the command print the same. A
failure stands in the first line and in the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from include.errors import error_class, one_line
from include.intervals.reporting.addresses import interval_page
from include.intervals.verdict import Verdict
from include.ledger.intervals import attempts, revisions
from include.ledger.intervals.attempts import AttemptSpec
from include.ledger.intervals.findings import BuildFindings, ExpectationResult, RevisionDifference, Validation
from include.ledger.lineage import BuiltRevision
from include.monitor.history.remedies import approve_command
from include.monitor.text import quantity
from include.offsets import OffsetRange
from include.reconciliation import Difference, DifferenceClass, ReconciliationCounts

Step = Literal["pin_ranges", "build_interval", "reconcile", "publish", "announce"]

LINES = 20
"""Most lines of a step."""

WIDTH = 320
"""Most characters of a line."""

_EXAMPLES = 3
"""How many differences, expectations and changed rows of a kind are listed."""


def summarize(step: Step, attempt: int, verdict: Verdict | None = None) -> list[str]:
    """Return the lines of a step that was taken; those of `announce` come from its verdict."""
    spec = attempts.load_attempt(attempt)
    match step:
        case "pin_ranges":
            lines = _pinned(spec)
        case "build_interval":
            lines = _built(spec, _of_build(spec))
        case "reconcile":
            lines = _reconciled(spec)
        case "publish":
            lines = _published(spec, _of_build(spec), revisions.registered_of_interval(spec.pinned.id))
        case "announce":
            lines = _announced(spec, verdict)
    return bounded(lines)


def bounded(lines: Sequence[str]) -> list[str]:
    """Return at most LINES lines, each printable and of bounded length; what is left out is counted before the last."""
    clean = [one_line(line, WIDTH) for line in lines]
    if len(clean) <= LINES:
        return clean
    return [*clean[: LINES - 2], f"… {len(clean) - LINES + 1} more lines are on the interval's page", clean[-1]]


def _of_build(spec: AttemptSpec) -> list[BuiltRevision]:
    return revisions.of_build(spec.build) if spec.build is not None else []


def _place(spec: AttemptSpec) -> str:
    return f"{spec.pinned.pipeline} {spec.pinned.interval}"


def _given(spec: AttemptSpec) -> str:
    ranges = spec.pinned.ranges
    topics = sorted({each.topic_partition.topic for each in ranges})
    build = "" if spec.build is None else f", build {spec.build}"
    return (
        f"given: {_offsets(ranges)} of {len(ranges)} topic partitions of {', '.join(topics) or 'no topic'}; source "
        f"{spec.source}, attempt {spec.id}{build}, code {spec.code_version[:12]}"
    )


def _offsets(ranges: Iterable[OffsetRange]) -> str:
    return f"{sum(map(len, ranges)):,} offsets"


def _pinned(spec: AttemptSpec) -> list[str]:
    ranges = spec.pinned.ranges
    shown = ranges[: LINES // 2]
    lines = [f"{_place(spec)}: pinned to {_offsets(ranges)}", _given(spec)]
    lines += [f"range: {each}, {len(each):,} offsets" for each in shown]
    if rest := ranges[len(shown) :]:
        lines.append(f"range: {len(rest)} more topic partitions, {_offsets(rest)}")
    for odd in spec.pinned.odd_timestamps[:_EXAMPLES]:
        lines.append(
            f"odd timestamps: {odd.count} in {odd.topic_partition}, the first at offset {odd.first_offset} "
            f"({odd.first_time}); they end no interval"
        )
    return [*lines, f"page: {interval_page(spec.pinned.pipeline, spec.pinned.interval)}"]


def _built(spec: AttemptSpec, built: Sequence[BuiltRevision]) -> list[str]:
    build = spec.findings.build
    if build is None:
        return [f"{_place(spec)}: nothing is built", _given(spec)]
    failed = _unexplained(spec, build)
    return [
        *failed,
        f"{_place(spec)}: built {_rows(built)} in {len(built)} table partitions",
        _given(spec),
        _fates(build),
        *_differences(build),
        *(f"wrote: {_named(each)}, {each.rows:,} rows in {len(each.files)} files, {_hash(each)}" for each in built),
        *_changes(build.revision_differences),
        *_code_changes(build.code_changes),
        *(f"unknown field: {each['path']}, {each['records']:,} records" for each in _drift(build)),
        *([f"seconds: {_seconds(build.seconds)}"] if build.seconds else []),
        *failed,
    ]


def _drift(build: BuildFindings) -> Sequence[Mapping[str, Any]]:
    paths: Sequence[Mapping[str, Any]] = build.unknown_fields.get("paths", ())
    return paths[:_EXAMPLES]


def _reconciled(spec: AttemptSpec) -> list[str]:
    build = spec.findings.build
    if build is None:
        return [f"{_place(spec)}: FAILED, nothing is built; run the interval again"]
    failed = _unexplained(spec, build)
    return [
        *(failed or [f"{_place(spec)}: everything is explained"]),
        _given(spec),
        _fates(build),
        *_differences(build),
        *_code_changes(build.code_changes),
        *([f"page: {interval_page(spec.pinned.pipeline, spec.pinned.interval)}", *failed] if failed else []),
    ]


def _published(spec: AttemptSpec, built: Sequence[BuiltRevision], registered: Sequence[BuiltRevision]) -> list[str]:
    validation = spec.findings.validation
    if validation is None:
        return [f"{_place(spec)}: FAILED, nothing was validated", _given(spec)]
    missed = [f"{_MARKS[each.severity]}: {_expectation(each)}" for each in validation.failed[: 2 * _EXAMPLES]]
    if not validation.success:
        failed = _not_registered(spec, validation)
        return [failed, *_asked(spec), *missed, _given(spec), *_registered(built, registered, "stays"), failed]
    return [
        f"{_place(spec)}: {_met(validation)}, {len(registered)} table partitions are registered",
        *missed,
        *_decided(validation),
        _given(spec),
        *_registered(built, registered, "unchanged"),
        *_changes(spec.findings.build.revision_differences if spec.findings.build else ()),
        *(
            [f"delta: {spec.findings.delta.view} is at version {spec.findings.delta.version}"]
            if spec.findings.delta
            else []
        ),
        *(f"iceberg: {each.table} has the snapshot {each.tag}" for each in spec.findings.iceberg),
        *([f"seconds: {_seconds(validation.seconds)}"] if validation.seconds else []),
    ]


def _announced(spec: AttemptSpec, verdict: Verdict | None) -> list[str]:
    if verdict is None:
        return [f"{_place(spec)}: nothing is announced"]
    page = interval_page(spec.pinned.pipeline, spec.pinned.interval)
    if verdict.exit_code:
        failed = f"{_place(spec)}: FAILED with exit code {verdict.exit_code}, {error_class(verdict.exit_code).meaning}"
        return [failed, f"wrote: report {verdict.report}", f"page: {page}", failed]
    tables = groupby(sorted(verdict.registered, key=lambda each: each["table"]), key=lambda each: each["table"])
    told = [(table, list(entries)) for table, entries in tables]
    return [
        f"{_place(spec)}: complete, {len(verdict.registered)} table partitions are registered",
        _given(spec),
        *(
            f"announced: lake.{table}, {len(entries)} table partitions, {sum(each['rows'] for each in entries):,} rows"
            for table, entries in told
        ),
        f"wrote: report {verdict.report}",
        f"page: {page}",
    ]


def _unexplained(spec: AttemptSpec, build: BuildFindings) -> list[str]:
    count = build.reconciliation.unexplained
    if not count:
        return []
    first = next((each for each in build.differences if each.cls is DifferenceClass.UNEXPLAINED), None)
    where = f"; first: {first.what}, {first.where}" if first else ""
    return [f"{_place(spec)}: FAILED, {count} differences are unexplained{where}; nothing will be registered"]


def _fates(build: BuildFindings) -> str:
    records = build.records
    further = [f"{count:,} {name}" for name, count in (("replayed", records.replayed), ("lost", records.lost)) if count]
    return (
        f"found: {records.in_ranges:,} offsets = {records.archived:,} archived + {records.empty:,} empty + "
        f"{records.quarantined:,} quarantined + {records.gaps:,} gaps"
        + (f" + {records.erased:,} erased" if records.erased else "")
        + "".join(f"; {each}" for each in further)
    )


def _differences(build: BuildFindings) -> list[str]:
    """Return the counts of all classes, then the first examples of each; unexplained ones first."""
    counts: ReconciliationCounts = build.reconciliation
    lines = [f"found: {', '.join(f'{count:,} {name}' for name, count in {**vars(counts), **build.explained}.items())}"]
    shown: dict[DifferenceClass, list[Difference]] = {}
    for each in sorted(build.differences, key=lambda each: each.cls is not DifferenceClass.UNEXPLAINED):
        shown.setdefault(each.cls, []).append(each)
    for cls, examples in shown.items():
        most = _EXAMPLES if cls is DifferenceClass.UNEXPLAINED else 1
        lines += [f"{cls}: {each.what}, {each.where}: {each.evidence}" for each in examples[:most]]
    return lines


def _changes(differences: Iterable[RevisionDifference]) -> list[str]:
    lines = []
    for each in differences:
        if each.added is None:
            lines.append(f"changed: {each.table} {each.partition}, the registered files are gone")
        elif each.added or each.removed or each.changed:
            first = f"; first: {dict(each.examples[0])}" if each.examples else ""
            lines.append(
                f"changed: {each.table} {each.partition} against the registered {each.from_revision or 'none'}: "
                f"{each.added} rows added, {each.removed} removed, {each.changed} changed{first}"
            )
    return lines


def _code_changes(changes: Mapping[str, int]) -> list[str]:
    return [f"changed code: {what} {count}" for what, count in changes.items() if count]


_MARKS = {"fail": "FAILED", "warn": "warning", "info": "note"}


def _expectation(each: ExpectationResult) -> str:
    said = f"{each.table}: {each.words} (observed {each.observed or 'nothing'}, {each.unexpected_count} unexpected)"
    shown = " ".join(f"{name}={value}" for row in each.examples[:1] for name, value in row.items())
    return f"{said}; first: {shown}" if shown else said


def _not_registered(spec: AttemptSpec, validation: Validation) -> str:
    """Return why nothing was registered: it was refused, waits for a person, or failed."""
    if validation.decision:
        return f"{_place(spec)}: REFUSED by {validation.decision['by']}: {validation.decision['reason']}"
    if validation.waits:
        warned = quantity(len(validation.warnings), "warning")
        return f"{_place(spec)}: WAITS for approval of {warned}; nothing is registered yet"
    failed = quantity(sum(each.severity == "fail" for each in validation.failed), "expectation")
    return f"{_place(spec)}: FAILED, {failed}; nothing was registered"


def _asked(spec: AttemptSpec) -> list[str]:
    validation = spec.findings.validation
    if validation is None or not validation.waits or validation.question is None:
        return []
    return [f"decide: {approve_command(spec.pinned.pipeline, spec.pinned.interval, validation.question)}"]


def _decided(validation: Validation) -> list[str]:
    """Return who decided what about warnings, and what could not be compared with earlier intervals."""
    said = validation.decision
    decided = [f"{said['decision']}: by {said['by']} at {said['at']}: {said['reason']}"] if said else []
    return [*decided, *(f"not checked: {each}" for each in validation.not_checked)]


def _met(validation: Validation) -> str:
    every = len(validation.expectations)
    return f"{every - len(validation.failed)} of {every} expectations are met"


def _registered(built: Sequence[BuiltRevision], registered: Sequence[BuiltRevision], otherwise: str) -> list[str]:
    new = {(each.table, each.partition, each.revision) for each in built}
    return [
        f"registered: {_named(each)}, {each.rows:,} rows, {_hash(each)}"
        + ("" if (each.table, each.partition, each.revision) in new else f", {otherwise}")
        for each in registered
    ]


def _named(each: BuiltRevision) -> str:
    return f"{each.table} {each.partition} {each.revision}"


def _hash(each: BuiltRevision) -> str:
    return f"content {each.content_hash[:16]}"


def _rows(built: Iterable[BuiltRevision]) -> str:
    return f"{sum(each.rows for each in built):,} rows"


def _seconds(seconds: Mapping[str, float]) -> str:
    longest_first = sorted(seconds.items(), key=lambda part: -part[1])
    return ", ".join(f"{part} {each:.1f}" for part, each in longest_first)
