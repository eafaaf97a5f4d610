"""Versions change with the declared facts that decide about rows, and with no others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from include import versions
from include.errors import UsageError
from include.pipelines import load_pipeline
from include.pipelines.spec import Between, EventTimeWithin, Pipeline, Required, TimeWindow, UserDefined, every
from tests.support.versions import ALL, all_versions, clear, differing


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    clear()
    yield
    clear()


def with_archive(pipeline: Pipeline, **changes: Any) -> Pipeline:
    return replace(pipeline, archive=replace(pipeline.archive, **changes))


def with_view(pipeline: Pipeline, **changes: Any) -> Pipeline:
    return replace(pipeline, views=(replace(pipeline.views[0], **changes), *pipeline.views[1:]))


def with_decoder(pipeline: Pipeline, **changes: Any) -> Pipeline:
    return replace(pipeline, decoder=replace(pipeline.decoder, **changes))  # type: ignore[type-var]


NEST = load_pipeline("nest_cameras")
GPS = load_pipeline("gps_positions")
RULES = NEST.archive.rules
OTHER_BOUNDS = tuple(EventTimeWithin("31d", "1h") if isinstance(each, EventTimeWithin) else each for each in RULES)

DECLARED = {
    "a rule": (with_archive(NEST, rules=(*RULES, Required("name"))), ALL),
    "a rule's bound": (with_archive(NEST, rules=OTHER_BOUNDS), ALL),
    "the order of rules": (with_archive(NEST, rules=RULES[::-1]), ALL),
    "a column": (with_archive(NEST, columns=f"{NEST.archive.columns}, more INT"), ALL),
    "a partition column, which must be safe": (with_archive(NEST, partition_by={"w": "where_id"}), ALL),
    "a format that changes values": (with_archive(NEST, file_format="orc"), ALL),
    "the decoder's limit": (with_decoder(NEST, max_bytes=1), ALL),
    "the decoder's schema": (with_decoder(NEST, schema="a INT"), ALL),
    "what becomes of unknown fields": (with_decoder(NEST, unknown="keep"), ALL),
    "the decoder": (replace(NEST, decoder=UserDefined("os.path:join", "a INT")), ALL),
    "a view's key": (with_view(NEST, key=("window", "zip_code")), {"code", "hourly_counts"}),
    "a view's windows": (with_view(NEST, windows=TimeWindow("2h")), {"code", "hourly_counts"}),
    "a description": (replace(NEST, description="Other words"), set()),
    "the archive's description": (with_archive(NEST, description="other words"), set()),
    "a view's description": (with_view(NEST, description="other words"), set()),
    "the layout of columns": (with_archive(NEST, columns=" ".join(NEST.archive.columns.split())), set()),
    "the reports": (replace(NEST, reports=()), set()),
    "the schedule": (replace(NEST, schedule=every("15m")), set()),
    "the topics": (replace(NEST, source=replace(NEST.source, subscribe=("others",))), set()),
    "the Delta archive": (with_archive(NEST, delta=True), set()),
    "an Iceberg table": (with_archive(NEST, iceberg=True), set()),
    "an Iceberg table of a view": (with_view(NEST, iceberg=True), set()),
    "where a view goes": (with_view(NEST, speed=replace(NEST.views[0].speed, topic="others", watermark="2h")), set()),
}  # fmt: skip


@pytest.mark.parametrize("kind", DECLARED)
def test_versions_change_when_a_fact_decides_about_rows(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    pipeline, expected = DECLARED[kind]
    before = all_versions("nest_cameras")
    monkeypatch.setattr(versions, "load_pipeline", lambda name: pipeline)
    assert differing(before, all_versions("nest_cameras")) == expected


def test_code_alone_changes_when_a_file_format_that_every_value_fits_is_declared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = with_archive(
        replace(NEST, reports=()), columns="device_id STRING, at TIMESTAMP", event_time="at", rules=()
    )
    monkeypatch.setattr(versions, "load_pipeline", lambda name: pipeline)
    before = all_versions("nest_cameras")
    monkeypatch.setattr(versions, "load_pipeline", lambda name: with_archive(pipeline, file_format="avro"))
    assert differing(before, all_versions("nest_cameras")) == {"code"}


def test_version_stays_when_only_documentation_or_layout_of_an_avro_schema_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = versions.decoder_version("gps_positions")
    clear()
    schema = GPS.decoder.schema.replace('"type": "record",', '"type":   "record", "doc": "Words.",', 1)  # type: ignore[union-attr]
    assert "Words" in schema
    monkeypatch.setattr(versions, "load_pipeline", lambda name: with_decoder(GPS, schema=schema))
    assert versions.decoder_version("gps_positions") == before
    clear()
    failing = with_decoder(GPS, mode="FAILFAST")
    monkeypatch.setattr(versions, "load_pipeline", lambda name: failing)
    assert versions.decoder_version("gps_positions") != before


def test_code_and_view_change_when_a_reference_s_content_does_and_not_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = all_versions("nest_cameras")
    reference = NEST.references["device_locations"]
    moved = tmp_path / "elsewhere.csv"
    moved.write_bytes(reference.path.read_bytes())
    pipeline = replace(NEST, references={"device_locations": replace(reference, path=moved)})
    monkeypatch.setattr(versions, "load_pipeline", lambda name: pipeline)
    assert all_versions("nest_cameras") == before
    moved.write_bytes(reference.path.read_bytes() + b"d-1,12345\n")
    assert differing(before, all_versions("nest_cameras")) == {"code", "hourly_counts"}


def test_flags_change_when_their_columns_or_topic_do_and_not_the_learning_of_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bids = load_pipeline("auction_bids")
    assert bids.flags is not None
    before = versions.rules_version("auction_bids")
    for flags, is_same in (
        (replace(bids.flags, columns=("bid_id",)), False),
        # Those raised before are in the other topic.
        (replace(bids.flags, topic="others"), False),
        (replace(bids.flags, learned_over="8d", learned_from=("pair_hours",)), True),
    ):
        monkeypatch.setattr(versions, "load_pipeline", lambda name, flags=flags: replace(bids, flags=flags))
        clear()
        assert (versions.rules_version("auction_bids") == before) is is_same


def test_version_changes_when_the_bounds_of_a_number_do(monkeypatch: pytest.MonkeyPatch) -> None:
    before = versions.decoder_version("gps_positions")
    clear()
    wider = (replace(each, high=each.high + 1) if isinstance(each, Between) else each for each in GPS.archive.rules)
    pipeline = with_archive(GPS, rules=tuple(wider))
    monkeypatch.setattr(versions, "load_pipeline", lambda name: pipeline)
    assert versions.decoder_version("gps_positions") != before


@pytest.mark.parametrize(
    ("pipeline", "version", "said"),
    [
        (with_archive(NEST, rows="camera"), "decoder", "spark_jobs/transforms/nest_cameras.py has no camera"),
        (with_view(NEST, aggregate="camera"), "code", "spark_jobs/transforms/nest_cameras.py has no camera"),
        (replace(NEST, declared_as="isp_hits_"), "suite", "expectations/isp_hits_.py has no SUITES"),
    ],
)
def test_function_or_suite_that_is_not_there_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, pipeline: Pipeline, version: str, said: str
) -> None:
    monkeypatch.setattr(versions, "load_pipeline", lambda name: pipeline)
    with pytest.raises(UsageError, match=said):
        getattr(versions, f"{version}_version")(NEST.name)
