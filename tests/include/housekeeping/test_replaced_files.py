"""Files that a copy of PostgreSQL names outlive their replacement, on a real PostgreSQL, without Spark."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import func, select, update

from include import catalog, lake
from include.doctor.landing import check_landing
from include.doctor.repair import repair
from include.erasure import steps
from include.errors import AnotherWriter, TidemarkError
from include.housekeeping.run import holding_files, keep_house, put_back
from include.ledger import quarantine
from include.ledger.database import session
from include.ledger.erasures.unfinished import Begun
from include.ledger.intervals import attempts, locks
from include.ledger.intervals.revisions import registered_of_interval
from include.ledger.models import Attempt, LandingFileRow
from include.ledger.streams import generations
from include.offsets import Fate, OffsetRange, TopicPartition
from include.pipelines import load_pipeline
from include.times import format_time
from tests.conftest import Home
from tests.support.attempts import TOPIC, begin_attempt, hour
from tests.support.committed import add_batch
from tests.support.leases import held_lease
from tests.support.proved import PIPELINE, register_hour

pytestmark = pytest.mark.services

MOMENT = (datetime.now(UTC) - timedelta(days=3)).replace(hour=12)
"""Three days ago, the same day for every micro-batch."""


def quiet(line: str) -> None:
    """Nobody reads it."""


def kept_house(**options: Any) -> dict[str, Any]:
    return keep_house(load_pipeline(PIPELINE), dry_run=False, progress=quiet, **options)


def land(number: int, *, landed_by: str | None = None, decoder_versions: tuple[str, ...] = ()) -> dict[str, Path]:
    """A micro-batch of three days ago with all of a registered hour; its files by the fate of their records.

    `landed_by` and `decoder_versions` are the code that landed it, and that read Kafka for its registered build.
    """
    register_hour(number, decoder_versions=decoder_versions)
    begin = 100 * number
    folder = f"landing/{PIPELINE}/0a1b2c3d-{number:09d}-1"
    paths = {
        Fate.ARCHIVED: f"{folder}/fate=archived/part-0.parquet",
        Fate.EMPTY: f"{folder}/fate=empty/part-0.parquet",
        Fate.QUARANTINED: f"quarantine/{PIPELINE}/0a1b2c3d-{number:09d}-0000.parquet",
    }
    files = {}
    with session() as ledger:
        ledger.execute(update(Attempt).values(ended_at=func.now()))
        read = [OffsetRange(TopicPartition(TOPIC, partition), begin, begin + 100) for partition in range(2)]
        facts = {"query_id": "0a1b2c3d", "committed_at": MOMENT, "decoder_version": landed_by}
        batch = add_batch(ledger, PIPELINE, number, *read, **facts)
        for (fate, path), first, rows in zip(paths.items(), (0, 95, 97), (95, 2, 3), strict=True):
            at = Path(lake.filesystem(lake.uri(path))[1])
            at.parent.mkdir(parents=True, exist_ok=True)
            place = {"kafka_topic": [TOPIC] * rows, "kafka_partition": [0] * rows}
            pq.write_table(pa.table({**place, "kafka_offset": range(begin + first, begin + first + rows)}), at)
            os.utime(at, 2 * (MOMENT.timestamp(),))
            ledger.add(LandingFileRow(micro_batch_id=batch, fate=fate, path=path, rows=rows, bytes=at.stat().st_size))
            files[str(fate)] = at
    return files


def copy_of_ledger() -> Callable[[], None]:
    """Keep what the ledger has of landing files; return how it is restored."""
    names = ("path", "bytes", "removed_at", "compacted_at")
    with session() as ledger:
        rows = {row.id: {name: getattr(row, name) for name in names} for row in ledger.scalars(select(LandingFileRow))}

    def restore() -> None:
        with session() as ledger:
            for key, values in rows.items():
                ledger.execute(update(LandingFileRow).where(LandingFileRow.id == key).values(**values))

    return restore


def problems() -> list[tuple[str, str]]:
    return [(each.kind, each.repair) for each in check_landing(load_pipeline(PIPELINE))]


def missing() -> list[tuple[str, str]]:
    return [each for each in problems() if each[0] == "landing file missing"]


def in_quarantine(postgres: Home) -> list[int]:
    """Offsets in the quarantine's folder, as anybody reads it."""
    files = (postgres.lake / "quarantine" / PIPELINE).glob("*.parquet")
    return sorted(row for file in files for row in pq.read_table(file).column("kafka_offset").to_pylist())


def aside(postgres: Home) -> list[Path]:
    return sorted((postgres.lake / "replaced").rglob("*.parquet"))


def make_old(postgres: Home) -> None:
    for number, run in enumerate((postgres.lake / "replaced" / PIPELINE).iterdir()):
        run.rename(run.with_name(f"20260101T00000{number}Z"))


def test_copy_of_the_ledger_finds_its_files_when_housekeeping_has_replaced_them_since(postgres: Home) -> None:
    files = {0: land(0), 1: land(1)}
    restore = copy_of_ledger()
    done = kept_house()
    assert done["landing"]["micro_batches"] == 2
    assert done["compacted"] == {"days": 2, "files": 4, "rows": 10}
    assert (done["set_aside"]["files"], done["deleted"]["files"]) == (4, 0)
    assert problems() == []
    assert in_quarantine(postgres) == [97, 98, 99, 197, 198, 199]
    assert not any(each["quarantined"].exists() for each in files.values())

    restore()
    assert missing() == 4 * [("landing file missing", "put back")]
    repair([*check_landing(load_pipeline(PIPELINE))], quiet)
    assert problems() == []
    assert [path for each in files.values() for path in each.values() if not path.exists()] == []
    assert in_quarantine(postgres) == [97, 98, 99, 197, 198, 199]
    assert aside(postgres) == []
    assert len([*quarantine.files(PIPELINE)]) == 2


def test_merged_files_are_put_back_and_merged_again_when_housekeeping_runs_with_a_copy_of_the_ledger(
    postgres: Home,
) -> None:
    files = [*land(2).values(), *land(3).values()]
    restore = copy_of_ledger()
    kept_house()
    (merged,) = {each.path for each in quarantine.files(PIPELINE)}
    restore()
    done = kept_house()
    assert len(done["put_back"]) > 0
    assert problems() == []
    assert {each.path for each in quarantine.files(PIPELINE)} == {merged}
    assert len(in_quarantine(postgres)) == len(set(in_quarantine(postgres)))
    restore()
    said: list[str] = []
    put_back(PIPELINE, said.append)
    assert [path for path in files if not path.exists()] == []
    assert any("put back" in line for line in said)


def test_replaced_files_go_when_their_time_is_over(postgres: Home) -> None:
    files = land(4)
    land(5)
    kept_house()
    assert files["archived"].exists()
    assert aside(postgres) != []
    with session() as ledger:
        ledger.execute(update(LandingFileRow).values(removed_at=LandingFileRow.removed_at - timedelta(days=8)))
    make_old(postgres)
    done = kept_house()
    assert done["deleted"]["files"] > 0
    assert not files["archived"].exists()
    assert aside(postgres) == []
    assert missing() == []


@pytest.mark.parametrize("older_than", ["0s", None])
def test_nothing_is_kept_when_all_is_due_or_an_erasure_sweeps(postgres: Home, older_than: str | None) -> None:
    first = 6 if older_than else 8
    files = [*land(first).values(), *land(first + 1).values()]
    if older_than:
        kept_house(older_than=older_than)
    else:
        kept_house()
        assert aside(postgres) != []
        steps.sweep(load_pipeline(PIPELINE), begun(), quiet)
    assert [path for path in files if path.exists()] == []
    assert aside(postgres) == []
    assert missing() == []


def test_erasure_is_unfinished_when_an_attempt_begins_while_it_sweeps(postgres: Home) -> None:
    land(14)
    land(15)
    kept_house()
    before = aside(postgres)
    attempt = begin_attempt(PIPELINE, hour(16))
    with session() as ledger:
        ledger.execute(
            update(Attempt).where(Attempt.id == attempt).values(started_at=func.now() + timedelta(minutes=1))
        )
    with pytest.raises(AnotherWriter, match="the erasure is unfinished") as raised:
        steps.sweep(load_pipeline(PIPELINE), begun(), quiet)
    assert "--resume" in raised.value.remedy
    assert aside(postgres) == before != []
    with session() as ledger:
        ledger.execute(update(Attempt).values(ended_at=func.now()))
    steps.sweep(load_pipeline(PIPELINE), begun(), quiet)
    assert aside(postgres) == []


def test_erasure_sweeps_nothing_while_an_attempt_works_on_an_interval(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(24)
    land(25)
    kept_house()
    before = aside(postgres)
    attempt = begin_attempt(PIPELINE, hour(26))
    with monkeypatch.context() as impatient, locks.attempt_under_way(PIPELINE, hour(26)):
        impatient.setattr(locks, "PATIENCE", locks.NO_WAIT)
        with pytest.raises(AnotherWriter, match=r"attempt of .* is under way.*: the erasure is unfinished") as raised:
            steps.sweep(load_pipeline(PIPELINE), begun(), quiet)
    assert f"pause interval__{PIPELINE}; then: ./tidemark erase {PIPELINE} --resume" in raised.value.remedy
    assert aside(postgres) == before != []
    # It waits for the attempt, for housekeeping, and for the attempt that began during this wait.
    replays: list[bool] = []
    with ExitStack() as working, ExitStack() as keeping:
        working.enter_context(locks.attempt_under_way(PIPELINE, hour(26)))
        keeping.enter_context(holding_files(PIPELINE))
        told: list[str] = []

        def tell(line: str) -> None:
            told.append(line.partition(" (")[0])
            if f"attempt of {hour(26)}" in line:
                with session() as ledger:
                    ledger.execute(update(Attempt).where(Attempt.id == attempt).values(ended_at=func.now()))
                working.close()
            elif "housekeeping" in line:
                replays.append(quarantine.is_being_decided(PIPELINE))
                working.enter_context(locks.attempt_under_way(PIPELINE, hour(27)))
                later.append(begin_attempt(PIPELINE, hour(27)))
                keeping.close()
            else:
                with session() as ledger:
                    ledger.execute(update(Attempt).where(Attempt.id == later[0]).values(ended_at=func.now()))
                working.close()

        later: list[int] = []
        steps.sweep(load_pipeline(PIPELINE), begun(), tell)
    assert told[:3] == [
        f"{PIPELINE}: waiting: {why} is under way"
        for why in (f"an attempt of {hour(26)}", "another housekeeping", f"an attempt of {hour(27)}")
    ]
    # Who waits for housekeeping keeps no replay, and no day that housekeeping merges, waiting.
    assert replays == [False]
    assert aside(postgres) == []


def test_erasure_says_how_to_go_on_when_housekeeping_does_not_end(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "PATIENCE", locks.NO_WAIT)
    with holding_files(PIPELINE), pytest.raises(AnotherWriter) as raised:
        steps.sweep(load_pipeline(PIPELINE), begun(), quiet)
    assert "another housekeeping is under way" in raised.value.message
    assert raised.value.message.endswith(": the erasure is unfinished")
    assert raised.value.remedy.endswith(f"./tidemark erase {PIPELINE} --resume")


def quarantined_offsets() -> list[int]:
    """What a tool finds that reads all files of the quarantine."""
    at = lake.uri("quarantine", PIPELINE)
    tables = [pq.ParquetFile(lake.filesystem(f"{at}/{each.name}")[1]).read() for each in lake.list_files(at)]
    return sorted(offset for table in tables for offset in table["kafka_offset"].to_pylist())


def test_no_quarantined_record_lies_in_two_files_when_an_attempt_keeps_merged_ones_from_going(postgres: Home) -> None:
    files = [land(number)[str(Fate.QUARANTINED)] for number in (30, 31)]
    before = quarantined_offsets()
    assert len(before) == len(set(before))
    attempt = begin_attempt(PIPELINE, hour(32))
    left = kept_house()["kept"]
    assert quarantined_offsets() == before
    assert all(path.exists() for path in files)
    assert any(f"attempt {attempt} of" in line for line in left if line.startswith("quarantine of "))
    with session() as ledger:
        ledger.execute(update(Attempt).where(Attempt.id == attempt).values(ended_at=func.now()))
    # Also the merged file of an earlier test, which is new.
    kept_house(older_than="0s")
    assert quarantined_offsets() == before
    assert not any(path.exists() for path in files)


def test_failed_attempt_keeps_nothing_from_going_unless_some_process_works_on_its_interval(postgres: Home) -> None:
    """As each night, while each hour's run fails."""
    files = [land(number)[str(Fate.QUARANTINED)] for number in (50, 51)]
    attempt = begin_attempt(PIPELINE, hour(52))
    attempts.note_failure(attempt, 64)

    def is_waited_for() -> bool:
        return any(f"attempt {attempt} of" in line for line in kept_house()["kept"])

    # Of Airflow's next try, which has not noted its beginning yet.
    with locks.attempt_under_way(PIPELINE, hour(52)):
        assert is_waited_for()
    attempts.resume_attempt(attempt)
    assert is_waited_for()
    assert all(path.exists() for path in files)
    attempts.note_failure(attempt, 64)
    assert not is_waited_for()
    assert not any(path.exists() for path in files)
    with session() as ledger:
        ledger.execute(update(Attempt).where(Attempt.id == attempt).values(ended_at=func.now()))


def test_erasure_deletes_no_revision_when_the_catalog_points_at_one_that_was_replaced(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    [replaced] = registered_of_interval(register_hour(28))
    files = sorted(replaced.files)
    monkeypatch.setattr("include.erasure.steps.unfinished.retire", lambda erasure: [replaced])
    with monkeypatch.context() as catalogued:
        pointed_at = {catalog.comparable_location(replaced.location)}
        catalogued.setattr("include.erasure.steps.catalog.pointed_at", lambda tables: pointed_at)
        with pytest.raises(
            TidemarkError, match=r"points at a replaced revision: .*; the erasure is unfinished"
        ) as told:
            steps.sweep(load_pipeline(PIPELINE), begun(), quiet)
    assert "doctor --repair" in told.value.remedy
    assert sorted(each.name for each in lake.list_files(replaced.location)) == files != []
    steps.sweep(load_pipeline(PIPELINE), begun(), quiet)
    assert not lake.exists(replaced.location)


def test_file_with_any_name_is_set_aside_when_somebody_has_put_it_beside_those_of_a_micro_batch(
    postgres: Home,
) -> None:
    known = land(17)[str(Fate.ARCHIVED)]
    copy = known.with_name("part-0 (copy).parquet")
    copy.write_bytes(known.read_bytes())
    os.utime(copy, 2 * (known.stat().st_mtime,))
    kept_house()
    assert not copy.exists()
    assert copy.name in [each.name for each in aside(postgres)]


def begun() -> Begun:
    """An erasure that has nothing left to do but to sweep."""
    now = datetime.now(UTC)
    return Begun(0, PIPELINE, ("device_id",), "test", "test", now, None, "", (), {}, (), 0, None)


def test_files_stay_aside_when_another_ledger_may_have_known_them(postgres: Home) -> None:
    land(10)
    land(11)
    kept_house()
    make_old(postgres)
    before = aside(postgres)
    with held_lease(PIPELINE) as lease:
        generations.open_generation(lease, started_by="test", reason="test", beyond=0)
    checkpoint = lake.uri("checkpoints", PIPELINE, "g0", "archive")
    lake.write_text(f"{checkpoint}/metadata", '{"id":"ffffffff-0000-4000-8000-000000000000"}')
    lake.write_text(f"{checkpoint}/commits/7", "v1")
    assert kept_house()["kept"] != []
    assert aside(postgres) == before != []
    lake.delete(lake.uri("checkpoints", PIPELINE, "g0"))
    kept_house()
    assert aside(postgres) == []


def test_quarantine_is_merged_only_when_no_replay_may_be_reading_its_files(postgres: Home) -> None:
    files = [each["quarantined"] for each in (land(18), land(19))]
    with quarantine.deciding(PIPELINE):
        done = kept_house()
        assert all(path.exists() for path in files)
        assert [line for line in done["kept"] if "replay" in line]
        assert done["compacted"]["days"] == 1
    assert kept_house()["compacted"]["days"] == 1
    assert not any(path.exists() for path in files)


def test_day_is_left_when_a_file_of_it_is_not_there(postgres: Home) -> None:
    land(12)["quarantined"].unlink()
    land(13)
    done = kept_house()
    (left,) = [line for line in done["kept"] if "0a1b2c3d-000000012-0000.parquet is not there" in line]
    assert "doctor --repair" in left
    assert done["compacted"]["days"] == 1


def test_landing_stays_when_the_revision_that_replaces_it_is_damaged(postgres: Home) -> None:
    archived = land(20)["archived"]
    [revision] = (postgres.lake / "tables" / PIPELINE).glob(f"**/interval={hour(20).label}/*/part-0.parquet")
    whole = revision.read_bytes()
    revision.write_bytes(whole[:-1])
    kept = kept_house(older_than="0s")["kept"]
    assert archived.exists()
    assert any(f"landing of {hour(20)}" in line and "wrong size: part-0.parquet" in line for line in kept)
    # Nothing else had kept it.
    revision.write_bytes(whole)
    kept_house(older_than="0s")
    assert not archived.exists()


def test_landing_stays_when_other_code_landed_it_than_read_kafka_for_its_revision(postgres: Home) -> None:
    archived = land(22, landed_by="old", decoder_versions=("new",))["archived"]
    kept = kept_house(older_than="0s")["kept"]
    assert archived.exists()
    [line] = [line for line in kept if f"landing of {hour(22)}" in line]
    assert "with other code than landed it" in line
    bounds = f"--from {format_time(hour(22).from_time)} --to {format_time(hour(22).to_time)}"
    assert f"./tidemark interval {PIPELINE} {bounds} --source archive lets it go" in line
    # Such a run, whose result is the registered one.
    register_hour(22, unchanged=True, decoder_versions=("old",))
    with session() as ledger:
        ledger.execute(update(Attempt).values(ended_at=func.now()))
    kept_house(older_than="0s")
    assert not archived.exists()
