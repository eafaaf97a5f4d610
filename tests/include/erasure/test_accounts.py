"""A ledger that is restored from an older copy does not know an erasure: the lake tells it, on a real PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from include import lake
from include.doctor.examine import unfinished_and_unknown_erasures
from include.erasure import accounts
from include.erasure.keys import hashes_of
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


def test_erasure_is_named_until_its_keys_are_erased_again_when_the_ledger_does_not_know_it(postgres: Home) -> None:
    other = erased(SALTS[1], ("somebody",))
    for each in (erased(SALTS[0]), replace(other, reason="request 4712")):
        accounts.write(each)
        accounts.write(each)
    assert sorted("request 4711" in line and "12 records" in line for line in findings()) == [False, True]
    told = b"".join(path.read_bytes() for path in (postgres.lake / "erasures").rglob("*.json"))
    assert not any(key.encode() in told or hashes_of([key], SALTS[0])[0].encode() in told for key in KEYS)

    for keys in (KEYS[:1], (*KEYS, "one more"), ("nobody", "else")):
        accounts.forget_repeated(PIPELINE, keys)
    assert len(findings()) == 2
    accounts.forget_repeated(PIPELINE, reversed(KEYS))
    (left,) = findings()
    assert "request 4712" in left
    assert lake.uri("erasures", PIPELINE) in left

    with session() as ledger:
        row = Erasure(pipeline=PIPELINE, columns=["user"], reason="r", begun_by="me", salt=SALTS[1], key_hashes=[])
        row.counts, row.intervals, row.last_build, row.ended_at = {}, [], 0, datetime.now(UTC)
        ledger.add(row)
    assert findings() == []
