"""Proofs of registered intervals: written once, chained and signed, and whatever is changed since is named."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from include.doctor.examine import lost_proofs, unproved
from include.errors import UsageError
from include.intervals import steps
from include.ledger import proofs
from include.ledger.database import lock
from include.ledger.intervals import pins
from include.pipelines import load_pipeline
from include.proof import signing, verify
from include.proof.check import check_proof
from include.proof.write import prove_registered
from include.settings import settings, write_private
from tests.conftest import REPOSITORY, Home, SetSettings, settings_of
from tests.support.attempts import hour
from tests.support.ledger_waits import waits_with
from tests.support.proved import PIPELINE, register_hour

pytestmark = [pytest.mark.services]

NAMES = load_pipeline(PIPELINE)


def prove(interval: int) -> Path:
    written = prove_registered(NAMES, interval)
    assert written is not None
    return Path(written.removeprefix("file://"))


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "proof.key"
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(pem)
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def signed(postgres: Home, key: Path) -> Iterator[list[Path]]:
    """Three signed proofs of the hours 0, 1 and 2."""
    with settings_of(postgres, TIDEMARK_PROOF_KEY=str(key)):
        yield [prove(register_hour(number)) for number in range(3)]


@pytest.fixture
def copied(signed: list[Path], tmp_path: Path) -> Path:
    """A copy of the lake with the proofs."""
    lake = signed[0].parents[2]
    return Path(shutil.copytree(lake, tmp_path / "lake"))


def proof_in(lake: Path, signed: list[Path], number: int = 1) -> Path:
    return lake / signed[number].relative_to(signed[number].parents[2])


def differences(proof: Path, lake: Path, public_key: str = "") -> list[str]:
    return verify.check(proof.read_bytes(), verify.open_lake(str(lake)), None, public_key).differences


def change(proof: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(proof.read_text())
    edit(document)
    proof.write_text(json.dumps(document, indent=1) + "\n")


def part(lake: Path, proof: Path) -> Path:
    table = json.loads(proof.read_text())["tables"][0]
    return lake / table["location"] / table["files"][0]["name"]


def test_proof_verifies_and_names_the_registration_when_nothing_changed(signed: list[Path], key: Path) -> None:
    report = check_proof(str(signed[1]))
    assert (report.differences, report.notes) == ([], [])
    proof = json.loads(signed[1].read_text())
    assert proof["interval"] == {"from": "2026-11-20T06:00:00Z", "to": "2026-11-20T07:00:00Z"}
    assert proof["ranges"][1] == {
        "topic": "nest-logs", "topic_id": "id", "partition": 1, "from_offset": 100, "until_offset": 200,
        "archived": 95, "empty": 2, "quarantined": 3, "gaps": 0, "erased": 0,
    }  # fmt: skip
    assert proof["record_hashes"]["present"] is False
    assert set(proof["previous"]) == set(NAMES.tables)
    assert {each["file"] for each in proof["previous"].values()} == {json.loads(signed[0].read_text())["file"]}
    assert proof["signature"]["public_key"] == signing.own_public_key()
    assert len(proof["lock_sha256"]) == 64


def test_proof_is_checked_when_the_properties_file_names_brokers(
    signed: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_private(tmp_path / "kafka.properties", "bootstrap.servers=cloud:9092\nclient.id=auditor\n")
    others = replace(settings(), kafka_bootstrap="", kafka_properties=tmp_path / "kafka.properties")
    monkeypatch.setattr("include.proof.check.settings", lambda: others)
    asked: list[object] = []
    monkeypatch.setattr(verify, "_check_kafka", lambda _, __, options, ___: asked.append(options))
    for brokers in ("", "other:9092"):
        assert check_proof(str(signed[1]), kafka=brokers).differences == []
    assert asked == [{"client.id": "auditor", "bootstrap.servers": "other:9092"}]


def drop_row(lake: Path, proof: Path, *, told: bool = False) -> None:
    """Rewrite the file with other content; `told`: also in the proof, as somebody without the key could."""
    path = part(lake, proof)
    table = pq.ParquetFile(path).read()
    pq.write_table(table.slice(2), path)
    if told:
        tell(proof, path, table.num_rows - 2)


def double_row(lake: Path, proof: Path) -> None:
    path = part(lake, proof)
    table = pq.ParquetFile(path).read()
    pq.write_table(pa.concat_tables([table.slice(1), table.slice(1, 1)]), path)
    tell(proof, path, table.num_rows)


def change_value(lake: Path, proof: Path) -> None:
    path = part(lake, proof)
    table = pq.ParquetFile(path).read()
    other = pa.array(["d-x"] * table.num_rows)
    pq.write_table(table.set_column(table.column_names.index("device_id"), "device_id", other), path)


def tell(proof: Path, path: Path, rows: int) -> None:
    def edit(document: dict[str, Any]) -> None:
        table = document["tables"][0]
        table["rows"] = table["files"][0]["rows"] = rows
        table["files"][0]["sha256"] = verify.open_lake("/").sha256(str(path))

    change(proof, edit)


def sign_by_another(proof: Path) -> None:
    key = Ed25519PrivateKey.generate()

    def edit(document: dict[str, Any]) -> None:
        document["signature"]["public_key"] = key.public_key().public_bytes_raw().hex()
        document["signature"]["value"] = key.sign(verify.canonical(document)).hex()

    change(proof, edit)


def flip(proof: Path) -> None:
    def edit(document: dict[str, Any]) -> None:
        value = document["signature"]["value"]
        document["signature"]["value"] = ("0" if value[0] != "0" else "1") + value[1:]

    change(proof, edit)


def add_records(lake: Path, proof: Path, *records: tuple[int, int]) -> None:
    """Add a row for each of these topic partitions and offsets, and let the proof say so."""
    path = part(lake, proof)
    table = pq.ParquetFile(path).read()
    [first] = table.slice(0, 1).to_pylist()
    rows = [{**first, "kafka_partition": partition, "kafka_offset": offset} for partition, offset in records]
    pq.write_table(pa.concat_tables([table, pa.Table.from_pylist(rows, table.schema)]), path)
    tell(proof, path, table.num_rows + len(records))


def replace_files(lake: Path, proof: Path, *, before: bool = False) -> None:
    """Remove the files, and put another proof of the interval there: unsigned, or signed and of a time `before`."""
    part(lake, proof).unlink()
    time = "2026-11-20T00:00:00Z" if before else "2100-01-01T00:00:00Z"
    interval = json.loads(proof.read_text())["interval"]
    other = {"format": verify.FORMAT, "interval": interval, "build": 99, "registered_at": time}
    other |= {"previous": {}, "tables": []}
    signature = {"signature": signing.signature_of(verify.canonical(other))} if before else {}
    proof.with_name("x.json").write_text(json.dumps(other | signature))


def repeat_records(proof: Path) -> None:
    """Write other records before the signed ones: many readers take the first."""
    proof.write_text(proof.read_text().replace('"records":', '"records": {"archived": 5}, "records":', 1))


def add_file(lake: Path, proof: Path, name: str) -> None:
    path = part(lake, proof).parent / name
    path.parent.mkdir(exist_ok=True)
    shutil.copy(part(lake, proof), path)


def change_range(**values: Any) -> Corruption:
    return lambda _, proof: change(proof, lambda it: it["ranges"][0].update(values))


Corruption = Callable[[Path, Path], object]
CORRUPTIONS: dict[str, tuple[Corruption, set[str]]] = {
    "a value of a row is another": (change_value, {"file changed"}),
    "a row is gone": (drop_row, {"file changed", "rows", "records"}),
    "a row is gone and the proof says so": (
        lambda lake, proof: drop_row(lake, proof, told=True),
        {"signature", "records", "chain"},
    ),
    "a row is there twice and the proof says so": (double_row, {"signature", "duplicates", "records", "chain"}),
    "a file is gone": (lambda lake, proof: part(lake, proof).unlink(), {"file missing"}),
    "a file is cut": (
        lambda lake, proof: part(lake, proof).write_bytes(part(lake, proof).read_bytes()[:-9]),
        {"file changed", "rows"},
    ),
    "a file is added": (
        lambda lake, proof: shutil.copy(part(lake, proof), part(lake, proof).with_name("part-1.parquet")),
        {"extra file"},
    ),
    "a file is added in a folder": (lambda lake, proof: add_file(lake, proof, "more/part-0.parquet"), {"extra file"}),
    "a hidden file is added": (lambda lake, proof: add_file(lake, proof, "_part-1.parquet"), {"extra file"}),
    "a file's name writes lines": (
        lambda lake, proof: add_file(lake, proof, "x\x1b[2K\r\neverything that was checked is as the proof states"),
        {"extra file"},
    ),
    "a part is there twice": (lambda lake, proof: repeat_records(proof), {"format"}),
    "the signature holds more": (
        lambda lake, proof: change(proof, lambda it: it["signature"].update(signer="Ann")),
        {"signature", "chain"},
    ),
    "the archive's files are left out": (
        lambda lake, proof: change(proof, lambda it: it.update(tables=[])),
        {"signature", "records", "chain"},
    ),
    "a count is another": (
        lambda lake, proof: change(proof, lambda it: it["ranges"][0].update(archived=94)),
        {"signature", "counts", "records", "chain"},
    ),
    "a content hash is another": (
        lambda lake, proof: change(proof, lambda it: it["tables"][0].update(content_hash="v2:9")),
        {"signature", "chain"},
    ),
    "an expectation was not met": (
        lambda lake, proof: change(proof, lambda it: it["expectations"][0].update(success=False)),
        {"signature", "verdict", "chain"},
    ),
    "the signature is another": (lambda lake, proof: flip(proof), {"signature", "chain"}),
    "the signature is taken away": (
        lambda lake, proof: change(proof, lambda it: it.update(signature={"algorithm": "none"})),
        {"signature", "chain"},
    ),
    "the proof is signed by another": (lambda lake, proof: sign_by_another(proof), {"signature", "chain"}),
    "the proof before is another": (
        lambda lake, proof: change(before(proof), lambda it: it["records"].update(archived=191)),
        {"chain"},
    ),
    "the proof before is gone": (lambda lake, proof: before(proof).unlink(), {"chain"}),
    "the chain leads elsewhere": (
        lambda lake, proof: change(proof, lambda it: it["previous"][PIPELINE].update(sha256="0" * 64)),
        {"signature", "chain"},
    ),
    "the proof is cut": (lambda lake, proof: proof.write_bytes(proof.read_bytes()[:-20]), {"format"}),
    "a file lies elsewhere": (
        lambda lake, proof: change(proof, lambda it: it["tables"][0].update(location="../tables")),
        {"signature", "chain", "format"},
    ),
    "a part of the proof is gone": (
        lambda lake, proof: change(proof, lambda it: it.pop("reconciliation")),
        {"signature", "chain", "format"},
    ),
    "a row is of an offset of no range": (
        lambda lake, proof: add_records(lake, proof, (0, 77)),
        {"signature", "records", "chain"},
    ),
    "the ranges are left out": (
        lambda lake, proof: change(proof, lambda it: it.update(ranges=[])),
        {"signature", "counts", "records", "chain"},
    ),
    "the ranges and the archive's files are left out": (
        lambda lake, proof: change(proof, lambda it: it.update(ranges=[], tables=[])),
        {"signature", "counts", "chain"},
    ),
    "an offset has more than 64 bits": (
        change_range(until_offset=2**63),
        {"signature", "counts", "chain", "format"},
    ),
    "a topic partition is a text": (change_range(partition="0"), {"signature", "chain", "format"}),
    "a topic is a number": (change_range(topic=5), {"signature", "chain", "format"}),
    "a file's name cannot be one": (
        lambda lake, proof: change(proof, lambda it: it["tables"][0]["files"][0].update(name="a\0.parquet")),
        {"signature", "chain", "extra file", "format"},
    ),
    "a place cannot be encoded": (
        lambda lake, proof: change(proof, lambda it: it["tables"][0].update(location="\udc80")),
        {"signature", "chain", "format"},
    ),
    "words cannot be encoded": (
        lambda lake, proof: change(proof, lambda it: it["expectations"][0].update(success=False, words="\udc80")),
        {"signature", "verdict", "chain"},
    ),
    "a file is gone and an unsigned proof says that it was replaced": (
        lambda lake, proof: replace_files(lake, proof),
        {"file missing"},
    ),
    "a file is gone and a signed proof of an earlier registration has a later number": (
        lambda lake, proof: replace_files(lake, proof, before=True),
        {"file missing"},
    ),
    "it is nested too deeply": (lambda lake, proof: proof.write_text("[" * 100_000), {"format"}),
}


def before(proof: Path) -> Path:
    return proof.parents[2] / json.loads(proof.read_text())["previous"][PIPELINE]["file"]


@pytest.mark.parametrize("what", CORRUPTIONS)
def test_corruption_is_named_when_it_was_seeded(what: str, copied: Path, signed: list[Path]) -> None:
    proof, public_key = proof_in(copied, signed), signing.own_public_key()
    assert differences(proof, copied, public_key) == []
    corrupt, named = CORRUPTIONS[what]
    corrupt(copied, proof)
    report = verify.check(proof.read_bytes(), verify.open_lake(str(copied)), None, public_key)
    assert {each.split(":")[0] for each in report.differences} == named
    told = "\n".join(verify.lines(report))
    assert len(told.encode().splitlines()) == len(report.differences + report.notes) + 1
    assert "\x1b" not in told
    assert verify.main([str(proof), "--lake", str(copied), "--public-key", public_key]) == 3


@pytest.mark.parametrize(
    ("replayed", "records", "holds"),
    [
        # An offset of each range that was quarantined, and one of an earlier interval.
        (3, [(0, 198), (1, 198), (0, 7)], True),
        (2, [(0, 198), (1, 198), (0, 7)], False),
        (1, [(0, 198), (1, 198)], False),
        (1, [(0, 7)], True),
        (0, [(0, 7)], False),
    ],
)
def test_proof_holds_when_as_many_records_besides_those_of_its_ranges_have_rows_as_were_replayed(
    copied: Path, signed: list[Path], replayed: int, records: list[tuple[int, int]], holds: bool
) -> None:
    proof = proof_in(copied, signed)
    add_records(copied, proof, *records)
    change(proof, lambda it: it["records"].update(replayed=replayed))
    found = [each for each in differences(proof, copied) if each.startswith("records")]
    besides = [each for each in records if each[1] == 7]
    told = f"records: {len(records)} records besides those of the ranges have rows, {len(besides)} of them of other"
    assert [each.partition(" offsets")[0] for each in found] == ([] if holds else [told])


@pytest.mark.parametrize(
    ("severity", "decision", "differs"),
    [
        ("fail", {"decision": "approved", "by": "ann"}, True),
        ("warn", None, True),
        ("warn", {"decision": "refused", "by": "ann"}, True),
        ("warn", {"decision": "approved", "by": "ann"}, False),
        ("info", None, False),
    ],
)
def test_warning_holds_when_a_person_approved_it(
    copied: Path, signed: list[Path], severity: str, decision: dict[str, str] | None, differs: bool
) -> None:
    proof = proof_in(copied, signed)
    change(proof, lambda it: it["expectations"][0].update(success=False, severity=severity))
    change(proof, lambda it: it["validation"].update(decision=decision))
    report = verify.check(proof.read_bytes(), verify.open_lake(str(copied)))
    assert any(each.startswith("verdict: not met") for each in report.differences) == differs
    assert any(each.startswith("not met: ") for each in report.notes) != differs


def test_ranges_are_named_when_they_hold_the_same_offsets(copied: Path, signed: list[Path]) -> None:
    proof = proof_in(copied, signed)
    change(proof, lambda it: it["ranges"].append({**it["ranges"][0], "from_offset": 190, "until_offset": 210}))
    assert "counts: nest-logs-0 [100, 200) and nest-logs-0 [190, 210) hold the same offsets" in differences(
        proof, copied
    )


def test_other_files_accuse_no_proof_when_the_expected_key_did_not_sign_them(copied: Path, signed: list[Path]) -> None:
    proof, public_key = proof_in(copied, signed), signing.own_public_key()
    own = json.loads(proof.read_text())["file"]
    links = {PIPELINE: {"file": own, "sha256": "0" * 64}}
    for name, content in (
        ("a.json", {"format": verify.FORMAT, "previous": {}}),
        ("b.json", {"format": verify.FORMAT, "previous": links}),
        ("c.json", {}),
    ):
        proof.with_name(name).write_text(json.dumps(content))
    report = verify.check(proof.read_bytes(), verify.open_lake(str(copied)), None, public_key)
    assert report.differences == []
    assert [name for name in "abc" if any(f"/{name}.json, which is not signed" in each for each in report.notes)] == [
        *"abc"
    ]
    part(copied, proof).unlink()
    assert [each.split(":")[0] for each in differences(proof, copied)] == ["chain"] * 3 + ["file missing"]


def test_rows_are_compared_when_another_file_is_gone(copied: Path, signed: list[Path]) -> None:
    proof = proof_in(copied, signed)
    double_row(copied, proof)
    gone = {"name": "gone.parquet", "sha256": "0" * 64, "rows": 0}
    change(proof, lambda it: it["tables"][0]["files"].append(gone))
    report = verify.check(proof.read_bytes(), verify.open_lake(str(copied)))
    assert any(each.startswith("duplicates: ") for each in report.differences)
    assert not any(each.startswith("records: ") for each in report.differences)
    assert any(each.startswith("rows are not compared with the ranges: ") for each in report.notes)


def test_lake_is_told_as_away_when_rows_of_an_unchanged_file_cannot_be_read(
    copied: Path, signed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_away(_: object) -> None:
        raise OSError("no answer")

    monkeypatch.setattr(verify.pq, "ParquetFile", is_away)
    with pytest.raises(verify.LakeUnreachable, match="no answer"):
        differences(proof_in(copied, signed), copied)


def test_proof_verifies_when_the_next_one_is_half_written(copied: Path, signed: list[Path]) -> None:
    proof = proof_in(copied, signed)
    proof.with_name("half.json.tmp").write_text('{"format": ')
    assert differences(proof, copied) == []


@pytest.mark.parametrize("is_noted_decompressed", [False, True], ids=["now", "by earlier code"])
def test_bytes_of_a_compressed_file_are_compared_when_it_is_gzip(
    copied: Path, signed: list[Path], is_noted_decompressed: bool
) -> None:
    proof = proof_in(copied, signed)
    content = b"a,b\n1,2\n" * 100
    file = part(copied, proof).with_name("part-0.csv.gz")
    file.write_bytes(gzip.compress(content))

    def tell(document: dict[str, Any]) -> None:
        noted = content if is_noted_decompressed else file.read_bytes()
        document["tables"][0]["files"].append(
            {"name": file.name, "sha256": hashlib.sha256(noted).hexdigest(), "rows": 0}
        )

    change(proof, tell)
    assert file_differences(proof, copied) == []
    whole = file.read_bytes()
    middle = len(whole) // 2
    file.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    assert file_differences(proof, copied) == ["file changed"]


def file_differences(proof: Path, lake: Path) -> list[str]:
    return [kind for each in differences(proof, lake) if (kind := each.split(":")[0]).startswith("file")]


def test_stripped_signature_is_named_when_the_key_is_not_known(copied: Path, signed: list[Path]) -> None:
    last = proof_in(copied, signed, 2)
    change(last, lambda it: it.update(signature={"algorithm": "none"}))
    [found] = differences(last, copied)
    assert found.startswith("signature: the proof is unsigned, and proofs/nest_cameras/")


def test_file_checks_a_proof_when_nothing_of_the_project_is_there(
    copied: Path, signed: list[Path], tmp_path: Path
) -> None:
    alone = Path(shutil.copy(verify.__file__, tmp_path / "verify.py"))
    proof = proof_in(copied, signed)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", str(alone), *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    held = run(str(proof))
    assert (held.returncode, held.stderr) == (0, "")
    assert "whose key that is was not checked" in held.stdout
    assert run(str(proof), "--public-key", signing.own_public_key()).stdout.count("\n") == 1
    drop_row(copied, proof)
    broken = run(str(proof), "--lake", copied.as_uri())
    assert broken.returncode == 3
    assert f"differs: file changed: {json.loads(proof.read_text())['tables'][0]['location']}" in broken.stdout
    assert run(str(tmp_path / "none.json")).returncode == 64
    assert run().returncode == 64
    assert run(str(alone)).returncode == 3
    moved = run(shutil.copy(proof, tmp_path))
    assert (moved.returncode, "name the lake with --lake" in moved.stderr) == (64, True)


def test_exit_code_is_64_when_what_it_needs_is_not_installed(
    copied: Path, signed: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    proof = str(proof_in(copied, signed))
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    assert verify.main([proof, "--kafka", "127.0.0.1:1"]) == 64
    assert "--kafka needs confluent-kafka 2.3 or later" in capsys.readouterr().err
    assert verify.main([proof]) == 0
    monkeypatch.setattr(pa, "__version__", "13.0.0")
    assert verify.main([proof]) == 64
    assert capsys.readouterr().err == "pyarrow 14 or later is needed, installed is 13.0.0\n"


def test_exit_code_is_64_when_the_public_key_is_none(
    postgres: Home, copied: Path, signed: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    proof, public_key = str(proof_in(copied, signed)), signing.own_public_key()
    for given, code in (("", 64), (proof, 64), (public_key[1:], 64), (f"{public_key.upper()}\n", 0)):
        assert verify.main([proof, "--public-key", given]) == code
    assert "is not a public key of 64 hexadecimal digits" in capsys.readouterr().err
    postgres.run("verify", str(signed[1]), "--public-key", "", expect=64)


def test_exit_code_is_3_with_every_difference_when_something_differs(
    postgres: Home, copied: Path, signed: list[Path]
) -> None:
    proof = proof_in(copied, signed)
    assert postgres.json("verify", str(signed[1]), "--json")["differences"] == []
    part(copied, proof).unlink()
    broken = postgres.run("verify", str(proof), "--lake", copied.as_uri(), expect=3)
    assert "differs: file missing: tables/nest_cameras/" in broken.stdout
    assert "differs: format: it is not JSON" in postgres.run("verify", str(REPOSITORY / "uv.lock"), expect=3).stdout
    postgres.run("verify", str(copied / "none.json"), expect=64)


def test_exit_code_is_6_when_lake_or_file_cannot_be_read(
    postgres: Home, copied: Path, signed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = proof_in(copied, signed)
    unreadable = part(copied, proof)
    unreadable.unlink()
    # It can be opened, and refuses to be read: EIO.
    unreadable.symlink_to("/proc/self/mem")
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "REGION"):
        monkeypatch.setenv(f"AWS_{name}", "none")
    nobody = "s3://bucket/lake?endpoint_override=127.0.0.1:1&scheme=http"
    for lake, code, said in (
        (copied.as_uri(), 6, unreadable.name),
        (nobody, 6, "127.0.0.1:1"),
        ("nothing://lake", 64, "nothing://lake"),
    ):
        command = [sys.executable, "-I", verify.__file__, str(proof), "--lake", lake]
        alone = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (alone.returncode, said in alone.stderr) == (code, True), alone.stderr
        told = postgres.run("verify", str(proof), "--lake", lake, expect=code).stderr
        assert said in told
        assert told.strip().count("\n") == 0


def test_proof_is_written_once_and_again_only_when_something_changed(signed: list[Path]) -> None:
    interval = register_hour(10)
    first = prove(interval)
    content = first.read_bytes()
    assert prove(interval) == first
    register_hour(10, unchanged=True)
    assert prove(interval) == first
    assert first.read_bytes() == content
    register_hour(10)
    second = prove(interval)
    assert second != first
    assert check_proof(str(second)).differences == []
    # The first proof is still true of its files, until housekeeping removes them.
    assert check_proof(str(first)).differences == []
    shutil.rmtree(part(first.parents[2], first).parent)
    replaced = check_proof(str(first))
    assert replaced.differences == []
    assert any("was replaced by a later run" in each for each in replaced.notes)


def test_next_announcement_writes_a_proof_when_a_kill_prevented_it(signed: list[Path]) -> None:
    missed, following = register_hour(20), register_hour(21)
    [note] = unproved(NAMES)
    assert (note.notice, note.what) == (True, f"{PIPELINE}: registered intervals without a proof: 2")
    last = prove(following)
    assert list(unproved(NAMES)) == []
    assert prove(missed) == before(last)


def test_announcement_names_the_proof_when_partitions_were_registered(postgres: Home, signed: list[Path]) -> None:
    interval = register_hour(25)
    verdict = steps.announce(last_attempt(postgres, interval)).as_json()
    [registered] = verdict["registered"]
    assert registered["proof"] == prove(interval).as_uri()
    assert check_proof(registered["proof"]).differences == []
    [(kept,)] = postgres.ledger("SELECT verdict FROM intervals WHERE id = %s", interval)
    assert kept["registered"] == verdict["registered"]


def last_attempt(home: Home, interval: int) -> int:
    return int(home.ledger("SELECT max(id) FROM attempts WHERE interval_id = %s", interval)[0][0])


def pin_again(number: int) -> None:
    """Pin the last hour again, ten offsets longer in each topic partition."""
    known = pins.find_interval(PIPELINE, hour(number).from_time)
    assert known is not None
    longer = [replace(each, until_offset=each.until_offset + 10) for each in known.ranges]
    assert pins.replace_ranges(known, longer, repinned_by="test") is not None


def test_nothing_is_proved_of_ranges_that_were_not_built_when_an_interval_was_pinned_again_before_its_announcement(
    postgres: Home, signed: list[Path]
) -> None:
    interval = register_hour(60)
    pin_again(60)
    verdict = steps.announce(last_attempt(postgres, interval)).as_json()
    assert sum(each["until_offset"] - each["from_offset"] for each in verdict["ranges"]) == 200
    assert [each["proof"] for each in verdict["registered"]] == [None]


def test_new_ranges_are_proved_when_an_interval_that_was_pinned_again_delivers_the_same_rows(
    signed: list[Path],
) -> None:
    interval = register_hour(62)
    first = prove(interval)
    pin_again(62)
    # All new records were empty.
    register_hour(62, unchanged=True)
    second = prove(interval)
    assert second != first
    ranges = [(each["from_offset"], each["until_offset"]) for each in json.loads(second.read_text())["ranges"]]
    assert ranges == [(6200, 6310)] * 2


def forget_last_proof(home: Home) -> None:
    [(build,)] = home.ledger("DELETE FROM proofs WHERE id = (SELECT max(id) FROM proofs) RETURNING build_id")
    home.ledger("UPDATE builds SET proved = FALSE WHERE id = %s", build)


@pytest.mark.parametrize("is_last", [True, False])
def test_doctor_names_a_proof_when_its_file_is_gone(signed: list[Path], is_last: bool) -> None:
    assert [*lost_proofs(NAMES)] == []
    lost = signed[1].parents[2] / proofs.paths(PIPELINE)[-1] if is_last else signed[1]
    content = lost.read_bytes()
    lost.unlink()
    [found] = lost_proofs(NAMES)
    lost.write_bytes(content)
    where = lost.relative_to(lost.parents[2])
    assert found.what == f"{PIPELINE}: proofs whose files are gone: 1, such as {where}"
    # Without a copy the others are lost for ever.
    assert (found.ok, found.notice) == (not is_last, not is_last)


def test_file_is_written_again_when_the_ledger_has_no_note_of_it(postgres: Home, signed: list[Path]) -> None:
    proof = prove(register_hour(30))
    content = proof.read_bytes()
    # As a kill between the file and its note leaves it.
    forget_last_proof(postgres)
    proof.write_text("half")
    assert prove_registered(NAMES, register_hour(31)) is not None
    assert proof.read_bytes() == content


def test_proof_of_another_ledger_stays_when_its_build_has_the_same_number(postgres: Home, signed: list[Path]) -> None:
    interval = register_hour(50)
    proof = prove(interval)
    former = json.dumps({**json.loads(proof.read_text()), "registered_at": "2026-01-01T00:00:00Z"})
    proof.write_text(former)
    forget_last_proof(postgres)
    written = prove(interval)
    assert written.name == f"{proof.stem}-2.json"
    assert proof.read_text() == former
    # As a kill between the file and its note leaves it.
    content = written.read_bytes()
    forget_last_proof(postgres)
    assert prove(interval) == written
    assert written.read_bytes() == content


def test_proof_waits_for_the_key_when_those_before_it_are_signed(
    signed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.delenv("TIDEMARK_PROOF_KEY")
        settings.cache_clear()
        interval = register_hour(41)
        with pytest.raises(UsageError, match="the proofs before are signed and no key is set"):
            prove(interval)
    settings.cache_clear()
    assert [each.ok for each in unproved(NAMES)] == [True]
    proof = prove(interval)
    assert differences(proof, proof.parents[2], signing.own_public_key()) == []
    assert [*unproved(NAMES)] == []


def test_proof_is_unsigned_and_says_so_when_no_key_is_set(
    signed: list[Path], postgres: Home, set_settings: SetSettings
) -> None:
    postgres.ledger("UPDATE proofs SET signed_by = NULL")
    set_settings(TIDEMARK_PROOF_KEY=None)
    proof = prove(register_hour(40))
    told = verify.check(proof.read_bytes(), verify.open_lake(str(proof.parents[2])))
    assert "the proof is unsigned: no key is set: TIDEMARK_PROOF_KEY" in told.notes
    assert json.loads(proof.read_text())["signature"] == {
        "algorithm": "none", "why": "no key is set: TIDEMARK_PROOF_KEY",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        (None, 0o600, "No such file"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", 0o600, "holds no Ed25519 key"),
        (b"", 0o644, "readable by others"),
    ],
)
def test_key_is_refused_when_it_cannot_be_used(
    set_settings: SetSettings, tmp_path: Path, content: bytes | None, mode: int, message: str
) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    set_settings(TIDEMARK_PROOF_KEY=str(path))
    with pytest.raises(UsageError, match=message):
        signing.signature_of(b"x")


@pytest.mark.parametrize(
    "change",
    [lambda: proofs.extending(PIPELINE, 0, [PIPELINE]), lambda: proofs.replacing(PIPELINE)],
    ids=["add", "replace"],
)
def test_chain_has_one_end_when_two_processes_change_it_at_once(
    postgres: Home, change: Callable[[], AbstractContextManager[object]]
) -> None:
    def changing() -> None:
        with change():
            pass

    assert "pg_advisory_xact_lock" in waits_with(changing, lambda ledger: lock(ledger, f"proof:{PIPELINE}"))
