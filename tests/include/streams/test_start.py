"""The start of a stream holds the queries that have started to the references' content: real Kafka and PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from include.errors import UsageError
from include.ledger.streams import generations
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline
from include.streams.start import begin
from tests.conftest import Home

pytestmark = pytest.mark.services

VIEW = "hourly_counts"
CONTENT = "content of reference device_locations"


@pytest.fixture
def pipeline(in_process: Home, tmp_path: Path) -> Pipeline:
    """nest_cameras with a reference of its own."""
    nest = load_pipeline("nest_cameras")
    reference = nest.references["device_locations"]
    own = tmp_path / "locations.csv"
    own.write_bytes(reference.path.read_bytes())
    return replace(nest, references={"device_locations": replace(reference, path=own)})


def add(pipeline: Pipeline, row: str) -> None:
    path = pipeline.references["device_locations"].path
    path.write_text(f"{path.read_text()}{row}\n")


def noted(pipeline: Pipeline) -> object:
    generation = generations.current(pipeline.name)
    assert generation is not None
    return generation.fingerprints[VIEW].get(CONTENT)


def test_stream_is_refused_when_a_row_was_added_unless_its_generation_has_not_noted_contents(
    pipeline: Pipeline,
) -> None:
    start = begin(pipeline)
    facts = dict(start.fingerprints[VIEW])
    content = facts.pop(CONTENT)
    generations.note_start(start.generation, VIEW, facts, {})
    assert noted(pipeline) is None

    begin(pipeline)
    assert noted(pipeline) == content

    add(pipeline, "cam-9999,10001")
    with pytest.raises(UsageError, match=f"{CONTENT} changed") as refused:
        begin(pipeline)
    assert "./tidemark new-generation nest_cameras --reason" in str(refused.value)
    assert noted(pipeline) == content


def test_stream_goes_on_after_an_upgrade_and_is_refused_when_an_option_of_its_decoder_changes_later(
    pipeline: Pipeline,
) -> None:
    # What 0.1.0 noted at a query's first start.
    start = begin(pipeline)
    facts = {name: value for name, value in start.fingerprints[VIEW].items() if not name.startswith("decoder's ")}
    generations.note_start(start.generation, VIEW, facts, {})

    begin(pipeline)
    generation = generations.current(pipeline.name)
    assert generation is not None
    assert generation.number == start.generation.number
    assert generation.fingerprints[VIEW] == start.fingerprints[VIEW]

    changed = replace(pipeline, decoder=replace(pipeline.decoder, max_bytes=9))
    with pytest.raises(UsageError, match="decoder's max_bytes: 1048576 → 9"):
        begin(changed)


def test_stream_is_refused_before_its_generation_is_asked_for_when_a_header_is_wrong(pipeline: Pipeline) -> None:
    before = generations.current(pipeline.name)
    pipeline.references["device_locations"].path.write_text("cam-0000,94103\n")
    with pytest.raises(UsageError, match="the first line of the reference device_locations"):
        begin(pipeline)
    assert generations.current(pipeline.name) == before
