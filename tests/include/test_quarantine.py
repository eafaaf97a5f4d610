"""Selecting quarantined records, and showing their bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from include import lake, quarantine
from include.cli.quarantine import list_records
from include.erasure.keys import Keys
from include.erasure.quarantined import find_quarantined
from include.errors import AnotherWriter, FileUnreadable, UsageError
from include.ledger import quarantine as ledger_quarantine
from include.ledger.database import session
from include.ledger.models import LandingFileRow
from include.ledger.quarantine import QuarantineFile
from include.monitor.history.quarantine import MOST_RECORDS, read_quarantine
from include.offsets import OffsetRange, TopicPartition
from include.pipelines import load_pipeline
from include.quarantine import Selection, discard, find, latest_records, printable, records, records_within, select
from include.quarantine.reading import read_file
from tests.conftest import Home
from tests.support.committed import TP, commit, commit_recreated, write_quarantined

PIPELINE = load_pipeline("nest_cameras")
ROW = {"kafka_topic": "nest-logs", "kafka_partition": 3, "kafka_offset": 0, "reason": "not_utf8"}


@pytest.mark.parametrize(
    ("wanted", "held"),
    [
        ({}, True),
        ({"partition": 3}, True),
        ({"partition": 0}, False),
        ({"partition": 3, "offset": 0}, True),
        ({"partition": 3, "offset": 1}, False),
        ({"reason": "not_utf8"}, True),
        ({"reason": "poison"}, False),
        ({"topic": "other"}, False),
    ],
)
def test_record_is_meant_when_every_selector_fits(wanted: dict[str, Any], held: bool) -> None:
    assert Selection.of(PIPELINE, **wanted).holds(ROW) is held


def test_offset_is_refused_when_its_topic_partition_is_not_named() -> None:
    with pytest.raises(UsageError, match="topic partition"):
        Selection.of(PIPELINE, "nest-logs", offset=7)


def test_topic_may_be_left_out_when_the_pipeline_reads_one() -> None:
    selection = Selection.of(PIPELINE, partition=2, offset=7)
    assert selection.range == OffsetRange(TopicPartition("nest-logs", 2), 7, 8)
    assert Selection.of(PIPELINE).everything


@pytest.mark.parametrize("value", [b"\x1b[2J\x07", b"\xff\xfe\x00", "\u202eevil\u2066".encode(), b"a\r\nb", b"", None])
def test_bytes_are_printable_when_shown(value: bytes | None) -> None:
    assert printable(value).isprintable()


def test_length_is_told_when_a_value_is_cut() -> None:
    assert printable(b"x" * 5000).endswith("(5000 bytes)")


def test_records_are_printed_as_they_are_read_when_all_are_listed_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = [{**ROW, "kafka_offset": offset, "detail": "\x85", "by": None} for offset in range(3)]
    parts: list[str] = []

    def read(*_: object, **__: object) -> Iterator[dict[str, Any]]:
        for each in listed:
            yield each
            parts.append(capsys.readouterr().out)

    monkeypatch.setattr(quarantine, "records", read)
    list_records(PIPELINE.name, as_json=True)
    assert [part.count("kafka_offset") for part in parts] == [1, 1, 1]
    assert "".join([*parts, capsys.readouterr().out]) == json.dumps(listed, indent=2) + "\n"
    list_records(PIPELINE.name, limit=2, as_json=True)
    assert json.loads("".join([*parts[3:], capsys.readouterr().out])) == listed[:2]


def test_error_names_the_command_that_finds_damage_when_a_file_has_its_size_and_other_bytes(
    tmp_path: Path, own_lake: Path
) -> None:
    path = "quarantine/nest_cameras/a.parquet"
    (tmp_path / path).parent.mkdir(parents=True)
    write_quarantined(path, [0, 1])
    file = tmp_path / path
    file.write_bytes(bytes(file.stat().st_size))
    # Without `--deep`, doctor compares sizes alone and finds nothing.
    with pytest.raises(FileUnreadable, match=f"{path} cannot be read: .* — .*/tidemark doctor --deep "):
        list(read_file("nest_cameras", QuarantineFile(path, {}), ["kafka_offset"]))


@pytest.mark.services
def test_latest_records_come_first_and_each_once_when_one_file_holds_a_day_of_micro_batches(postgres: Home) -> None:
    pipeline, count = "compacted_day", 25
    batches = [commit(pipeline, number, 10 * number, 10 * number + 10, quarantined=2) for number in range(count)]
    day_file = f"quarantine/{pipeline}/2026-11-18-0a1b2c3d4e5f.parquet"
    with session() as ledger:
        for row in ledger.query(LandingFileRow).where(LandingFileRow.micro_batch_id.in_(batches)):
            row.path = day_file
    offsets = [10 * number + each for number in range(count) for each in (0, 1)]
    write_quarantined(day_file, offsets)
    pages: list[list[int]] = []
    until: int | None = None
    while not pages or until is not None:
        latest = latest_records(pipeline, Selection(), until=until, enough=10, most=20)
        until = latest.following
        assert latest.left_out == 0
        pages.append([each["kafka_offset"] for each in latest.records])
    assert [page[0] for page in pages] == [240, 140, 40]
    assert [offset for page in pages for offset in page] == sorted(offsets, key=lambda each: (-(each // 10), each))


def committed_and_merged(pipeline: str) -> Callable[[], None]:
    """Three micro-batches with a record each; what merges their files as housekeeping does, which sets these aside."""
    paths = []
    for number in range(3):
        batch = commit(pipeline, number, 10 * number, 10 * number + 10, quarantined=1)
        with session() as ledger:
            paths += [row.path for row in ledger.query(LandingFileRow).filter_by(micro_batch_id=batch)]
        write_quarantined(paths[-1], [10 * number])

    def merge() -> None:
        day_file = f"quarantine/{pipeline}/2026-11-18-0a1b2c3d4e5f.parquet"
        write_quarantined(day_file, [0, 10, 20])
        with session() as ledger:
            for row in ledger.query(LandingFileRow).where(LandingFileRow.path.in_(paths)):
                row.path = day_file
        for path in paths:
            lake.delete_file(lake.uri(path))

    return merge


def all_found(pipeline: str) -> list[int]:
    return sorted(each.offset for each in find_quarantined(pipeline, Keys(["k"])))


@pytest.mark.services
def test_nothing_is_called_lost_when_files_are_merged_while_they_are_read(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge = committed_and_merged(pipeline)
    listed = records(pipeline)
    assert next(listed)["kafka_offset"] == 0
    files = ledger_quarantine.files(pipeline)
    merge()
    with pytest.raises(AnotherWriter, match=r"was merged, or written anew") as raised:
        list(listed)
    assert raised.value.exit_code == 5
    with monkeypatch.context() as before:
        before.setattr(ledger_quarantine, "files", lambda *_, **__: files)
        with pytest.raises(AnotherWriter, match=r"was merged, or written anew"):
            all_found(pipeline)
    assert [each["kafka_offset"] for each in records(pipeline)] == all_found(pipeline) == [0, 10, 20]


@pytest.mark.services
@pytest.mark.parametrize(
    "read",
    [
        lambda pipeline: [each["kafka_offset"] for each in records_within(pipeline, OffsetRange(TP, 0, 30), 10)],
        lambda pipeline: sorted(
            each["kafka_offset"]
            for each in latest_records(pipeline, Selection(), until=None, enough=10, most=10).records
        ),
        lambda pipeline: sorted(each.key.offset for each in select(pipeline, Selection())),
    ],
)
def test_records_are_read_again_when_files_are_merged_after_they_were_listed(
    pipeline: str, monkeypatch: pytest.MonkeyPatch, read: Callable[[str], list[int]]
) -> None:
    merge = committed_and_merged(pipeline)
    files = ledger_quarantine.files
    looks: list[None] = []

    def listed_before(*asked: Any, **named: Any) -> Iterator[QuarantineFile]:
        found = files(*asked, **named)
        if not looks:
            merge()
        looks.append(None)
        return found

    monkeypatch.setattr(ledger_quarantine, "files", listed_before)
    assert read(pipeline) == [0, 10, 20]
    assert len(looks) == 2


@pytest.mark.services
def test_file_is_unreadable_when_it_is_missing_and_the_ledger_names_it(pipeline: str) -> None:
    committed_and_merged(pipeline)
    for file in ledger_quarantine.files(pipeline):
        lake.delete_file(lake.uri(file.path))
    for reading in (lambda: [*records(pipeline)], lambda: all_found(pipeline)):
        with pytest.raises(FileUnreadable, match="put it back"):
            reading()


@pytest.mark.services
def test_timestamp_is_shown_in_milliseconds_when_python_cannot_hold_it(pipeline: str) -> None:
    batch = commit(pipeline, 0, 0, 10, quarantined=2)
    with session() as ledger:
        (path,) = [row.path for row in ledger.query(LandingFileRow).filter_by(micro_batch_id=batch)]
    write_quarantined(path, [0, 1], timestamps=pa.array([0, 1763615107000 * 10**6], pa.timestamp("us", "UTC")))
    shown = ["1970-01-01T00:00:00Z", "1763615107000000 ms"]
    assert [each["kafka_timestamp"] for each in records(pipeline)] == shown
    assert [each["kafka_timestamp"] for each in records_within(pipeline, OffsetRange(TP, 0, 9), 10)] == shown
    assert find(pipeline, TP, 1)["kafka_timestamp"] == shown[1]
    assert {each.offset for each in find_quarantined(pipeline, Keys(["k"]))} == {0, 1}


@pytest.mark.services
def test_record_of_the_named_topic_id_is_taken_when_a_topic_was_recreated(postgres: Home) -> None:
    pipeline = "recreated_and_found"
    commit_recreated(pipeline)
    for topic_id, value in (("id", b"older"), ("newer", b"newer")):
        assert find(pipeline, TP, 5, topic_id)["value"] == value
        (row,) = records_within(pipeline, OffsetRange(TP, 5, 6, topic_id), 10)
        assert row["topic_id"] == topic_id
    counts = discard(pipeline, Selection("events", 0, 5, topic_id="newer"), reason="a test", by="ada")
    assert (counts["selected"], counts["discarded"]) == (1, 1)
    assert [find(pipeline, TP, 5, each)["state"] for each in ("id", "newer")] == ["quarantined", "discarded"]


@pytest.mark.services
def test_both_topic_ids_are_named_when_an_offset_means_two_records(postgres: Home) -> None:
    pipeline = "recreated_and_refused"
    commit_recreated(pipeline)
    with pytest.raises(UsageError, match="events-0 offset 5 is in quarantine for each of the topic ids id, newer"):
        find(pipeline, TP, 5)
    with pytest.raises(UsageError, match="topic ids id, newer"):
        discard(pipeline, Selection("events", 0, 5), reason="a test", by="ada")
    with pytest.raises(UsageError, match="offset 5 is not in quarantine"):
        find(pipeline, TP, 5, "another")


@pytest.mark.services
def test_offset_of_the_new_topic_is_not_in_quarantine_when_only_its_namesake_is(postgres: Home) -> None:
    pipeline = "recreated_and_archived"
    commit_recreated(pipeline, newer=0)
    assert records_within(pipeline, OffsetRange(TP, 5, 6, "newer"), 1) == []
    assert find(pipeline, TP, 5)["value"] == b"older"


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows become Python's values, each time."""
    made, python_rows = [], lake.python_rows

    def recording(rows: pa.Table) -> list[dict[str, Any]]:
        made.append(rows.num_rows)
        return python_rows(rows)

    monkeypatch.setattr(lake, "python_rows", recording)
    return made


@pytest.mark.services
def test_only_the_record_is_taken_from_its_file_when_one_offset_is_asked_for(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = commit(pipeline, 0, 0, 100, quarantined=100)
    with session() as ledger:
        (path,) = [row.path for row in ledger.query(LandingFileRow).filter_by(micro_batch_id=batch)]
    write_quarantined(path, list(range(100)))
    made = recorded(monkeypatch)
    assert find(pipeline, TP, 7)["kafka_offset"] == 7
    assert [each["kafka_offset"] for each in records_within(pipeline, OffsetRange(TP, 40, 42), 9)] == [40, 41]
    assert records_within(pipeline, OffsetRange(TP, 40, 40), 9) == []
    discard(pipeline, Selection("events", 0, 8), reason="a test", by="ada")
    assert made == [1, 2, 1]


@pytest.mark.services
def test_others_are_counted_and_not_looked_up_when_a_micro_batch_has_more_than_a_page_lists(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = MOST_RECORDS + 100
    batch = commit(pipeline, 0, 0, count, quarantined=count)
    with session() as ledger:
        (path,) = [row.path for row in ledger.query(LandingFileRow).filter_by(micro_batch_id=batch)]
    write_quarantined(path, list(range(count)))
    decided, decisions = [], ledger_quarantine.decisions

    def recording(name: str, offsets: set[int]) -> Any:
        decided.append(len(offsets))
        return decisions(name, offsets)

    monkeypatch.setattr(ledger_quarantine, "decisions", recording)
    now, more = datetime.now(UTC), {"reason": "", "until": None, "may_act": False, "replay": None, "token": ""}
    page = read_quarantine(replace(PIPELINE, name=pipeline), now=now, **more)
    assert [each["kafka_offset"] for each in page.records] == list(range(MOST_RECORDS))
    assert (page.left_out, page.following) == (100, None)
    assert decided == [MOST_RECORDS]
