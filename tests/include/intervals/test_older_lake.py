"""A lake that is an older copy than the ledger, and a checkpoint that cannot be read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from include import lake
from include.errors import CheckpointDamaged, UsageError
from include.intervals import lake_of_ledger
from include.intervals.lake_of_ledger import (
    OF_OTHER_LEDGER,
    UNREADABLE,
    check_checkpoints,
    check_lake,
    kept_checkpoints,
    lake_error,
)
from include.ledger.archive.micro_batches import ARCHIVE
from include.ledger.streams import generations
from include.ledger.streams.flags import FLAGS
from include.ledger.streams.generations import StreamGeneration
from include.offsets import TopicPartition
from include.pipelines import load_pipeline
from tests.conftest import SetSettings

PIPELINE = load_pipeline("isp_hits")
VIEW = PIPELINE.views[0].name
CURRENT = StreamGeneration(PIPELINE.name, 3, {}, {})
NEW = "./tidemark new-generation isp_hits --reason"


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_settings: SetSettings) -> Path:
    """The folder of the pipeline's checkpoints, of which the third generation is the current one."""
    set_settings(TIDEMARK_LAKE=tmp_path.as_uri(), TIDEMARK_DATABASE_URL="postgresql://ledger/ledger")
    monkeypatch.setattr(generations, "current", lambda _: CURRENT)
    return tmp_path / "checkpoints" / PIPELINE.name


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The last committed micro-batch of each query id."""
    last: dict[str, int] = {}
    monkeypatch.setattr(lake_of_ledger, "last_batch_id", lambda query_id: last.get(query_id, -1))
    monkeypatch.setattr(lake_of_ledger, "check_version", lambda: None)
    return last


def write(checkpoint: Path, query_id: str, *, planned: tuple[int, ...] = (), committed: tuple[int, ...] = ()) -> None:
    plan, commit = 'v1\n{}\n{"isp-hits":{"0":7}}\n-', "v1\n{}"
    for folder, batches, content in (("offsets", planned, plan), ("commits", committed, commit)):
        (checkpoint / folder).mkdir(parents=True, exist_ok=True)
        for batch in batches:
            (checkpoint / folder / str(batch)).write_text(content)
            (checkpoint / folder / f".{batch}.crc").write_bytes(b"crc")
    (checkpoint / "metadata").write_text(json.dumps({"id": query_id}))


def test_lake_is_refused_when_the_ledger_has_a_micro_batch_that_was_never_planned_there(
    checkpoints: Path, ledger: dict[str, int]
) -> None:
    write(checkpoints / "g3" / ARCHIVE, "id", planned=(4, 5), committed=(4, 5))
    ledger["id"] = 10
    error = lake_error(PIPELINE)
    assert isinstance(error, UsageError)
    assert "has micro-batch 10 of archive in generation 3" in error.message
    assert "g3/archive ends at micro-batch 5: the lake is an older copy than the ledger" in error.message
    assert NEW in error.remedy
    # A copy from before the first micro-batch.
    for file in (checkpoints / "g3" / ARCHIVE / "offsets").iterdir():
        file.unlink()
    for file in (checkpoints / "g3" / ARCHIVE / "commits").iterdir():
        file.unlink()
    with pytest.raises(UsageError, match="g3/archive has none: the lake is an older copy"):
        check_lake(PIPELINE)


@pytest.mark.parametrize(
    ("planned", "committed", "last"),
    [
        # As Spark and the ledger are in turn: planned, in the ledger, noted as committed.
        ((9, 10), (9,), 9),
        ((9, 10), (9,), 10),
        ((9, 10), (9, 10), 10),
        # Before the first micro-batch, and in it.
        ((), (), -1),
        ((0,), (), -1),
        ((0,), (), 0),
    ],
)
def test_lake_and_ledger_belong_together_when_a_driver_was_killed_anywhere(
    checkpoints: Path, ledger: dict[str, int], planned: tuple[int, ...], committed: tuple[int, ...], last: int
) -> None:
    write(checkpoints / "g3" / ARCHIVE, "id", planned=planned, committed=committed)
    write(checkpoints / "g3" / VIEW, "view", planned=planned, committed=committed)
    ledger |= {"id": last, "view": CURRENT.version(last) if last >= 0 else -1}
    assert lake_error(PIPELINE) is None
    check_checkpoints(CURRENT, (VIEW, FLAGS))


def test_ledger_is_asked_before_the_plans_when_a_driver_runs(
    checkpoints: Path, ledger: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = checkpoints / "g3" / ARCHIVE
    write(archive, "id", planned=(0,), committed=(0,))

    def last_batch_id(_: str) -> int:
        # The driver goes on while the ledger is read.
        write(archive, "id", planned=(1, 2), committed=(1,))
        return 1

    monkeypatch.setattr(lake_of_ledger, "last_batch_id", last_batch_id)
    assert lake_error(PIPELINE) is None


def test_stream_is_refused_when_the_checkpoint_of_a_view_is_older_than_the_ledger(
    checkpoints: Path, ledger: dict[str, int]
) -> None:
    write(checkpoints / "g3" / VIEW, "view", planned=(0, 1))
    write(checkpoints / "g3" / FLAGS, "flags", planned=(0, 1))
    ledger |= {"view": CURRENT.version(1), "flags": 1}
    check_checkpoints(CURRENT, (VIEW, FLAGS))
    ledger["view"] = CURRENT.version(2)
    with pytest.raises(UsageError, match=f"has micro-batch 2 of {VIEW} in generation 3, .* ends at micro-batch 1"):
        check_checkpoints(CURRENT, (VIEW, FLAGS))
    ledger |= {"view": CURRENT.version(1), "flags": 2}
    with pytest.raises(UsageError, match=f"has micro-batch 2 of {FLAGS} in generation 3"):
        check_checkpoints(CURRENT, (VIEW, FLAGS))


def test_lake_is_refused_when_it_has_only_generations_before_one_in_which_the_ledger_has_committed(
    checkpoints: Path, ledger: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(checkpoints / "g2" / ARCHIVE, "id", planned=(4, 5), committed=(4, 5))
    ledger["id"] = 5
    started = replace(CURRENT, positions={ARCHIVE: '{"isp-hits": {"0": 7}}'})
    at = {TopicPartition("isp-hits", 0): 7}
    monkeypatch.setattr(lake_of_ledger, "positions", lambda _: at)
    monkeypatch.setattr(lake_of_ledger, "last_batch", lambda *_: None)
    # Killed before the checkpoint was made, or opened by a loss that the position was moved over.
    for current in (started, CURRENT):
        monkeypatch.setattr(generations, "current", lambda _, current=current: current)
        assert lake_error(PIPELINE) is None
    monkeypatch.setattr(generations, "current", lambda _: started)
    at[TopicPartition("isp-hits", 0)] = 8
    error = lake_error(PIPELINE)
    assert isinstance(error, UsageError)
    assert "has micro-batches of generation 3, the lake" in error.message
    assert "ends at generation 2: the lake is an older copy than the ledger, or somebody removed" in error.message
    assert error.remedy.startswith(f"where only the checkpoints are gone: {NEW}")
    # Whoever has lost or removed the checkpoints has the lake.
    write(checkpoints / "g3" / VIEW, "view")
    assert lake_error(PIPELINE) is None


@pytest.mark.parametrize("content", ["", '{"id"', "{}", "[]", "\udcff"])
def test_current_checkpoint_is_named_when_it_cannot_be_read(
    checkpoints: Path, ledger: dict[str, int], content: str
) -> None:
    write(checkpoints / "g3" / ARCHIVE, "id")
    (checkpoints / "g3" / ARCHIVE / "metadata").write_bytes(content.encode(errors="surrogateescape"))
    error = lake_error(PIPELINE)
    assert isinstance(error, CheckpointDamaged)
    assert "checkpoints/isp_hits/g3/archive/metadata, of a stream's checkpoint, cannot be read" in str(error)
    assert NEW in str(error)


def test_older_generation_is_kept_and_named_when_its_checkpoint_cannot_be_read(
    checkpoints: Path, ledger: dict[str, int]
) -> None:
    for number in range(4):
        write(checkpoints / f"g{number}" / ARCHIVE, f"id-{number}", planned=(0,), committed=(0,))
    ledger |= {"id-2": 0, "id-3": 0}
    (checkpoints / "g1" / ARCHIVE / "metadata").write_bytes(b"")
    assert lake_error(PIPELINE) is None
    kept = {lake.below_lake(each): why for each, why in kept_checkpoints(PIPELINE).items()}
    assert kept == {"checkpoints/isp_hits/g0": OF_OTHER_LEDGER, "checkpoints/isp_hits/g1": UNREADABLE}


@pytest.mark.parametrize("file", ["offsets/8", "offsets/9", "commits/8"])
@pytest.mark.parametrize("content", [b"", b"v1", b'v1\n{"batch', b"v1\n\xff", None])
@pytest.mark.parametrize("query", [ARCHIVE, VIEW, FLAGS])
def test_stream_is_refused_when_spark_could_not_read_a_plan_or_a_commit(
    checkpoints: Path, ledger: dict[str, int], file: str, content: bytes | None, query: str
) -> None:
    checkpoint = checkpoints / "g3" / query
    write(checkpoint, "id", planned=(6, 7, 8, 9), committed=(6, 7, 8))
    check_checkpoints(CURRENT, (ARCHIVE, VIEW, FLAGS))
    # Spark reads no earlier ones.
    (checkpoint / "offsets" / "7").write_bytes(b"")
    (checkpoint / "commits" / "7").write_bytes(b"")
    check_checkpoints(CURRENT, (ARCHIVE, VIEW, FLAGS))
    if content is not None:
        (checkpoint / file).write_bytes(content)
    elif file == "offsets/8":
        (checkpoint / file).unlink()
    else:
        # Without its newest plan or commit it is an older copy.
        return
    state = "cannot be read" if content is not None else "is missing"
    with pytest.raises(CheckpointDamaged, match=f"g3/{query}/{file}, of a stream's checkpoint, {state}") as refused:
        check_checkpoints(CURRENT, (ARCHIVE, VIEW, FLAGS))
    assert NEW in str(refused.value)
