"""Names of partitions that hold an erased key: found again by hashes, and taken out of the ledger when nobody reads."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from include.erasure.check import remaining_in_names, remaining_in_proofs
from include.erasure.keys import Keys, hashes_of
from include.erasure.names import NONE, Names, columns_of, names_of
from include.errors import TidemarkError
from include.ledger.database import session
from include.ledger.erasures import named_partitions, unfinished
from include.ledger.intervals import revisions
from include.ledger.intervals.states import RevisionState
from include.ledger.models import Build, Erasure, Revision
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline
from tests.conftest import Home
from tests.support import remnants
from tests.support.proved import PIPELINE, register_hour

ZIP = "zq7-10001"


def test_parts_are_told_from_longer_ones_when_a_text_names_several() -> None:
    names = Names({"zip=1001"})
    text = "lake.t date=2026-11-20/zip=1001/interval=x and zip=1001, zip=10011/ zip=1001-a/ my_zip=1001/"
    assert names.text(text) == (
        "lake.t date=2026-11-20/zip=(erased)/interval=x and zip=(erased), zip=10011/ zip=1001-a/ my_zip=1001/"
    )
    assert names.without({"zip=1001/x": ["zip=1001", 1001]}) == {"zip=(erased)/x": ["zip=(erased)", 1001]}
    assert names.without_keys({"observed": "1001 of 5", "rows": 1001}) == {"observed": "(erased)", "rows": 1001}
    assert NONE.without(text) == NONE.text(text) == NONE.without_keys(text) == text
    assert not NONE.named_in(text)


def test_counts_stay_when_a_key_is_the_same_number() -> None:
    found = {"until_offset": 1001, "rows": 1001, "zip": 1001, "hashes": {"zip": "1001"}}
    assert Keys(["1001"]).without(found) == {
        "until_offset": 1001, "rows": 1001, "zip": 1001, "hashes": {"zip": "(erased)"},
    }  # fmt: skip


def test_partition_columns_are_found_when_their_values_come_from_erased_columns() -> None:
    assert columns_of(load_pipeline("isp_hits"), ["zipcode", "user"]) == ["zip"]
    assert columns_of(load_pipeline("isp_hits"), ["user"]) == []


def renamed_isp() -> Pipeline:
    """The pipeline after its column `zipcode` was renamed."""
    isp = load_pipeline("isp_hits")
    columns = isp.archive.columns.replace("zipcode", "zip_code")
    by = {"partition_by": {"zip": "zip_code"}, "renamed": {"zip_code": "zipcode"}}
    return replace(isp, archive=replace(isp.archive, columns=columns, rules=(), **by))  # type: ignore[arg-type]


def test_partition_columns_are_found_when_their_column_was_renamed_since_the_erasure_began() -> None:
    isp = renamed_isp()
    assert columns_of(isp, ["zipcode"]) == columns_of(isp, ["zip_code"]) == ["zip"]
    assert columns_of(isp, ["user"]) == []


def erase(*columns: str) -> int:
    """An erasure that begins after all builds of now."""
    with session() as ledger:
        last = ledger.query(Build.id).order_by(Build.id.desc()).first()
        hashes = hashes_of([ZIP, "nobody"], "00" * 16)
        row = Erasure(
            pipeline=PIPELINE, columns=list(columns), reason="r", begun_by="me", salt="00" * 16, key_hashes=hashes,
            counts={}, intervals=[], last_build=last[0] if last else 0,
        )  # fmt: skip
        ledger.add(row)
        ledger.flush()
        return row.id


@pytest.mark.services
def test_names_leave_the_ledger_when_nobody_reads_the_revisions_any_more(postgres: Home) -> None:
    # Another zip code of one hour, and rows that came anew in the next.
    register_hour(0, part=f"zip={ZIP}")
    register_hour(1, part="zip=zq7-100011")
    number = erase("zipcode")
    register_hour(2, part=f"zip={ZIP}")
    isp = load_pipeline("isp_hits")
    begun = unfinished.unfinished(PIPELINE)
    assert begun is not None
    # The declaration of isp_hits, whose partitions the revisions have.
    parts = named_partitions.parts_before(PIPELINE, columns_of(isp, begun.columns), begun.last_build)
    assert parts == {f"zip={ZIP}", "zip=zq7-100011"}
    names = Names({f"zip={ZIP}"})
    with pytest.raises(TidemarkError, match="is registered; the erasure is unfinished"):
        named_partitions.forget_names(begun, PIPELINE, names)
    with session() as ledger:
        for row in ledger.query(Revision).filter(Revision.build_id <= begun.last_build):
            row.state = RevisionState.REMOVED
        interval, next_one = (row.interval_id for row in ledger.query(Revision).order_by(Revision.build_id).limit(2))
    # What a run announces as dropped.
    assert revisions.no_longer_registered(interval) == [(PIPELINE, f"date=2026-11-20/zip={ZIP}/interval=2026-11-20T05")]
    assert named_partitions.forget_names(begun, PIPELINE, names) == 1
    assert revisions.no_longer_registered(interval) == []
    assert len(revisions.no_longer_registered(next_one)) == 1
    with session() as ledger:
        listed = {row.table_partition: row.location for row in ledger.query(Revision)}
        changes = [row.changes for row in ledger.query(Build).order_by(Build.id)]
    gone = f"date=2026-11-20/zip=(erased {number}.1)/interval=2026-11-20T05"
    other, fresh = (f"date=2026-11-20/zip={ZIP}{n}" for n in ("1/interval=2026-11-20T06", "/interval=2026-11-20T07"))
    assert set(listed) == {gone, other, fresh}
    assert f"/{gone}/" in listed[gone]
    assert [len(each["points"]) for each in changes if each] == [1, 1, 1]
    assert [ZIP + "/" in json.dumps(each) for each in changes] == [False, False, True]
    assert remnants.in_database(postgres, f"{ZIP}/interval=2026-11-20T05") == []
    assert named_partitions.forget_names(begun, PIPELINE, names) == 0
    assert named_partitions.renamed_by(number, PIPELINE) == 1
    assert named_partitions.renamed_by(number + 1, PIPELINE) == 0
    # A proof may quote the other key, which no partition has.
    declared, quoted = replace(isp, name=PIPELINE), replace(begun, counts={"reasons": 1})
    [told] = remaining_in_proofs(declared, quoted)
    assert told.startswith("1 reason of an approval")
    assert remaining_in_proofs(declared, replace(quoted, key_hashes=begun.key_hashes[:1])) == []


@pytest.mark.services
def test_names_are_found_by_their_hashes_when_an_erasure_goes_on(postgres: Home) -> None:
    isp = load_pipeline("isp_hits")
    postgres.ledger("DELETE FROM erasures")
    register_hour(20, part=f"zip={ZIP}")
    with session() as ledger:
        for row in ledger.query(Revision).filter(Revision.table_partition.like(f"%zip={ZIP}/interval=2026-11-21T01")):
            row.table_name = isp.table
    erase("zipcode")
    begun = unfinished.unfinished(PIPELINE)
    assert begun is not None
    assert names_of(isp, begun).parts == {f"zip={ZIP}"}
    assert names_of(renamed_isp(), begun).parts == {f"zip={ZIP}"}
    assert remaining_in_names(isp, begun) == []
    # It may have been so before another column was declared.
    other = replace(isp, archive=replace(isp.archive, partition_by={"zip": "isp"}))
    assert not names_of(other, begun)
    (told,) = remaining_in_names(other, begun)
    assert "that equal a key, by the partition column zip: values of isp, unless" in told
    assert ZIP not in told
    with session() as ledger:
        ledger.query(Erasure).delete()
    erase("user")
    begun = unfinished.unfinished(PIPELINE)
    assert begun is not None
    assert not names_of(isp, begun)
