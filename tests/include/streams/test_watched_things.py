"""Watched reports that are declared by another key, before a stream goes on: without a ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest

from include.errors import UsageError
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline, Report
from include.streams import watched_things
from include.streams.watched_things import check_watched_things

NEST = load_pipeline("nest_cameras")
(REPORT,) = NEST.watched_reports


def declared(*key: str, renamed: dict[str, str] | None = None) -> Pipeline:
    report = replace(REPORT, key=key, columns=(*key, "last_is_online_change"))
    archive = NEST.archive
    for now, before in (renamed or {}).items():
        columns = archive.columns.replace(f"{before} STRING", f"{now} STRING", 1)
        archive = replace(archive, columns=columns, subject=now, rules=(), renamed={now: before})
    return replace(NEST, archive=archive, reports=(report,))


@pytest.fixture
def down(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Keys of what is down."""
    keys: set[str] = set()
    monkeypatch.setattr(watched_things.outages, "open_keys", lambda pipeline, report: frozenset(keys))
    monkeypatch.setattr(
        watched_things.outages,
        "open_of_others",
        lambda pipeline, watched: {REPORT.title: len(keys)} if keys and REPORT.title not in watched else {},
    )
    return keys


def test_stream_is_refused_when_outages_last_that_began_by_another_key(down: set[str]) -> None:
    down |= {'{"device_id": "a"}', '{"device_id": "b"}'}
    with pytest.raises(UsageError, match="but 2 outages last that began by the key device_id: nothing") as refused:
        check_watched_things(declared("device_id", "structure_id"))
    assert "give the report another title" in refused.value.remedy
    assert refused.value.pipeline == NEST.name


def test_stream_goes_on_when_no_outage_lasts_or_its_key_is_still_found(down: set[str]) -> None:
    check_watched_things(declared("device_id", "structure_id"))
    down.add('{"device_id": "a"}')
    check_watched_things(declared("device_id"))
    check_watched_things(declared("camera_id", renamed={"camera_id": "device_id"}))


@pytest.mark.parametrize("reports", [(), (replace(REPORT, up=""),)], ids=["taken out", "no longer watched"])
def test_lasting_outages_are_told_when_nothing_watches_them_any_more(
    down: set[str], caplog: pytest.LogCaptureFixture, reports: tuple[Report, ...]
) -> None:
    check_watched_things(replace(NEST, reports=reports))
    assert not caplog.records
    down |= {'{"device_id": "a"}', '{"device_id": "b"}'}
    check_watched_things(replace(NEST, reports=reports))
    (told,) = caplog.messages
    assert f"2 outages of the report {REPORT.title!r} last, which is no longer watched" in told
    assert "declare the report with its title, key and `up` again" in told


def test_watch_stays_the_same_when_its_columns_are_renamed_and_not_when_others_are_named() -> None:
    before, after = declared("device_id"), declared("camera_id", renamed={"camera_id": "device_id"})

    def watched_as(pipeline: Pipeline) -> list[str]:
        return pipeline.watched_reports[0].watched_as(pipeline.archive.formerly)

    assert watched_as(before)[0] in watched_as(after)
    other_key, other_column = replace(REPORT, key=("name_long",)), replace(REPORT, up="is_streaming")
    for other in (other_key, other_column, replace(REPORT, title="other")):
        assert not {*REPORT.watched_as({})} & {*other.watched_as({})}
    two = replace(REPORT, columns=("a", "b"), key=("a", "b"))
    assert two.watched_as({}) == replace(two, key=("b", "a")).watched_as({})
