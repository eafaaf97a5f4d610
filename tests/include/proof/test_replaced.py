"""Proofs that name an erased table partition are replaced, and the chain holds for whoever checks it afterwards."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from sqlalchemy import func, update

from include.doctor.examine import lost_proofs
from include.erasure.check import remaining_in_proofs
from include.erasure.names import Names
from include.errors import ServiceUnreachable, TidemarkError, UsageError
from include.ledger import connection
from include.ledger.database import engine, session
from include.ledger.erasures import named_partitions
from include.ledger.intervals.revisions import ERASED as ERASED_NAME
from include.ledger.models import IntervalRow, Revision
from include.pipelines import load_pipeline
from include.proof import replace, verify
from include.proof.replace import replace_proofs, replaced_by
from include.proof.signing import own_public_key
from include.proof.write import prove_registered
from include.settings import settings
from tests.conftest import Home, SetSettings, settings_of
from tests.support.proved import PIPELINE, register_hour

pytestmark = [pytest.mark.services]

NAMES = load_pipeline(PIPELINE)
ZIP = "zq7-10001"
ERASED = Names({f"zip={ZIP}"})


_HOURS = count()


def prove(part: str = "") -> Path:
    """The proof of the next hour."""
    written = prove_registered(NAMES, register_hour(next(_HOURS), part=part))
    assert written is not None
    return Path(written.removeprefix("file://"))


def key_in(folder: Path) -> str:
    path = folder / "proof.key"
    path.write_bytes(Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)
    return str(path)


@pytest.fixture(params=["signed", "unsigned"])
def chain(postgres: Home, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[Path]]:
    """Four proofs, of which the second and the third name the partition, and a copy of each."""
    key = {"TIDEMARK_PROOF_KEY": key_in(tmp_path)} if request.param == "signed" else {}
    with session() as ledger:
        ledger.query(IntervalRow).delete()
    shutil.rmtree(postgres.lake / "proofs", ignore_errors=True)
    with settings_of(postgres, **key):
        yield [prove(f"zip={ZIP}" if n in (1, 2) else "") for n in range(4)]


@pytest.fixture
def copies(chain: list[Path], tmp_path: Path) -> list[bytes]:
    return [each.read_bytes() for each in chain]


def check(content: bytes, chain: list[Path]) -> verify.Report:
    return verify.check(content, verify.open_lake(str(chain[0].parents[2])), None, own_public_key())


def has_key() -> bool:
    return bool(own_public_key())


def test_proofs_name_nothing_and_hold_with_all_that_follow_when_they_were_replaced(
    chain: list[Path], copies: list[bytes]
) -> None:
    assert replace_proofs(NAMES, 3, ERASED) == 3
    assert [each.read_bytes() == copy for each, copy in zip(chain, copies, strict=True)] == [True, False, False, False]
    assert not any(ZIP in each.read_text() for each in chain)
    for path in chain:
        assert check(path.read_bytes(), chain).differences == []
    assert (replaced_by(NAMES, 3), replaced_by(NAMES, 4)) == (3, 0)
    told = check(chain[2].read_bytes(), chain).notes
    assert any("by erasure 3" in each for each in told)
    assert any("zip=(erased)/" in each and "was erased" in each for each in told)
    assert replace_proofs(NAMES, 3, ERASED) == 3
    # The chain goes on from what was replaced, and a second erasure tells of both.
    following = prove()
    assert check(following.read_bytes(), chain).differences == []
    assert replace_proofs(NAMES, 4, Names({"date=2026-11-20"})) > 0
    assert [each["erasure"] for each in json.loads(chain[2].read_text())["replaces"]] == [3, 4]


@pytest.mark.parametrize("chain", ["unsigned"], indirect=True)
def test_proofs_after_a_lost_one_are_replaced_when_there_is_no_copy_of_it(
    chain: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = chain[1].read_bytes()
    chain[1].unlink()
    assert replace_proofs(NAMES, 3, ERASED) == replaced_by(NAMES, 3) == 2
    assert not any(ZIP in each.read_text() for each in chain[2:])
    (differs,) = check(chain[2].read_bytes(), chain).differences
    assert differs.startswith("chain: ")
    begun: Any = SimpleNamespace(id=3, key_hashes=["00" * 32], counts={})
    for renamed, told in ((0, []), (1, ["proofs that were not replaced, as their files are gone (1)"])):
        monkeypatch.setattr(named_partitions, "values_renamed_by", lambda *_, renamed=renamed: renamed)
        assert [each.partition(":")[0] for each in remaining_in_proofs(NAMES, begun)] == told
    chain[1].write_bytes(lost)
    assert check(chain[2].read_bytes(), chain).differences == []
    chain[1].write_text("no proof")
    with pytest.raises(TidemarkError, match=f"{chain[1].name} is no proof") as refused:
        replace_proofs(NAMES, 4, ERASED)
    assert "or delete what is there if there is none" in refused.value.remedy


@pytest.mark.parametrize("chain", ["unsigned"], indirect=True)
def test_earlier_copies_of_a_lost_proof_are_warned_of_when_an_erasure_has_replaced_proofs(chain: list[Path]) -> None:
    chain[1].unlink()
    (before,) = lost_proofs(NAMES)
    assert before.remedy.startswith("put them back from the lake's last copy, if it has them: ")
    with session() as ledger:
        renamed = func.replace(Revision.table_partition, f"zip={ZIP}", f"zip{ERASED_NAME}3.1)")
        ledger.execute(update(Revision).values(table_partition=renamed))
    (after,) = lost_proofs(NAMES)
    assert after.remedy.startswith(
        "put them back from a copy since the last erasure, never from an earlier one, which "
    )


@pytest.mark.parametrize("chain", ["unsigned"], indirect=True)
def test_erasure_is_unfinished_when_the_folder_of_proofs_is_away(chain: list[Path]) -> None:
    """As that of a disk of its own, until it is mounted again."""
    folder, away = chain[0].parent, chain[0].parents[1] / "away"
    folder.rename(away)
    with pytest.raises(TidemarkError, match=f"the folder proofs/{PIPELINE} is gone with all proofs") as refused:
        replace_proofs(NAMES, 3, ERASED)
    # There may be no copy of it.
    folder.mkdir()
    assert replace_proofs(NAMES, 3, ERASED) == 0
    folder.rmdir()
    away.rename(folder)
    assert f"make the folder {folder}" in refused.value.remedy
    assert replace_proofs(NAMES, 3, ERASED) == 3


def test_reason_of_an_approval_names_no_key_when_its_proof_was_replaced() -> None:
    decision = {"decision": "approved", "by": "me@here", "reason": f"all of {ZIP}", "at": "2026-11-20T05:00:00Z"}
    validation = {"success": True, "suite": "s", "decision": decision}
    for given, wanted in ((decision, {**decision, "reason": "(erased)"}), (None, None)):
        proof = {"validation": {**validation, "decision": given}, "expectations": [], "previous": {}}
        assert replace._replacement(proof, {}, ERASED)["validation"] == {**validation, "decision": wanted}


def test_former_proof_holds_by_what_stands_for_it_when_it_was_signed(chain: list[Path], copies: list[bytes]) -> None:
    replace_proofs(NAMES, 3, ERASED)
    for number, copy in enumerate(copies):
        found = check(copy, chain)
        if not has_key():
            # Nobody vouches for what stands there now; the first is as it was.
            assert bool(found.differences) == bool(number)
            continue
        assert found.differences == []
        assert any("another stands for it" in each for each in found.notes) == bool(number)


@pytest.mark.parametrize("moment", ["proof_replaced", "proof_replaced:2", "proof_replaced:3"])
def test_chain_ends_as_without_a_kill_when_replacing_was_killed(
    chain: list[Path], copies: list[bytes], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    passed = iter(range(1, 100))
    wanted = int(moment.partition(":")[2] or 1)

    def killed(name: str) -> None:
        if name == "proof_replaced" and next(passed) == wanted:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(replace, "crash_point", killed)
        with pytest.raises(KeyboardInterrupt):
            replace_proofs(NAMES, 3, ERASED)
    # Somebody announces an interval before the erasure goes on.
    following = prove()
    assert replace_proofs(NAMES, 3, ERASED) == 4
    for path in (*chain, following):
        assert ZIP not in path.read_text()
        assert check(path.read_bytes(), chain).differences == []


@pytest.mark.parametrize("chain", ["unsigned"], indirect=True)
def test_interval_is_announced_when_the_process_that_replaces_proofs_is_stopped_at_one(
    chain: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    following: list[Path] = []
    seconds = iter((1.2, 1.2, 3.0))

    def stopped(name: str) -> None:
        # The first two are slow, but the chain is still held.
        time.sleep(idle := next(seconds))
        if idle > connection.IDLE_SECONDS:
            following.append(prove())

    with monkeypatch.context() as patch:
        patch.setattr(connection, "IDLE_SECONDS", 2)
        patch.setattr(connection, "LOCK_SECONDS", 1)
        engine().dispose()
        patch.setattr(replace, "crash_point", stopped)
        with pytest.raises(ServiceUnreachable):
            replace_proofs(NAMES, 3, ERASED)
    engine().dispose()
    assert following
    assert replace_proofs(NAMES, 3, ERASED) == 4
    for path in (*chain, *following):
        assert check(path.read_bytes(), chain).differences == []


def sign_again(document: dict[str, Any], key: Ed25519PrivateKey) -> None:
    document["signature"] = {"algorithm": "Ed25519", "public_key": key.public_key().public_bytes_raw().hex()}
    document["signature"]["value"] = key.sign(verify.canonical(document)).hex()


def other_rows(document: dict[str, Any]) -> None:
    document["tables"][0]["rows"] = document["tables"][0]["files"][0]["rows"] = 1


def other_hash(document: dict[str, Any]) -> None:
    document["tables"][0]["files"][0]["sha256"] = "0" * 64


@pytest.mark.parametrize("chain", ["signed"], indirect=True)
@pytest.mark.parametrize("forge", [other_rows, other_hash])
def test_replacement_is_named_by_the_former_proof_when_it_was_forged(
    chain: list[Path], copies: list[bytes], forge: Callable[[dict[str, Any]], None]
) -> None:
    replace_proofs(NAMES, 3, ERASED)
    own = settings().proof_key
    assert own is not None
    key = load_pem_private_key(own.read_bytes(), None)
    assert isinstance(key, Ed25519PrivateKey)
    document = json.loads(chain[2].read_text())
    forge(document)
    sign_again(document, key)
    chain[2].write_text(json.dumps(document))
    assert any("differs in more than names" in each for each in check(copies[2], chain).differences)
    sign_again(document, Ed25519PrivateKey.generate())
    chain[2].write_text(json.dumps(document))
    assert any("is not signed by its key" in each for each in check(copies[2], chain).differences)
    assert any("was changed since" in each for each in check(copies[3], chain).differences)


@pytest.mark.parametrize("chain", ["signed"], indirect=True)
def test_signed_proofs_are_not_replaced_when_no_key_is_set(
    postgres: Home, chain: list[Path], copies: list[bytes], set_settings: SetSettings
) -> None:
    set_settings(TIDEMARK_PROOF_KEY=None)
    with pytest.raises(UsageError, match="no key is set"):
        replace_proofs(NAMES, 3, ERASED)
    assert [each.read_bytes() for each in chain] == copies
