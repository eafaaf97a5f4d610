"""What a micro-batch read, as its plan in the checkpoint tells; a plan that is lost or cut short is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from include.errors import CheckpointDamaged
from include.offsets import OffsetRange, TopicPartition
from include.settings import settings
from spark_jobs.spark.checkpoint import read_batch, read_line_batch

FIRST, SECOND = '{"t":{"0":4}}', '{"t":{"0":9}}'


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TIDEMARK_LAKE", tmp_path.as_uri())
    settings.cache_clear()
    made = tmp_path / "checkpoints" / "isp_hits" / "g0" / "archive"
    (made / "offsets").mkdir(parents=True)
    (made / "sources" / "0").mkdir(parents=True)
    (made / "sources" / "0" / "0").write_text('\0v1\n{"t":{"0":1}}')
    for batch, end in enumerate((FIRST, SECOND)):
        (made / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{end}')
    yield made
    settings.cache_clear()


def test_ranges_are_those_of_the_plan_when_it_is_whole(checkpoint: Path) -> None:
    tp = TopicPartition("t", 0)
    assert read_batch(checkpoint.as_uri(), 0).ranges == [OffsetRange(tp, 1, 4)]
    assert read_batch(checkpoint.as_uri(), 1).ranges == [OffsetRange(tp, 4, 9)]


@pytest.mark.parametrize("file", ["offsets/0", "offsets/1", "sources/0/0"])
@pytest.mark.parametrize(
    "content", [b"", b"v1", b"v1\n{}", b"v1\n{}\n", b'v1\n{}\n{"t', b'v1\n{"b\n{}', b"v1\n\xff", None]
)
def test_file_is_named_with_the_way_on_when_it_is_lost_or_cut_short(
    checkpoint: Path, file: str, content: bytes | None
) -> None:
    if content is None:
        (checkpoint / file).unlink()
    else:
        (checkpoint / file).write_bytes(content)
    if file == "sources/0/0" and content is not None and content.rstrip().endswith(b"{}"):
        # Whole: no topic partition was there at the start.
        return
    state = "is missing" if content is None else "cannot be read"
    with pytest.raises(CheckpointDamaged, match=f"g0/archive/{file}, of a stream's checkpoint, {state}") as damaged:
        read_batch(checkpoint.as_uri(), 0 if file == "sources/0/0" else 1)
    assert "./tidemark new-generation isp_hits --reason" in str(damaged.value)


def test_file_is_named_when_it_is_a_plan_of_lines(checkpoint: Path) -> None:
    (checkpoint / "offsets" / "1").write_text('v1\n{}\n{"file"')
    with pytest.raises(CheckpointDamaged, match="offsets/1"):
        read_line_batch(checkpoint.as_uri(), 1, since=0)
