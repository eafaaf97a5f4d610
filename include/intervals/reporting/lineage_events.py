"""Events of OpenLineage about an attempt, from what the ledger kept of it.

Two jobs: `<pipeline>.interval` reads offset ranges of topics and writes table partitions, `<pipeline>.validate` judges
these tables by their expectations. Format and names: openlineage.io/docs/spec.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any
from urllib.parse import urlsplit

import attr
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    DatasetFacet,
    InputDatasetFacet,
    JobFacet,
    RunFacet,
    base_subset_dataset,
    data_quality_assertions_dataset,
    dataset_version_dataset,
    error_message_run,
    job_type_job,
    nominal_time_run,
    output_statistics_output_dataset,
    parent_run,
    schema_dataset,
    set_producer,
    symlinks_dataset,
)

from include import lake
from include.catalog.columns import declared_columns, type_name
from include.intervals.verdict import Verdict
from include.ledger.intervals.findings import ExpectationResult, Severity
from include.pipelines.spec import Pipeline

PRODUCER = "urn:tidemark"
set_producer(PRODUCER)

_RUNS = uuid.UUID("6f7c1f0e-3f0b-5a43-9d3f-6a0d6a5f5b17")
"""Namespace of the identities of runs: the same attempt is the same run, however often it is sent."""

_SEVERITIES: Mapping[Severity, str] = {"fail": "error", "warn": "warn", "info": "info"}
"""By severity, OpenLineage's word for it."""


@dataclass(frozen=True)
class AttemptTold:
    """An attempt and where it ran."""

    pipeline: Pipeline
    attempt: int
    verdict: Verdict
    started_at: datetime
    ended_at: datetime
    lake: str
    """URI of the lake."""
    kafka: str
    """Bootstrap servers, host:port[,host:port]."""


@attr.define
class OffsetRange:
    """Offsets of one topic partition, `from_offset` included, `until_offset` not, and how many had each fate."""

    topic_id: str
    partition: int
    from_offset: int
    until_offset: int
    archived: int
    empty: int
    quarantined: int
    gaps: int
    erased: int


@attr.define
class OffsetRangesInputDatasetFacet(InputDatasetFacet):
    """The offset ranges of a topic that a run read; each offset has one fate."""

    ranges: list[OffsetRange]

    @staticmethod
    def _get_schema() -> str:
        name = "OffsetRangesInputDatasetFacet"
        return f"{PRODUCER}:facets:1-0-0:{name}.json#/$defs/{name}"


def events_of(told: AttemptTold) -> Iterator[RunEvent]:
    """Yield START and COMPLETE, or FAIL, of the attempt's interval, and of its validation if there was one."""
    read, written = _topics(told), _tables(told)
    interval = Job(told.lake, f"{told.pipeline.name}.interval", {"jobType": _job_type("INTERVAL")})
    failed = told.verdict.exit_code != 0
    yield from _run(told, interval, _interval_facets(told), failed=failed, inputs=read, outputs=written)
    if told.verdict.findings.validation is not None:
        job = Job(told.lake, f"{told.pipeline.name}.validate", {"jobType": _job_type("VALIDATION")})
        parent = parent_run.ParentRunFacet(
            parent_run.Run(_run_id(told, interval)), parent_run.Job(interval.namespace, interval.name)
        )
        success = told.verdict.findings.validation.success
        yield from _run(told, job, {"parent": parent}, failed=not success, inputs=_judged(told), outputs=[])


def _run(
    told: AttemptTold,
    job: Job,
    facets: Mapping[str, RunFacet],
    *,
    failed: bool,
    inputs: list[InputDataset],
    outputs: list[OutputDataset],
) -> Iterator[RunEvent]:
    run = Run(_run_id(told, job), dict(facets))
    end = RunState.FAIL if failed else RunState.COMPLETE
    for state, moment in ((RunState.START, told.started_at), (end, told.ended_at)):
        yield RunEvent(eventTime=moment.isoformat(), run=run, job=job, eventType=state, inputs=inputs, outputs=outputs)


def _run_id(told: AttemptTold, job: Job) -> str:
    return str(uuid.uuid5(_RUNS, f"{told.lake} {job.name} {told.attempt}"))


def _job_type(kind: str) -> JobFacet:
    return job_type_job.JobTypeJobFacet("BATCH", "TIDEMARK", kind)


def _interval_facets(told: AttemptTold) -> dict[str, RunFacet]:
    interval = told.verdict.interval
    facets: dict[str, RunFacet] = {
        "nominalTime": nominal_time_run.NominalTimeRunFacet(interval["from"], interval["to"]),
    }
    if told.verdict.exit_code:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(told.verdict.in_words(), "PYTHON")
    return facets


def _topics(told: AttemptTold) -> list[InputDataset]:
    namespace = f"kafka://{told.kafka.split(',')[0]}"
    ranges = sorted(told.verdict.ranges, key=lambda each: (each["topic"], each["topic_id"], each["partition"]))
    return [
        InputDataset(namespace, topic, inputFacets={"tidemark_offsetRanges": _offset_ranges(of_topic)})
        for topic, of_topic in groupby(ranges, key=lambda each: each["topic"])
    ]


def _offset_ranges(ranges: Iterable[Mapping[str, Any]]) -> OffsetRangesInputDatasetFacet:
    names = [field.name for field in attr.fields(OffsetRange)]
    return OffsetRangesInputDatasetFacet(
        [OffsetRange(**{name: each.get(name, 0) for name in names}) for each in ranges]
    )


def _tables(told: AttemptTold) -> list[OutputDataset]:
    registered = sorted(told.verdict.registered, key=lambda each: (each["table"], each["partition"]))
    return [
        OutputDataset(
            *_name(told, table),
            facets=_table_facets(told, table, partitions),
            outputFacets={
                "subset": _subset(partitions),
                "outputStatistics": output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                    rowCount=sum(each["rows"] for each in partitions)
                ),
            },
        )
        for table, grouped in groupby(registered, key=lambda each: str(each["table"]))
        for partitions in [list(grouped)]
    ]


def _name(told: AttemptTold, table: str) -> tuple[str, str]:
    """Return a table's namespace and name: the place of its files, by OpenLineage's rules for file systems."""
    parts = urlsplit(told.lake)
    if parts.scheme == "file":
        return "file", f"{lake.filesystem(told.lake)[1]}/tables/{table}"
    # Hadoop's name of S3's client is no name of a store.
    namespace = f"{'s3' if parts.scheme == 's3a' else parts.scheme}://{parts.netloc}"
    path = f"{parts.path.rstrip('/')}/tables/{table}"
    # Of a file system the name is a path, of a bucket the key of an object.
    return namespace, path if parts.scheme == "hdfs" else path.lstrip("/")


def _table_facets(told: AttemptTold, table: str, registered: Sequence[Mapping[str, Any]]) -> dict[str, DatasetFacet]:
    columns = declared_columns(told.pipeline, table)
    fields = [schema_dataset.SchemaDatasetFacetFields(each.name, type_name(each)) for each in columns.fields]
    revisions = sorted({str(each["revision"]) for each in registered})
    return {
        "schema": schema_dataset.SchemaDatasetFacet(fields),
        "version": dataset_version_dataset.DatasetVersionDatasetFacet(",".join(revisions)),
        "symlinks": symlinks_dataset.SymlinksDatasetFacet(
            [symlinks_dataset.Identifier(told.lake, f"lake.{table}", "TABLE")]
        ),
    }


def _subset(registered: Sequence[Mapping[str, Any]]) -> base_subset_dataset.OutputSubsetOutputDatasetFacet:
    partitions = [
        base_subset_dataset.Partition(
            dict(level.split("=", 1) for level in str(each["partition"]).split("/")), str(each["partition"])
        )
        for each in registered
    ]
    return base_subset_dataset.OutputSubsetOutputDatasetFacet(base_subset_dataset.PartitionSubsetCondition(partitions))


def _judged(told: AttemptTold) -> list[InputDataset]:
    validation = told.verdict.findings.validation
    assert validation is not None
    results = sorted(validation.expectations, key=lambda each: each.table)
    facet = data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet
    return [
        InputDataset(*_name(told, table), inputFacets={"dataQualityAssertions": facet([*map(_assertion, of_table)])})
        for table, of_table in groupby(results, key=lambda each: each.table)
    ]


def _assertion(result: ExpectationResult) -> data_quality_assertions_dataset.Assertion:
    # In full: rounded, an observed value would contradict its bounds.
    bounds = " to ".join("" if each is None else str(each).removesuffix(".0") for each in (result.low, result.high))
    return data_quality_assertions_dataset.Assertion(
        result.expectation,
        result.success,
        column=result.column or None,
        severity=_SEVERITIES[result.severity],
        description=result.words,
        expected=bounds if bounds != " to " else None,
        actual=result.observed or None,
    )
