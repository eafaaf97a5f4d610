"""The decoder's version changes with what decoding depends on, and with nothing else."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from include import versions
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline, Required
from tests.conftest import REPOSITORY


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(REPOSITORY / "spark_jobs", tmp_path / "spark_jobs")
    monkeypatch.setattr(versions, "REPOSITORY", tmp_path)
    return tmp_path


def version(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(versions, "load_pipeline", lambda name: pipeline)
    versions.decoder_version.cache_clear()
    found = versions.decoder_version(pipeline.name)
    versions.decoder_version.cache_clear()
    return found


@pytest.mark.parametrize(
    "file",
    [
        "spark_jobs/transforms/nest_cameras.py",
        "spark_jobs/decoding/records.py",
        "spark_jobs/decoding/strict_json.py",
        "spark_jobs/spark/schemas.py",
    ],
)
def test_version_changes_when_decoding_code_changes(checkout: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    pipeline = load_pipeline("nest_cameras")
    before = version(pipeline, monkeypatch)
    (checkout / file).write_text((checkout / file).read_text() + "\n")
    assert version(pipeline, monkeypatch) != before


def test_version_changes_with_the_declared_rules_and_not_with_views_or_reports(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = load_pipeline("nest_cameras")
    before = version(pipeline, monkeypatch)
    stricter = replace(pipeline.archive, rules=(*pipeline.archive.rules, Required("name")))
    assert version(replace(pipeline, archive=stricter), monkeypatch) != before
    assert version(replace(pipeline, views=(), reports=()), monkeypatch) == before
    assert version(replace(pipeline, archive=replace(pipeline.archive, delta=True)), monkeypatch) == before
    (checkout / "spark_jobs" / "table_writer.py").write_text("")
    assert version(pipeline, monkeypatch) == before
