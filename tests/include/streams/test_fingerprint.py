"""What a checkpoint depends on: changes that must be refused are named, others are none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from include.errors import UsageError
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline, Reference
from include.streams import fingerprint

TRANSFORMS = '''
"""Of this pipeline."""

from pyspark.sql import functions as F, Column

LIMIT = 1

def cameras(message):
    """Cameras."""
    return F.map_values(message["devices"]["cameras"])

def sightings(archive, references):
    # Only persons.
    return archive.where(F.col("n") > LIMIT)

def hourly_counts(sightings):
    return sightings.groupBy("zip_code").count()

def offline_cameras(archive):
    return archive
'''


@pytest.fixture
def pipeline() -> Pipeline:
    return load_pipeline("nest_cameras")


def of(pipeline: Pipeline, text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> fingerprint.Facts:
    path = folder / "spark_jobs" / "transforms" / "nest_cameras.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    monkeypatch.setattr(fingerprint, "REPOSITORY", folder)
    return fingerprint.view_fingerprint(pipeline, pipeline.views[0])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# Only persons.", "# Persons and nothing else."),
        ('"""Cameras."""', '"""The cameras of a message."""'),
        (
            "def offline_cameras(archive):\n    return archive",
            "def offline_cameras(archive):\n    return archive.limit(1)",
        ),
        ("functions as F, Column", "Column, DataFrame, functions as F"),
        ('archive.where(F.col("n") > LIMIT)', 'archive.where(\n        F.col("n") > LIMIT\n    )'),
    ],
)
def test_fingerprint_stays_when_only_words_layout_or_other_functions_change(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    assert old in TRANSFORMS
    before = of(pipeline, TRANSFORMS, tmp_path, monkeypatch)
    assert of(pipeline, TRANSFORMS.replace(old, new), tmp_path, monkeypatch) == before


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('F.col("n") > LIMIT', 'F.col("n") >= LIMIT', "transform sightings changed"),
        ("LIMIT = 1", "LIMIT = 2", "transform LIMIT changed"),
        ('groupBy("zip_code")', 'groupBy("device_id")', "transform hourly_counts changed"),
        ("from pyspark.sql import functions as F", "from mine import functions as F", "transform F changed"),
    ],
)
def test_changed_function_or_constant_is_named_when_the_view_reaches_it(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, named: str
) -> None:
    before = of(pipeline, TRANSFORMS, tmp_path, monkeypatch)
    after = of(pipeline, TRANSFORMS.replace(old, new), tmp_path, monkeypatch)
    assert fingerprint.differences(before, after)[0] == named


def test_declared_facts_are_told_old_and_new_when_they_differ(pipeline: Pipeline) -> None:
    view = pipeline.views[0]
    before = fingerprint.view_fingerprint(pipeline, view)
    changed = replace(view, speed=replace(view.speed, watermark="2h"), key=("window",))
    references = {**pipeline.references, "streets": Reference(Path("streets.csv"), "street STRING")}
    after = fingerprint.view_fingerprint(replace(pipeline, references=references), changed)
    assert fingerprint.differences(before, after) == [
        "key: zip_code, window → window",
        "reference streets: none → street STRING",
        "watermark: 1 hour → 2 hours",
    ]
    with pytest.raises(UsageError) as refused:
        fingerprint.check("nest_cameras", view.name, before, after)
    assert refused.value.exit_code == 64
    assert "watermark: 1 hour → 2 hours" in str(refused.value)
    assert "./tidemark new-generation nest_cameras --reason" in str(refused.value)


def test_column_of_the_archive_differs_when_unknown_fields_are_kept(pipeline: Pipeline) -> None:
    view = pipeline.views[0]
    keeping = replace(pipeline, decoder=replace(pipeline.decoder, unknown="keep"))  # type: ignore[call-arg]
    before, after = (fingerprint.view_fingerprint(each, view) for each in (pipeline, keeping))
    (told,) = fingerprint.differences(before, after)
    assert told.startswith("archive columns: ")
    assert told.endswith("unknown_fields STRING")
    # The archive query goes on from its checkpoint.
    assert fingerprint.archive_fingerprint(keeping) == fingerprint.archive_fingerprint(pipeline)


def with_reference(pipeline: Pipeline, path: Path, content: bytes) -> Pipeline:
    """The pipeline with this file as its reference."""
    path.write_bytes(content)
    reference = replace(pipeline.references["device_locations"], path=path)
    return replace(pipeline, references={"device_locations": reference})


def test_row_added_to_a_reference_is_refused_and_named_when_the_view_takes_it(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    view, content = pipeline.views[0], pipeline.references["device_locations"].path.read_bytes()
    before = fingerprint.view_fingerprint(pipeline, view)
    moved = with_reference(pipeline, tmp_path / "moved.csv", content)
    fingerprint.check("nest_cameras", view.name, before, fingerprint.view_fingerprint(moved, view))
    changed = with_reference(pipeline, tmp_path / "changed.csv", content + b"cam-9999,10001\n")
    with pytest.raises(UsageError, match="content of reference device_locations changed") as refused:
        fingerprint.check("nest_cameras", view.name, before, fingerprint.view_fingerprint(changed, view))
    assert './tidemark new-generation nest_cameras --reason "…"' in str(refused.value)


@pytest.mark.parametrize(
    ("rows", "counts"),
    [
        ('archive.join(references["device_locations"], "device_id")', True),
        ('archive.join(references["streets"], "device_id")', False),
        ("archive", False),
        ("joined(archive, references)", True),
        ('archive.join(references["streets"], "a").join(references[NAME], "device_id")', True),
    ],
)
def test_content_counts_only_when_the_rows_function_may_take_the_reference(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: str, counts: bool
) -> None:
    text = TRANSFORMS.replace('archive.where(F.col("n") > LIMIT)', rows)
    assert rows in text
    streets = Reference(tmp_path / "streets.csv", "street STRING")
    streets.path.write_bytes(b"street\n")
    before, after = (
        of(replace(changed, references={**changed.references, "streets": streets}), text, tmp_path, monkeypatch)
        for changed in (with_reference(pipeline, tmp_path / f"{content!r}.csv", content) for content in (b"a", b"b"))
    )
    assert (before != after) is counts


def test_generation_is_accepted_once_when_it_has_no_noted_contents(pipeline: Pipeline, tmp_path: Path) -> None:
    view = pipeline.views[0]
    now = fingerprint.view_fingerprint(pipeline, view)
    old = {name: value for name, value in now.items() if not name.startswith("content of reference ")}
    assert len(old) < len(now)
    fingerprint.check("nest_cameras", view.name, old, now)
    noted = {**old, **fingerprint.unnoted(old, now)}
    assert noted == now
    changed = fingerprint.view_fingerprint(with_reference(pipeline, tmp_path / "changed.csv", b"other"), view)
    with pytest.raises(UsageError, match="content of reference device_locations changed"):
        fingerprint.check("nest_cameras", view.name, noted, changed)


def test_reference_is_named_when_it_has_no_file(pipeline: Pipeline, tmp_path: Path) -> None:
    gone = with_reference(pipeline, tmp_path / "gone.csv", b"")
    (tmp_path / "gone.csv").unlink()
    with pytest.raises(UsageError, match="the reference device_locations cannot be read"):
        fingerprint.view_fingerprint(gone, pipeline.views[0])


def test_excerpt_shows_the_place_when_a_long_fact_differs(pipeline: Pipeline) -> None:
    decoder = replace(
        pipeline.decoder, schema=pipeline.decoder.schema.replace("client_version: INT", "client_version: BIGINT")
    )
    before = fingerprint.view_fingerprint(pipeline, pipeline.views[0])
    after = fingerprint.view_fingerprint(replace(pipeline, decoder=decoder), pipeline.views[0])
    (difference,) = fingerprint.differences(before, after)
    assert difference.startswith("decoder schema: …")
    assert "BIGINT" in difference
    assert len(difference) < 200


def test_archive_query_s_fingerprint_changes_only_when_its_sources_do(pipeline: Pipeline) -> None:
    other = replace(pipeline, decoder=replace(pipeline.decoder, schema="a STRING"), views=(), reports=())
    assert fingerprint.archive_fingerprint(other) == fingerprint.archive_fingerprint(pipeline)
    added = replace(pipeline, source=replace(pipeline.source, subscribe=("nest-logs", "more-logs")))
    found = fingerprint.differences(fingerprint.archive_fingerprint(pipeline), fingerprint.archive_fingerprint(added))
    assert found == ["source topics: nest-logs → more-logs, nest-logs"]
