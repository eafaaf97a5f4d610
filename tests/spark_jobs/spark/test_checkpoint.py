"""What a micro-batch read, as its plan in the checkpoint tells; a plan that is lost or cut short is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from include.errors import CheckpointDamaged
from include.offsets import OffsetRange, TopicPartition
from include.settings import settings
from spark_jobs.spark.checkpoint import checkpoint_damaged, read_batch, read_line_batch
from spark_jobs.spark.thrown import Thrown

FIRST, SECOND = '{"t":{"0":4}}', '{"t":{"0":9}}'


@pytest.fixture
def checkpoint(own_lake: Path) -> Path:
    made = own_lake / "checkpoints" / "isp_hits" / "g0" / "archive"
    (made / "offsets").mkdir(parents=True)
    (made / "sources" / "0").mkdir(parents=True)
    (made / "sources" / "0" / "0").write_text('\0v1\n{"t":{"0":1}}')
    for batch, end in enumerate((FIRST, SECOND)):
        (made / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{end}')
    return made


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


ILLEGAL = ("java.lang.IllegalStateException", "java.lang.RuntimeException")
SPARK = ("org.apache.spark.SparkException", "java.lang.Exception")
STREAMING = "org.apache.spark.sql.execution.streaming."
LOG = f"{STREAMING}checkpointing.HDFSMetadataLog"
PLACE = "{}/checkpoints/isp_hits/g0/hits_by_zip"

# As Spark 4.2 throws them.
DAMAGED = {
    "offsets/2,": Thrown(ILLEGAL, f"Failed to read log file {PLACE}/offsets/2. Incomplete log file", LOG, "", {}),
    "take up a stream's checkpoint: batch 1 doesn't exist": Thrown(
        ILLEGAL, "batch 1 doesn't exist", f"{STREAMING}runtime.MicroBatchExecution", "", {}
    ),
    "hits_by_zip/metadata,": Thrown(
        SPARK, "", "", "STREAMING_CHECKPOINT_MISSING_METADATA_FILE", {"checkpointLocation": PLACE}
    ),
    "take up a stream's checkpoint: Cannot restart": Thrown(
        SPARK, "Cannot restart", "", "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY", {}
    ),
    "hits_by_zip/state/0/0/1.delta,": Thrown(
        *(SPARK, "", "", "CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_NOT_EXISTS"),
        {"fileToRead": f"{PLACE}/state/0/0/1.delta"},
        "java.io.FileNotFoundException",
    ),
    "the state of a speed view cannot be read": Thrown(
        SPARK, "", "", "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED", {}, "java.io.EOFException"
    ),
}


@pytest.mark.parametrize("named", DAMAGED)
def test_new_generation_is_named_when_spark_cannot_read_a_file_of_the_checkpoint(checkpoint: Path, named: str) -> None:
    # Hadoop's spelling of the lake's root.
    root = settings().lake_uri.replace("file:///", "file:/")
    thrown = DAMAGED[named]
    parameters = {name: value.format(root) for name, value in thrown.parameters.items()}
    meaning = checkpoint_damaged(replace(thrown, message=thrown.message.format(root), parameters=parameters))
    assert meaning is not None
    assert named in meaning.message
    assert "./tidemark new-generation " in meaning.remedy
    if named.startswith(("offsets", "hits_by_zip")):
        assert meaning.message.startswith("checkpoints/isp_hits/g0/hits_by_zip/")
        assert "new-generation isp_hits" in meaning.remedy


@pytest.mark.parametrize(
    "thrown",
    [
        Thrown(ILLEGAL, "Failed to read log file x. Incomplete log file", "com.acme.Decoder", "", {}),
        Thrown(("com.acme.Failed",), "CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_NOT_EXISTS", LOG, "", {}),
        # A disk or a store that may answer later.
        Thrown(SPARK, "", "", "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED", {}, "java.io.IOException"),
        Thrown(("java.io.EOFException",), "Stream ended prematurely", "java.io.DataInputStream", "", {}),
    ],
)
def test_checkpoint_is_not_blamed_when_only_the_words_or_the_cause_are_like_it(thrown: Thrown) -> None:
    assert checkpoint_damaged(thrown) is None
