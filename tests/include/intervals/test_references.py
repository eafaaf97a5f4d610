"""An interval is built by the references' content that it was built by then: real lake and ledger."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from include import lake
from include.errors import UsageError
from include.intervals import references
from include.intervals.references import as_file, keep_content, keep_references, references_of
from include.intervals.reporting import plan
from include.intervals.reporting.plan import plan_interval
from include.ledger.database import session
from include.ledger.intervals import attempts, builds, pins
from include.ledger.intervals.builds import Changes
from include.ledger.intervals.findings import BuildFindings, RecordCounts, Validation
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.intervals.states import Source
from include.ledger.lineage import BuiltRevision
from include.pipelines import load_pipeline
from include.pipelines.spec import CatalogTable, Pipeline
from include.pipelines.spec.references import numbered_lines
from include.reconciliation import ReconciliationCounts
from include.versions import code_version, view_version
from tests.conftest import Home
from tests.support.topic_log import hour

NAME = "device_locations"
NEST = load_pipeline("nest_cameras")


@pytest.fixture
def with_reference(postgres: Home, tmp_path: Path) -> Pipeline:
    """A pipeline with a reference of its own, as long as nest_cameras'."""
    own = tmp_path / "locations.csv"
    own.write_bytes(NEST.references[NAME].path.read_bytes())
    name = re.sub(r"\W", "_", tmp_path.name).lower()
    return replace(NEST, name=name, references={NAME: replace(NEST.references[NAME], path=own)})


def pinned(pipeline: Pipeline) -> PinnedInterval:
    with session() as ledger:
        return pins.write(ledger, pipeline.name, hour(0), [], {}, pinned_by="test@host")


def built_by(
    pinned: PinnedInterval, contents: Mapping[str, str], *, registered: bool = True, changed: bool = True
) -> None:
    """Note a build of the interval by these contents; one that is registered may have changed nothing of what was."""
    attempt = attempts.begin_attempt(pinned, run_by="test", code_version="1", source="kafka")
    label = f"interval={pinned.interval.label}"
    built = BuiltRevision(pinned.pipeline, label, f"r-{attempt}", "file:///nowhere", 1, f"hash {attempt}", {})
    findings = BuildFindings((), {}, RecordCounts(), ReconciliationCounts(), references=contents)
    builds.note_build(attempts.load_attempt(attempt), [built], findings)
    if registered:
        passed, changes = Validation(True, pinned.pipeline), Changes(points=(built,) if changed else ())
        builds.finish_registration(builds.begin_registration(attempts.load_attempt(attempt), passed, changes))


def add(pipeline: Pipeline, row: str) -> None:
    path = pipeline.references[NAME].path
    path.write_text(f"{path.read_text()}{row}\n")


def lines(pipeline: Pipeline) -> list[str]:
    return [line for _, line in numbered_lines(NAME, pipeline.references[NAME])]


def test_content_of_the_registered_build_is_used_when_a_row_was_added_since(with_reference: Pipeline) -> None:
    interval, then, rows = pinned(with_reference), keep_references(with_reference), lines(with_reference)
    built_by(interval, then)
    add(with_reference, "cam-9999,10001")
    now = keep_references(with_reference)
    # A build that was never registered does not count.
    built_by(interval, now, registered=False)
    with references_of(with_reference, interval, anew=False) as (used, contents):
        assert lines(used) == rows
        assert contents == then
    with references_of(with_reference, interval, anew=True) as (used, contents):
        assert lines(used) == [*rows, "cam-9999,10001"]
        assert contents == now == {NAME: hashlib.sha256(with_reference.references[NAME].path.read_bytes()).hexdigest()}
    built_by(interval, now)
    with references_of(with_reference, interval, anew=False) as (used, contents):
        assert (used.references, contents) == (with_reference.references, now)


def test_content_of_the_last_published_build_is_used_when_it_changed_nothing_of_what_is_registered(
    with_reference: Pipeline,
) -> None:
    interval = pinned(with_reference)
    built_by(interval, keep_references(with_reference))
    add(with_reference, "cam-9999,10001")
    anew, rows = keep_references(with_reference), lines(with_reference)
    built_by(interval, anew, changed=False)
    add(with_reference, "cam-9998,10002")
    with references_of(with_reference, interval, anew=False) as (pipeline, contents):
        assert contents == anew
        assert lines(pipeline) == rows


@pytest.mark.parametrize("noted", [False, True])
def test_what_the_file_holds_now_is_used_when_no_content_is_noted(with_reference: Pipeline, noted: bool) -> None:
    interval = pinned(with_reference)
    if noted:
        # Registered by code that did not note contents.
        built_by(interval, {})
    with references_of(with_reference, interval, anew=False) as (used, contents):
        assert used.references == with_reference.references
        assert contents == keep_references(with_reference)


@pytest.mark.parametrize("altered", [False, True])
def test_build_is_refused_with_the_reason_when_the_content_of_then_is_gone_or_altered(
    with_reference: Pipeline, altered: bool
) -> None:
    interval, then = pinned(with_reference), keep_references(with_reference)
    built_by(interval, then)
    add(with_reference, "cam-9999,10001")
    location = references._location(with_reference, NAME, then[NAME])
    if altered:
        lake.write_text(location, "device_id,zip_code\n")
    else:
        lake.delete_file(location)
    with (
        pytest.raises(UsageError, match="was altered" if altered else "is gone") as refused,
        references_of(with_reference, interval, anew=False),
    ):
        pass
    assert refused.value.exit_code == 64
    assert f"another content of the reference {NAME} ({then[NAME][:12]})" in str(refused.value)
    assert "--new-references" in str(refused.value)


def test_build_is_refused_with_the_way_on_when_a_column_was_added_since(with_reference: Pipeline) -> None:
    interval, then = pinned(with_reference), keep_references(with_reference)
    built_by(interval, then)
    reference = with_reference.references[NAME]
    header, *rows = reference.path.read_text().splitlines()
    reference.path.write_text("\n".join([f"{header},city", *(f"{each},Paris" for each in rows)]) + "\n")
    wider = replace(reference, columns=f"{reference.columns}, city string")
    pipeline = replace(with_reference, references={NAME: wider})
    with pytest.raises(UsageError) as refused, references_of(pipeline, interval, anew=False):
        pass
    assert f"{interval.interval} was built with another content of the reference {NAME} ({then[NAME][:12]})" in str(
        refused.value
    )
    assert f"that content has the columns {header!r}, declared are '{header},city'" in refused.value.message
    assert "--new-references" in refused.value.remedy
    with references_of(pipeline, interval, anew=True) as (used, _):
        assert lines(used)[0].endswith(",Paris")


def test_stream_is_told_the_way_on_when_the_content_of_its_generation_has_other_columns(
    with_reference: Pipeline,
) -> None:
    from_table = replace(with_reference.references[NAME], path=Path(), source=CatalogTable("lake.devices"))
    pipeline = replace(with_reference, references={NAME: from_table})
    digest = keep_content(pipeline, NAME, ["cam-1,10001"])
    assert as_file(pipeline, NAME, digest).path.read_text().endswith("\ncam-1,10001\n")
    wider = replace(pipeline, references={NAME: replace(from_table, columns=f"{from_table.columns}, city string")})
    with pytest.raises(UsageError, match=rf"content {digest[:12]} of the reference {NAME} is needed") as refused:
        as_file(wider, NAME, digest)
    assert "has the columns" in refused.value.message
    assert "new-generation" in refused.value.remedy
    assert "--new-references" in refused.value.remedy


def test_versions_are_those_of_the_used_content_when_an_interval_is_built() -> None:
    digest = hashlib.sha256(NEST.references[NAME].path.read_bytes()).hexdigest()
    versions = (
        lambda *used: code_version(NEST.name, *used),
        lambda *used: view_version(NEST.name, "hourly_counts", *used),
    )
    for of in versions:
        assert of(((NAME, digest),)) == of()
        assert of(((NAME, "0" * 64),)) != of()


def test_plan_expects_other_rows_when_references_that_have_changed_are_read_anew(
    with_reference: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "code_version", lambda _: "1")
    known = pinned(with_reference)
    built_by(known, keep_references(with_reference))
    planned = partial(plan_interval, with_reference, known.interval, source=Source.KAFKA, new_references=True)
    assert planned(repin=False)[-1].startswith("would change nothing")
    assert planned(repin=True)[-1] == "would replace rows that differ because of late records"
    add(with_reference, "cam-9999,10001")
    assert planned(repin=False, new_references=False)[-1].startswith("would change nothing")
    because = "would replace rows that differ because of"
    assert planned(repin=False)[-1] == f"{because} the reference device_locations"
    assert planned(repin=True)[-1] == f"{because} late records and the reference device_locations"


def test_plan_names_the_intervals_that_are_pinned_too_when_it_has_no_ranges(with_reference: Pipeline) -> None:
    def planned(number: int) -> list[str]:
        return plan_interval(with_reference, hour(number), source=Source.KAFKA, repin=False)

    assert "would pin, too: those from the topics' first record to it, if no more than 48" in planned(3)
    with session() as ledger:
        for number in (0, 5, 200):
            pins.write(ledger, with_reference.name, hour(number), [], {}, pinned_by="test@host")
    assert f"would pin, too: 2 intervals before it, from {hour(1)} on" in planned(3)
    assert f"would pin, too: 1 interval after it, until {hour(4)}" in planned(3)
    assert not any("too" in each for each in planned(100))
