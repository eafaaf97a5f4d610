"""A ledger that is restored from an older copy does not know an erasure: the lake tells it, on a real PostgreSQL."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import delete

from include import lake
from include.doctor.examine import unfinished_and_unknown_erasures
from include.erasure import accounts, check
from include.erasure.accounts import Account
from include.erasure.keys import hashes_of
from include.erasure.run import Wish, erase
from include.errors import TidemarkError
from include.ledger.database import session
from include.ledger.erasures.unfinished import Begun
from include.ledger.models import Erasure
from include.pipelines import load_pipeline
from tests.conftest import Home

pytestmark = pytest.mark.services

PIPELINE = "nest_cameras"
KEYS = ("Editor 017", "Editor 018")
SALTS = ["00112233445566778899aabbccddeeff", "ffeeddccbbaa99887766554433221100"]


def erased(salt: str, keys: tuple[str, ...] = KEYS) -> Begun:
    """An erasure of the lost ledger; it numbered it as the restored one numbers its next."""
    now = datetime.now(UTC)
    hashes = tuple(hashes_of(keys, salt))
    counts = {"keys": len(keys), "records": 12}
    return Begun(1, PIPELINE, ("user",), "request 4711", "me@here", now, now, salt, hashes, counts, (), 0, None)


def findings() -> list[str]:
    return [f"{each.what} {each.remedy}" for each in unfinished_and_unknown_erasures(load_pipeline(PIPELINE))]


def erase_again(keys: Sequence[str] = KEYS, *, records: int = 12, columns: Sequence[str] = ("user",)) -> list[Account]:
    """Erase keys, as far as accounts are concerned: the ledger knows the erasure, and it has ended."""
    salt = secrets.token_hex(16)
    row = Erasure(pipeline=PIPELINE, columns=[*columns], reason="r", begun_by="me", salt=salt)
    row.key_hashes, row.counts = hashes_of(keys, salt), {"keys": len(keys), "records": records}
    row.intervals, row.last_build, row.ended_at = [], 0, datetime.now(UTC)
    with session() as ledger:
        ledger.add(row)
    return accounts.forget_repeated(PIPELINE, keys)


@pytest.fixture
def folder(postgres: Home) -> Path:
    """The folder of the pipeline's accounts, empty, beside a ledger without erasures."""
    with session() as ledger:
        ledger.execute(delete(Erasure))
    lake.delete(lake.uri("erasures", PIPELINE))
    return postgres.lake / "erasures" / PIPELINE


def test_erasure_is_named_until_its_keys_are_erased_again_when_the_ledger_does_not_know_it(folder: Path) -> None:
    other = erased(SALTS[1], ("somebody",))
    for each in (erased(SALTS[0]), replace(other, reason="request 4712")):
        accounts.write(each)
        accounts.write(each)
    assert sorted("request 4711" in line and "12 records" in line for line in findings()) == [False, True]
    told = b"".join(path.read_bytes() for path in folder.iterdir())
    assert not any(key.encode() in told or hashes_of([key], SALTS[0])[0].encode() in told for key in KEYS)

    for keys in (KEYS[:1], (*KEYS, "one more"), ("nobody", "else")):
        erase_again(keys)
    assert len(findings()) == 2
    erase_again(KEYS[::-1])
    (left,) = findings()
    assert "request 4712" in left
    assert lake.uri("erasures", PIPELINE) in left

    with session() as ledger:
        row = Erasure(pipeline=PIPELINE, columns=["user"], reason="r", begun_by="me", salt=SALTS[1], key_hashes=[])
        row.counts, row.intervals, row.last_build, row.ended_at = {}, [], 0, datetime.now(UTC)
        ledger.add(row)
    assert findings() == []


def test_account_stays_until_as_many_records_are_erased_when_the_stream_has_not_read_them_all_again(
    folder: Path,
) -> None:
    erase_again(records=20)  # in the copy already: what it erased is none of the lost erasure's
    accounts.write(erased(SALTS[0]))
    kept = erase_again(records=7)
    (left,) = findings()
    assert "catch up" in left
    assert "has erased 12 records" in left
    assert [left] == [f"{each} {each.remedy}" for each in kept]
    assert erase_again(records=5) == []
    assert findings() == []


def test_account_stays_when_its_keys_are_erased_again_in_another_column(folder: Path) -> None:
    accounts.write(erased(SALTS[0]))
    (told,) = findings()
    assert "--column user" in told
    erase_again(columns=["device_id"])
    assert findings() == [told]
    erase_again(columns=["device_id", "user"])
    assert findings() == []


def test_account_is_forgotten_when_its_keys_are_erased_again_in_its_renamed_column(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cameras = load_pipeline(PIPELINE)
    columns = cameras.archive.columns.replace("device_id", "camera_id")
    renamed = replace(
        cameras.archive, columns=columns, rules=(), subject="where_id", renamed={"camera_id": "device_id"}
    )
    accounts.write(replace(erased(SALTS[0]), columns=("device_id",)))
    monkeypatch.setattr(accounts, "load_pipeline", lambda _: replace(cameras, archive=renamed, reports=()))
    (told,) = findings()
    assert "--column camera_id" in told
    erase_again(columns=["camera_id"])
    assert findings() == []


def test_remedy_names_no_column_when_the_keys_were_in_the_declared_one(folder: Path) -> None:
    subject = load_pipeline(PIPELINE).archive.subject
    accounts.write(replace(erased(SALTS[0]), columns=(subject,)))
    (told,) = findings()
    assert "--column" not in told


def test_account_is_forgotten_when_it_is_of_a_version_that_wrote_no_columns(folder: Path) -> None:
    accounts.write(erased(SALTS[0]))
    (path,) = folder.iterdir()
    written = json.loads(path.read_text())
    del written["columns"]
    path.write_text(json.dumps(written))
    (told,) = findings()
    assert "--column" not in told
    erase_again(columns=["device_id"])
    assert findings() == []


def test_accounts_are_read_when_one_beside_them_was_written_by_half(folder: Path) -> None:
    accounts.write(erased(SALTS[0]))
    (path,) = folder.iterdir()
    path.with_name(f"{path.name}.tmp").write_text('{"pipeline": "nest')
    path.with_name("copied.txt").write_text("not an account")
    assert len(findings()) == 1


@pytest.mark.parametrize(("ahead", "waits"), [(-3600, 0), (30, 30), (120, None)])
def test_erasure_waits_for_its_clock_or_is_refused_when_the_clock_of_the_lake_s_store_is_ahead(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ahead: int, waits: int | None
) -> None:
    """What a killed job has just left would look newer than the erasure, and stay."""
    slept: list[float] = []
    told: list[str] = []
    monkeypatch.setattr(accounts, "sleep", slept.append)
    location = accounts.write(erased(SALTS[0]))
    (path,) = folder.iterdir()
    changed = datetime.now(UTC).timestamp() + ahead
    os.utime(path, (changed, changed))
    refused = pytest.raises(TidemarkError, match=r"clock .* is 1\d\d seconds ahead .*the erasure is unfinished")
    with nullcontext() if waits is not None else refused:
        accounts.await_clock(location, PIPELINE, told.append)
    assert [round(each) for each in slept] == ([waits] if waits else [])
    assert [line.partition(",")[0] for line in told] == ([f"{PIPELINE}: waiting {waits} s"] if waits else [])


def test_erasure_does_not_begin_when_the_clock_of_the_lake_s_store_is_far_ahead(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake, "size_and_mtime", lambda _: (0, datetime.now(UTC) + timedelta(minutes=2)))
    wish = Wish(KEYS, ("device_id",), "request 4711", "me@here")
    with pytest.raises(TidemarkError, match=r"clock .* is 1\d\d seconds ahead .*nothing was changed"):
        erase(load_pipeline(PIPELINE), wish, print)
    assert not [*folder.iterdir()]


def test_earlier_versions_of_objects_are_told_to_remain_when_the_lake_is_in_a_bucket(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = "earlier versions of deleted and replaced objects"
    pipeline = load_pipeline(PIPELINE)
    assert not any(told in line for line in check.remaining(pipeline))
    monkeypatch.setattr(check, "is_bucket_uri", lambda _: True)
    assert any(told in line for line in check.remaining(pipeline))
