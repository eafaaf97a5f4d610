"""Lake and ledger that do not belong together: nothing is written, moved or removed, and the way on is named.

Real Kafka and PostgreSQL; what a stream leaves in the lake is laid there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from include.erasure.run import Wish, dry_run, erase
from include.errors import ServiceUnreachable, TidemarkError, UsageError
from include.housekeeping.run import keep_house
from include.intervals.lake_of_ledger import OF_OTHER_LEDGER, check_lake
from include.ledger.archive.micro_batches import ARCHIVE
from include.ledger.database import session
from include.ledger.models import Generation
from include.ledger.streams import generations as ledger_generations
from include.pipelines import load_pipeline
from include.streams import generations
from include.streams.start import begin
from tests.conftest import Home
from tests.support.topic_log import Log

pytestmark = pytest.mark.services


def begun(log: Log) -> None:
    """Begin a stream whose archive query has started."""
    start = begin(log.pipeline)
    ledger_generations.note_start(start.generation, ARCHIVE, start.fingerprints[ARCHIVE], {})


def note_plan(home: Home, name: str, generation: int, batch: int) -> Path:
    """Note a micro-batch in the archive's checkpoint, as Spark does before it runs."""
    checkpoint = home.lake / "checkpoints" / name / f"g{generation}" / "archive"
    planned = checkpoint / "offsets" / str(batch)
    planned.parent.mkdir(parents=True, exist_ok=True)
    planned.write_text("v1\n{}\n{}")
    return checkpoint


def note_commit(home: Home, name: str, generation: int, batch: int) -> Path:
    """Note a micro-batch in the archive's checkpoint, as Spark does once the ledger has it."""
    checkpoint = note_plan(home, name, generation, batch)
    noted = checkpoint / "commits" / str(batch)
    noted.parent.mkdir(parents=True, exist_ok=True)
    noted.write_text("v1\n{}")
    (checkpoint / "metadata").write_text(json.dumps({"id": f"query-{name}"}))
    return checkpoint


def set_clock_back(name: str) -> None:
    """Make the current generation younger than its micro-batches, as a clock of PostgreSQL that was ahead does."""
    with session() as ledger:
        last = ledger.query(Generation).filter_by(pipeline=name).order_by(Generation.number.desc()).first()
        assert last is not None
        last.started_at += timedelta(days=1)


def table_file(home: Home, name: str) -> Path:
    """A file of a table that the ledger does not know."""
    partition = home.lake / "tables" / name / "date=2026-11-18" / "interval=2026-11-18T05"
    file = partition / "r20261118T060000000000-1" / "part-0.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"rows")
    return file


def accept_as_declared(log: Log) -> None:
    """What a start of a pipeline with `fail_on_data_loss=False` does."""
    with generations.no_stream(log.pipeline.name, "adopt") as lease:
        generations.accept_losses(log.pipeline, lease, reason="declared", accepted_by="test@host")


def actions(log: Log) -> list[Callable[[], object]]:
    """What begins, builds, removes, or goes on without something."""
    pipeline = log.pipeline
    return [
        lambda: begin(pipeline),
        lambda: log.pin(0),
        lambda: keep_house(pipeline, dry_run=False, older_than="0s"),
        lambda: generations.accept_loss(pipeline, reason="a test", accepted_by="test@host"),
        # A generation that it opened would pass the check.
        lambda: accept_as_declared(log),
        lambda: generations.adopt(pipeline, log.topic, reason="a test", adopted_by="test@host"),
    ]


def check_refused(home: Home, log: Log, error: type[TidemarkError], match: str, way_on: str = "") -> None:
    """Every action is refused with the way on, `doctor` repairs nothing, and all files stay."""
    way_on = way_on or f"./tidemark new-generation {log.pipeline.name} --reason"

    def files() -> list[Path]:
        return sorted(path for path in home.lake.rglob("*") if path.is_file())

    before = files()
    for action in actions(log):
        with pytest.raises(error, match=match) as refused:
            action()
        assert way_on in str(refused.value)
    examined = json.loads(home.run("doctor", "--repair", "--json", expect=1).stdout)["findings"]
    assert [each for each in examined if not each["ok"] and way_on in each["remedy"]]
    assert files() == before


def go_on(log: Log) -> int:
    """Take the way on, after which the actions are possible again."""
    number = generations.new_generation(log.pipeline, reason="a test", started_by="test@host")
    check_lake(log.pipeline)
    begin(log.pipeline)
    return number


def landing_files(home: Home, name: str) -> list[Path]:
    """A file of archived and one of quarantined records that the ledger does not know."""
    places = ["landing/{}/0a1b2c3d-000000007/part-0.parquet", "quarantine/{}/0a1b2c3d-000000007.parquet"]
    files = [home.lake / place.format(name) for place in places]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"rows")
    return files


def check_kept(home: Home, log: Log, table_file: Path, generations_: list[str]) -> None:
    """Housekeeping keeps what the ledger does not know until the checkpoints of the other ledger are removed."""
    name = log.pipeline.name
    unknown = [table_file, *landing_files(home, name)]
    checkpoints = [f"checkpoints/{name}/{each}" for each in generations_]
    done = keep_house(log.pipeline, dry_run=False, older_than="0s")
    assert [line.split(":")[0] for line in done["kept"]] == checkpoints
    assert done["orphans"] == []
    assert all(file.exists() for file in unknown)
    examined = json.loads(home.run("doctor", "--json", expect=None).stdout)["findings"]
    assert [each["what"] for each in examined if each["remedy"] == OF_OTHER_LEDGER] == [
        f"{name}: {each}" for each in checkpoints
    ]
    # Nor does a repair move them where neither housekeeping nor an erasure looks.
    home.run("doctor", "--repair", expect=None)
    assert all(file.exists() for file in unknown)
    wish = Wish(("somebody",), ("camera",), "asked", "test@host")
    match = f"{checkpoints[0]} has micro-batches that this ledger does not know"
    with pytest.raises(UsageError, match=match):
        erase(log.pipeline, wish, print)
    with pytest.raises(UsageError, match=match):
        dry_run(log.pipeline, wish)
    for each in checkpoints:
        assert all(file.exists() for file in unknown)
        shutil.rmtree(home.lake / each)
    assert keep_house(log.pipeline, dry_run=False, older_than="0s")["kept"] == []
    assert not any(file.exists() for file in unknown)


def test_nothing_is_done_when_the_lake_holds_nothing_of_what_was_committed(in_process: Home) -> None:
    log = Log(load_pipeline("isp_hits"))
    begun(log)
    log.send(0, 0.5)
    log.archive()
    note_commit(in_process, "isp_hits", 0, 0)
    set_clock_back("isp_hits")
    check_lake(log.pipeline)
    shutil.move(in_process.lake, in_process.path / "lake-of-before")

    nothing = f"the lake {in_process.lake.as_uri()} holds nothing of isp_hits"
    check_refused(in_process, log, ServiceUnreachable, nothing, "“Files that are gone for good”")
    shutil.rmtree(in_process.lake, ignore_errors=True)
    shutil.move(in_process.path / "lake-of-before", in_process.lake)
    begin(log.pipeline)
    shutil.rmtree(in_process.lake)
    assert go_on(log) == 1


def test_nothing_is_done_when_the_ledger_is_new_and_the_lake_is_not(in_process: Home) -> None:
    log = Log(load_pipeline("nest_cameras"))
    note_commit(in_process, "nest_cameras", 0, 7)
    note_commit(in_process, "nest_cameras", 2, 3)
    kept = table_file(in_process, "nest_cameras")

    check_refused(in_process, log, UsageError, "generation 2 of the stream, the ledger at .* has none")
    # Its checkpoints are none of the former ledger's.
    assert go_on(log) == 3
    log.send(0, 0.5, 1.5)
    log.archive()
    assert log.pin(0)[0] == (0, 1)
    check_kept(in_process, log, kept, ["g0", "g2"])


def test_nothing_is_done_when_the_ledger_is_an_older_copy_of_its_own(in_process: Home) -> None:
    log = Log(load_pipeline("auction_bids"))
    begin(log.pipeline)
    log.send(0, 0.5)
    log.archive()
    note_commit(in_process, "auction_bids", 0, 0)
    set_clock_back("auction_bids")
    check_lake(log.pipeline)
    note_commit(in_process, "auction_bids", 0, 1)
    kept = table_file(in_process, "auction_bids")

    match = "micro-batch 1 of generation 0, the ledger at .* has only micro-batch 0"
    check_refused(in_process, log, UsageError, match)
    assert kept.exists()
    assert go_on(log) == 1
    # Records that the former ledger knew stay, until the checkpoint is removed that tells of them.
    check_kept(in_process, log, kept, ["g0"])
    # A driver that is killed between both notes has one more in the ledger.
    checkpoint = note_commit(in_process, "auction_bids", 1, 0)
    note_plan(in_process, "auction_bids", 1, 1)
    log.send(0, 0.6)
    log.archive()
    check_lake(log.pipeline)
    # A checkpoint that was lost is begun again where the ledger is.
    shutil.rmtree(checkpoint)
    check_lake(log.pipeline)
    current = ledger_generations.current("auction_bids")
    assert current is not None
    assert current.number == 1


def test_nothing_is_done_when_the_lake_is_an_older_copy_than_the_ledger(in_process: Home) -> None:
    log = Log(load_pipeline("gps_positions"))
    begun(log)
    for _ in range(3):
        log.send(0, 0.5)
        log.archive()
    checkpoint = note_commit(in_process, "gps_positions", 0, 1)
    # Spark removes all plans but the last hundred.
    note_plan(in_process, "gps_positions", 0, 2)
    check_lake(log.pipeline)
    (checkpoint / "offsets" / "2").unlink()

    older = "has micro-batch 2 of archive in generation 0, its checkpoint .*/g0/archive ends at micro-batch 1: the lake"
    check_refused(in_process, log, UsageError, older)
    assert go_on(log) == 1
