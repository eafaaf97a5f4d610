"""Check a proof of Tidemark: `python verify.py FILE [--lake URI] [--kafka BOOTSTRAP] [--public-key HEX]`.

This file needs nothing but itself, Python 3.10 and pyarrow 14, or later ones; with --kafka also confluent-kafka 2.3.
Copy it wherever a proof is to be checked. It ends with 0 when everything is as the proof states, with 3 and a line per
difference when something is not, with 6 when lake or Kafka cannot be reached, with 64 for wrong usage, or without what
it needs.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import combinations
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

FORMAT = "tidemark-proof/1"
RECORD = ["kafka_topic", "kafka_partition", "kafka_offset"]
IDENTITY = [*RECORD, "kafka_element"]
_NO_ROWS = pa.schema(
    [
        ("kafka_topic", pa.string()),
        ("kafka_partition", pa.int32()),
        ("kafka_offset", pa.int64()),
        ("kafka_element", pa.int32()),
        ("kafka_timestamp", pa.timestamp("us", "UTC")),
    ]
)
FATES = ("archived", "empty", "quarantined", "gaps")
FATES_SINCE = ("erased",)
"""Fates that older proofs do not have."""
QUIET = {"log_level": 0, "reconnect.backoff.ms": 500}
"""Options of Kafka's client: it does not log, since the caller reports once that nothing answers."""
DATA_ENDINGS = (".parquet", ".orc", ".avro", ".csv", ".csv.gz", ".json", ".json.gz")
ERASED = "(erased)"
"""Replaces, in a proof, the part of a table partition's name that was erased since."""
_OTHER_KINDS = (
    pa.ArrowException,
    ArithmeticError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What is raised where a part of a proof is missing or is of another kind; a lake that is away raises OSError."""
PATIENCE = 60.0
"""Seconds without any answer of Kafka until it counts as unreachable."""

_P = 2**255 - 19
_L = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_ROOT = pow(2, (_P - 1) // 4, _P)
_Point = tuple[int, int, int, int]


class NotAProof(Exception):
    """The file is not a proof of a known format."""


class NotALake(Exception):
    """The URI names no place that can be read."""


class Unreachable(Exception):
    """Kafka does not answer."""


class LakeUnreachable(Unreachable):
    """The lake does not answer, or a file of it cannot be read: this shows nothing about the proof."""


@dataclass
class Report:
    """What was found: each entry begins with what it is about."""

    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What could not be checked, or is good to know."""

    def differs(self, what: str, detail: str) -> None:
        """Note a difference, once."""
        if (told := f"{what}: {detail}") not in self.differences:
            self.differences.append(told)


@contextmanager
def _reached(where: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LakeUnreachable(f"{where} cannot be read: {error}") from error


@dataclass(frozen=True)
class _Linked:
    """A proof's place in the chain: its SHA-256, and the files and SHA-256 of those before it."""

    sha256: str
    links: set[tuple[str, str]]


@dataclass(frozen=True)
class Lake:
    """Files below a URI. Its methods raise LakeUnreachable when they cannot be read."""

    system: fs.FileSystem
    root: str

    def read(self, path: str) -> bytes | None:
        """Return a file's content; None without the file."""
        if not self.has(path):
            return None
        with _reached(path), self._open(path) as file:
            return bytes(file.read())

    def has(self, path: str) -> bool:
        """Return whether there is such a file."""
        if ".." in path.split("/"):
            raise NotAProof(f"{path} leads out of the lake")
        with _reached(path):
            return bool(self.system.get_file_info(f"{self.root}/{path}").type == fs.FileType.File)

    def sha256(self, path: str) -> str:
        """Return the SHA-256 of a file's bytes."""
        with _reached(path), self._open(path) as file:
            return _sha256_of(file)

    def decompressed_sha256(self, path: str) -> str | None:
        """Return the SHA-256 of a gzip file's content; None when it cannot be decompressed."""
        with _reached(path), self._open(path) as file, suppress(EOFError, gzip.BadGzipFile, zlib.error):
            content: Any = gzip.GzipFile(fileobj=file)
            return _sha256_of(content)
        return None

    def _open(self, path: str) -> pa.NativeFile:
        # Otherwise pyarrow would decompress what ends in .gz.
        return self.system.open_input_stream(f"{self.root}/{path}", compression=None)

    def names(self, folder: str) -> set[str]:
        """Return the paths of the files below a folder that a reader may take for data, seen from the folder."""
        with _reached(folder):
            top = f"{self.root}/{folder}"
            infos = self.system.get_file_info(fs.FileSelector(top, recursive=True, allow_not_found=True))
        files = {each.path[len(top) :].lstrip("/"): each.base_name for each in infos if each.type == fs.FileType.File}
        # DuckDB's `*.parquet` takes files whose names begin with an underscore, and some with a dot.
        return {path for path, name in files.items() if not name.startswith((".", "_")) or name.endswith(DATA_ENDINGS)}


def _sha256_of(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def open_lake(uri: str) -> Lake:
    """Return the lake at a URI or path. Raise NotALake for another URI, LakeUnreachable when its store is away."""
    parts = urlsplit(uri)
    if parts.scheme in ("", "file"):
        return Lake(fs.LocalFileSystem(), (unquote(parts.path) if parts.scheme else uri).rstrip("/"))
    try:
        with _reached(uri):
            system, path = fs.FileSystem.from_uri(uri.replace("s3a://", "s3://", 1))
    except pa.ArrowInvalid as error:
        raise NotALake(f"{uri} names no lake: {error}") from error
    return Lake(system, path.rstrip("/"))


def canonical(proof: Mapping[str, Any]) -> bytes:
    """Return the bytes that are signed: the proof without its signature, keys sorted, no spaces, ASCII."""
    unsigned = {key: value for key, value in proof.items() if key != "signature"}
    return json.dumps(unsigned, sort_keys=True, separators=(",", ":")).encode()


def parse(content: bytes) -> dict[str, Any]:
    """Return a proof. Raise NotAProof for anything else."""
    try:
        proof = json.loads(content, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        raise NotAProof("it is not JSON") from None
    if not isinstance(proof, dict) or proof.get("format") != FORMAT:
        raise NotAProof(f"its format is not {FORMAT}")
    return proof


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Readers differ in which of two they take, and the signature covers only one.
    for name, times in Counter(name for name, _ in pairs).items():
        if times > 1:
            raise NotAProof(f"it holds {name!r} twice in one object")
    return dict(pairs)


def check(content: bytes, lake: Lake, kafka: Mapping[str, Any] | None = None, public_key: str = "") -> Report:
    """Check a proof; `kafka` are options of confluent-kafka, `public_key` is the signer's, in hexadecimal."""
    report, later, rows = Report(), [], _NO_ROWS.empty_table()
    with _told(report):
        proof = parse(content)
    if report.differences:
        return report
    # Each by itself: what stops one of them hides nothing that another would find.
    with _told(report):
        _check_signature(proof, public_key, report)
    with _told(report):
        _check_counts(proof, report)
    with _told(report):
        _tell_replaced(proof, report)
    with _told(report):
        later = _check_chain(content, proof, lake, public_key, report)
    with _told(report):
        _check_files(proof, lake, later, report)
    with _told(report):
        rows, is_whole = _identities(proof, lake, report)
        _check_records(proof, rows, report, is_whole=is_whole)
    if kafka:
        with _told(report):
            _check_kafka(proof, rows, kafka, report)
    return report


@contextmanager
def _told(report: Report) -> Iterator[None]:
    """Note a part of the proof that is not as it must be as a difference."""
    try:
        yield
    except NotAProof as error:
        report.differs("format", str(error))
    except _OTHER_KINDS as error:
        report.differs("format", f"a part is missing or of another kind: {error}")


def _check_signature(proof: Mapping[str, Any], public_key: str, report: Report) -> None:
    signature = proof["signature"]
    is_signed = signature["algorithm"] == "Ed25519"
    if further := sorted(signature.keys() - {"algorithm", *(("public_key", "value") if is_signed else ("why",))}):
        report.differs("signature", f"it holds what nobody signed: {', '.join(further)}")
    if not is_signed:
        told = f"the proof is unsigned: {signature.get('why', '')}"
        report.differs("signature", told) if public_key else report.notes.append(told)
        return
    if not ed25519_verifies(signature["public_key"], signature["value"], canonical(proof)):
        report.differs("signature", "it does not fit the proof: the proof or the signature was changed")
    elif public_key and signature["public_key"] != public_key:
        report.differs("signature", f"signed by {signature['public_key']}, expected is {public_key}")
    elif not public_key:
        report.notes.append(f"signed by {signature['public_key']}; whose key that is was not checked")


def _check_counts(proof: Mapping[str, Any], report: Report) -> None:
    """Check that the proof's own numbers add up."""
    counted = [each for each in proof["ranges"] if each.get("archived") is not None]
    for each in counted:
        total, offsets = sum(_counts(each).values()), each["until_offset"] - each["from_offset"]
        if total != offsets:
            report.differs("counts", f"{_place(each)} holds {offsets} offsets, their fates add up to {total}")
    for one, other in combinations(proof["ranges"], 2):
        if _overlap(one, other):
            report.differs("counts", f"{_place(one)} and {_place(other)} hold the same offsets")
    # Ranges of older proofs have no counts.
    is_counted = counted or (proof["records"] and not proof["ranges"])
    for fate, count in _counts(proof["records"]).items() if is_counted else ():
        if sum(_counts(each)[fate] for each in counted) != count:
            report.differs("counts", f"{fate} of the topic partitions do not add up to {count}")
    for table in proof["tables"]:
        rows = [file["rows"] for file in table["files"]]
        if None not in rows and sum(rows) != table["rows"]:
            report.differs("counts", f"{_where(table)}: rows of the files do not add up to {table['rows']}")
    if proof["reconciliation"]["unexplained"] or not proof["validation"]["success"]:
        report.differs("verdict", "the proof states that a build was registered which did not pass")
    decision = proof["validation"]["decision"] or {}
    for each in (each for each in proof["expectations"] if not each["success"]):
        approved = each["severity"] == "warn" and decision.get("decision") == "approved"
        told = f"not met: {each['table']}: {each['words']}"
        if approved or each["severity"] == "info":
            report.notes.append(f"{told}; " + (f"approved by {decision['by']}" if approved else "only reported"))
        else:
            report.differs("verdict", told)


def _overlap(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if any(one[each] != other[each] for each in ("topic", "topic_id", "partition")):
        return False
    return bool(max(one["from_offset"], other["from_offset"]) < min(one["until_offset"], other["until_offset"]))


def _counts(counted: Mapping[str, Any]) -> dict[str, int]:
    return {fate: counted[fate] for fate in FATES} | {fate: counted.get(fate, 0) for fate in FATES_SINCE}


def _tell_replaced(proof: Mapping[str, Any], report: Report) -> None:
    for each in proof.get("replaces", ()):
        report.notes.append(f"it stands for the proof with the SHA-256 {each['sha256']}, by erasure {each['erasure']}")


def _stands_for(other: Mapping[str, Any], digest: str) -> bool:
    """Return whether a proof says that it stands for the one with this SHA-256."""
    return any(each["sha256"] == digest for each in other.get("replaces", ()))


def _is_vouched(other: Mapping[str, Any], proof: Mapping[str, Any], public_key: str) -> bool:
    """Return whether a proof is signed by the expected key: the one that is named, else that of the checked proof."""
    signature, expected = other.get("signature", {}), public_key or proof["signature"].get("public_key", "")
    return bool(
        signature.get("algorithm") == "Ed25519"
        and signature["public_key"] == expected
        and ed25519_verifies(signature["public_key"], signature["value"], canonical(other))
    )


def _differs_in_erased_only(before: Any, now: Any) -> bool:
    """Return whether two values differ only in texts that state that a part of them was erased."""
    if isinstance(before, dict) and isinstance(now, dict):
        return before.keys() == now.keys() and all(_differs_in_erased_only(before[key], now[key]) for key in before)
    if isinstance(before, list) and isinstance(now, list):
        return len(before) == len(now) and all(map(_differs_in_erased_only, before, now))
    if isinstance(before, str) and isinstance(now, str) and ERASED in now:
        return bool(re.fullmatch(".+".join(map(re.escape, now.split(ERASED))), before, re.DOTALL))
    return bool(before == now)


def _check_replacement(
    proof: Mapping[str, Any], stored: Mapping[str, Any], own: str, public_key: str, report: Report
) -> None:
    """Compare the proof with what an erasure wrote in its place."""
    told = {"previous", "replaces", "signature"}
    now = {key: value for key, value in stored.items() if key not in told}
    before = {key: value for key, value in proof.items() if key not in told}
    if not _is_vouched(stored, proof, public_key):
        report.differs("chain", f"{proof['file']} says that it stands for this proof, and is not signed by its key")
    elif not _differs_in_erased_only(before, now):
        report.differs("chain", f"{proof['file']} says that it stands for this proof, and differs in more than names")
    else:
        erasure = next(each["erasure"] for each in stored["replaces"] if each["sha256"] == own)
        report.notes.append(f"erasure {erasure} replaced this proof; another stands for it at {proof['file']}")


def _check_chain(
    content: bytes, proof: Mapping[str, Any], lake: Lake, public_key: str, report: Report
) -> list[dict[str, Any]]:
    """Walk to the first proof, then look at those that name this one; return the later ones of its interval."""
    seen: set[str] = set()
    direct = _links(proof)
    before = [*direct]
    while before:
        path, digest = before.pop()
        if path in seen:
            continue
        seen.add(path)
        data = lake.read(path)
        if data is None:
            report.differs("chain", f"{path} is missing")
            continue
        if _sha256(data) != digest:
            if not _replaced_vouched(data, digest, proof, public_key):
                report.differs("chain", f"{path} was changed since its successor was written")
                continue
            report.notes.append(f"an erasure replaced {path} since its successor was written")
        earlier = parse(data)
        before += _links(earlier)
        was_signed = (path, digest) in direct and earlier["signature"]["algorithm"] == "Ed25519"
        if was_signed and proof["signature"]["algorithm"] != "Ed25519":
            report.differs("signature", f"the proof is unsigned, and {path} before it is signed")
    return _successors(content, proof, lake, seen, public_key, report)


def _replaced_vouched(data: bytes, digest: str, proof: Mapping[str, Any], public_key: str) -> bool:
    """Return whether this is a proof that stands for the one with the SHA-256, signed by the expected key."""
    try:
        other = parse(data)
    except NotAProof:
        return False
    return _stands_for(other, digest) and _is_vouched(other, proof, public_key)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _successors(
    content: bytes, proof: Mapping[str, Any], lake: Lake, seen: set[str], public_key: str, report: Report
) -> list[dict[str, Any]]:
    own, stored = _sha256(content), lake.read(proof["file"])
    now = _of_this(stored, content, own)
    rest: dict[str, _Linked] = {}
    of_interval: dict[str, dict[str, Any]] = {}
    for path, data in _further(proof, lake, seen):
        other: dict[str, Any] = {}
        try:
            other = parse(data)
            rest[path] = _Linked(_sha256(data), _links(other))
            linked = {digest for file, digest in rest[path].links if file == proof["file"]}
            # Of what was replaced, a successor may still name the former one.
            if any(each not in (own, now) and not _stands_for(proof, each) for each in linked):
                raise NotAProof("it follows this proof as it was; it was changed since")
            if other["interval"] == proof["interval"] and _is_trusted(other, proof, public_key):
                of_interval[path] = other
        except (NotAProof, *_OTHER_KINDS) as error:
            told = str(error) if isinstance(error, NotAProof) else f"a part is missing or of another kind: {error}"
            if _is_trusted(other, proof, public_key):
                report.differs("chain", f"{path}: {told}")
            else:
                report.notes.append(f"{path}, which is not signed by the expected key: {told}")
    if now is not None and stored is not None:
        _check_replacement(proof, parse(stored), own, public_key, report)
    elif stored is not None and stored != content:
        report.differs("chain", f"the lake holds another proof at {proof['file']}")
    later = _later(proof, of_interval, rest)
    if later:
        report.notes.append(f"a later proof of this interval is {later[-1]}")
    return [of_interval[path] for path in later]


def _further(proof: Mapping[str, Any], lake: Lake, seen: set[str]) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of each other proof of the pipeline, without those of `seen`."""
    folder = proof["file"].rsplit("/", 1)[0]
    # Whatever does not end like this may be half of a proof that is being written.
    for name in sorted(name for name in lake.names(folder) if re.fullmatch(r"[^._][^/]*\.json", name)):
        path = f"{folder}/{name}"
        if path != proof["file"] and path not in seen and (data := lake.read(path)):
            yield path, data


def _is_trusted(other: Mapping[str, Any], proof: Mapping[str, Any], public_key: str) -> bool:
    """Return whether a proof is signed as the checked one is; when no key is expected, each is trusted."""
    if not public_key or proof["signature"]["algorithm"] != "Ed25519":
        return True
    with suppress(*_OTHER_KINDS):
        return _is_vouched(other, proof, public_key)
    return False


def _later(
    proof: Mapping[str, Any], of_interval: Mapping[str, dict[str, Any]], rest: Mapping[str, _Linked]
) -> list[str]:
    """Return the paths of the proofs of later registrations of the interval, the last one at the end."""
    before = {path: _before(path, rest) for path in of_interval}
    linked = sorted((path for path in before if proof["file"] in before[path]), key=lambda path: len(before[path]))
    # Not by the build's number: after the ledger was lost these begin again. So does the chain: only the clock tells.
    apart = {path: each for path, each in of_interval.items() if path not in linked and each.get("registered_at")}
    moments = {path: moment for path, each in apart.items() if (moment := _registered_at(each)) > _registered_at(proof)}
    return [*linked, *sorted(moments, key=lambda path: moments[path])]


def _before(path: str, rest: Mapping[str, _Linked]) -> set[str]:
    """Return the paths to which a proof's chain leads, as far as the proofs on the way are unchanged."""
    found: set[str] = set()
    ahead = [path]
    while ahead:
        links = rest[ahead.pop()].links
        new = {file for file, digest in links if file not in rest or rest[file].sha256 == digest} - found
        found |= new
        ahead += new & rest.keys()
    return found


def _registered_at(proof: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(proof["registered_at"].replace("Z", "+00:00"))


def _of_this(stored: bytes | None, content: bytes, own: str) -> str | None:
    """Return the SHA-256 of the proof in the lake that states that it stands for this one; None without one."""
    if stored is None or stored == content:
        return None
    try:
        return _sha256(stored) if _stands_for(parse(stored), own) else None
    except NotAProof:
        return None


def _links(proof: Mapping[str, Any]) -> set[tuple[str, str]]:
    return {(each["file"], each["sha256"]) for each in proof["previous"].values() if each is not None}


def _check_files(proof: Mapping[str, Any], lake: Lake, successors: list[dict[str, Any]], report: Report) -> None:
    current = {each["location"] for later in successors[-1:] for each in later["tables"]}
    for table in proof["tables"]:
        names, told = lake.names(table["location"]), {file["name"]: file for file in table["files"]}
        if ERASED in table["location"]:
            report.notes.append(f"{_where(table)} was erased; its files are gone")
            continue
        if successors and table["location"] not in current:
            report.notes.append(
                f"{_where(table)} was replaced by a later run; its files are {'there' if names else 'gone'}"
            )
            if not names:
                continue
        for name in sorted(names - told.keys()):
            report.differs("extra file", f"{table['location']}/{name}")
        for name, file in sorted(told.items()):
            path = f"{table['location']}/{name}"
            if not lake.has(path):
                report.differs("file missing", path)
                continue
            if file["sha256"] is None:
                report.notes.append(f"{path} is not compared: no SHA-256 of it was kept")
                continue
            if changed := not _is_as_told(path, file["sha256"], lake):
                report.differs("file changed", f"{path}: its SHA-256 is another one")
            if name.endswith(".parquet"):
                _check_rows(path, lake, file["rows"], report, changed=changed)


def _is_as_told(path: str, digest: str, lake: Lake) -> bool:
    """Return whether a file has the SHA-256. Proofs of earlier code state that of the content of files in `.gz`."""
    return lake.sha256(path) == digest or (path.endswith(".gz") and lake.decompressed_sha256(path) == digest)


def _check_rows(path: str, lake: Lake, told: int, report: Report, *, changed: bool) -> None:
    try:
        rows = pq.read_metadata(f"{lake.root}/{path}", filesystem=lake.system).num_rows
    except (pa.ArrowException, OSError) as error:
        if not changed and isinstance(error, OSError):
            # Its bytes are those of the proof: it is the store that did not answer.
            raise LakeUnreachable(f"{path} cannot be read: {error}") from error
        report.differs("rows", f"{path} cannot be read: {error}")
        return
    if rows != told:
        report.differs("rows", f"{path} holds {rows}, the proof states {told}")


def _identities(proof: Mapping[str, Any], lake: Lake, report: Report) -> tuple[pa.Table, bool]:
    """Return coordinates and timestamps of the archive table's rows, and whether all of its files could be read."""
    tables, unread = [], []
    for table in (each for each in proof["tables"] if each["table"] == proof["archive_table"]):
        for file in table["files"]:
            path = f"{table['location']}/{file['name']}"
            if path.endswith(".parquet") and lake.has(path) and (rows := _read_identity(path, file, lake)) is not None:
                tables.append(rows)
            else:
                unread.append(path)
    if unread:
        what = unread[0] if len(unread) == 1 else f"{len(unread)} files, {unread[0]} …"
        report.notes.append(f"rows are not compared with the ranges: gone, not Parquet or not to be read: {what}")
    # Without a file, no record has a row.
    return pa.concat_tables(tables, promote_options="permissive") if tables else _NO_ROWS.empty_table(), not unread


def _read_identity(path: str, file: Mapping[str, Any], lake: Lake) -> pa.Table | None:
    """Return coordinates and timestamps of a file's rows; None when they are not in it."""
    try:
        with lake.system.open_input_file(f"{lake.root}/{path}") as opened:
            return pq.ParquetFile(opened).read([*IDENTITY, "kafka_timestamp"])
    except (pa.ArrowException, OSError, KeyError) as error:
        if isinstance(error, OSError) and _is_as_told(path, file["sha256"], lake):
            # Its bytes are those of the proof: it is the store that did not answer.
            raise LakeUnreachable(f"{path} cannot be read: {error}") from error
        return None


def _check_records(proof: Mapping[str, Any], rows: pa.Table, report: Report, *, is_whole: bool) -> None:
    """Compare the archive table's rows with each other and, when all could be read, with the fates of the ranges."""
    distinct = rows.group_by(IDENTITY).aggregate([]).num_rows
    if distinct != rows.num_rows:
        report.differs("duplicates", f"{rows.num_rows - distinct} rows of {proof['archive_table']} are there twice")
    if not is_whole:
        return
    # Records that a replay let out of quarantine have their rows here, and keep their fate.
    replayed, further = proof["records"].get("replayed", 0), 0
    records = outside = rows.group_by(RECORD).aggregate([])
    for each in proof["ranges"]:
        within = _within(each)
        rows_held, told = records.filter(within).num_rows, each.get("archived")
        if told is not None and not told <= rows_held <= told + replayed:
            report.differs("records", f"{_place(each)}: the proof states {told} archived, {rows_held} have rows")
        elif told is not None:
            further += rows_held - told
        outside = outside.filter(~within | within.is_null())
    if further + outside.num_rows > replayed:
        besides = f"{further + outside.num_rows} records besides those of the ranges have rows"
        report.differs("records", f"{besides}, {outside.num_rows} of them of other offsets; {replayed} were replayed")


def _timestamps(rows: pa.Table, each: Mapping[str, Any]) -> dict[int, int]:
    """Return the timestamps (ms) of the records of a range that have rows, by offset."""
    held = rows.filter(_within(each))
    moments = held["kafka_timestamp"].cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    return dict(zip(held["kafka_offset"].to_pylist(), moments.to_pylist(), strict=True))


def _within(each: Mapping[str, Any]) -> pc.Expression:
    offset = pc.field("kafka_offset")
    own = (pc.field("kafka_topic") == each["topic"]) & (pc.field("kafka_partition") == each["partition"])
    return own & (offset >= each["from_offset"]) & (offset < each["until_offset"])


def _check_kafka(proof: Mapping[str, Any], rows: pa.Table, kafka: Mapping[str, Any], report: Report) -> None:
    """Read the ranges again: as many visible records, and at the offsets of rows the same timestamps."""
    topics = {each["topic"] for each in proof["ranges"]}
    ids = _topic_ids(topics, kafka) if topics else {}
    policies = _cleanup_policies(ids, kafka) if ids else {}
    for each in proof["ranges"]:
        if (now := ids.get(each["topic"])) != each["topic_id"]:
            report.notes.append(f"{_place(each)} is not compared with Kafka: the topic's id is {now or 'none'} now")
            continue
        first, seen = _read_range(each, kafka)
        if first > each["from_offset"]:
            report.notes.append(f"{_place(each)} is not compared with Kafka: it begins at offset {first} now")
            continue
        policy, before = policies.get(each["topic"]), len(report.differences)
        is_compacted = "compact" in (policy or "")
        _compare_range(proof, each, _timestamps(rows, each), seen, report, is_compacted=is_compacted)
        if policy is None and len(report.differences) > before:
            report.notes.append(
                f"{_place(each)}: whether its log is compacted, so that records may be missing, is not known: this "
                "user must not read the topic's settings (DescribeConfigs)"
            )


def _compare_range(
    proof: Mapping[str, Any],
    each: Mapping[str, Any],
    told: dict[int, int],
    seen: dict[int, int],
    report: Report,
    *,
    is_compacted: bool,
) -> None:
    counts = _counts(each) if each.get("archived") is not None else None
    records = sum(counts.values()) - counts["gaps"] if counts is not None else None
    # Erased records may have been removed from Kafka too.
    gone = proof["records"].get("compacted_since", 0) + (counts["erased"] if counts is not None else 0)
    absent = sorted(told.keys() - seen.keys())
    if records is not None and (len(seen) > records or (len(seen) < records - gone and not is_compacted)):
        report.differs("kafka", f"{_place(each)}: the proof states {records} records, Kafka has {len(seen)}")
    elif records is not None and len(seen) < records - gone:
        report.notes.append(f"{_place(each)}: {records - len(seen)} records are not in Kafka, whose log is compacted")
    elif records is not None and len(seen) < records:
        report.notes.append(f"{_place(each)}: {records - len(seen)} records were compacted away before the proof")
    if len(absent) > gone and not is_compacted:
        report.differs("kafka", f"{_place(each)}: {len(absent)} rows are of records not in Kafka, {absent[:3]} …")
    elif len(absent) > gone and records is None:
        report.notes.append(f"{_place(each)}: {len(absent)} rows are not compared with Kafka, whose log is compacted")
    other = [offset for offset, moment in told.items() if offset in seen and seen[offset] != moment]
    if other:
        report.differs("kafka", f"{_place(each)}: {len(other)} records have another timestamp, {sorted(other)[:3]} …")


def _cleanup_policies(topics: Iterable[str], kafka: Mapping[str, Any]) -> dict[str, str]:
    """Return each topic's `cleanup.policy`, without topics whose configuration must not be read."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

    policies = {}
    admin = AdminClient({**kafka, **QUIET})
    asked = [ConfigResource(ResourceType.TOPIC, each) for each in sorted(topics)]
    for resource, future in admin.describe_configs(asked, request_timeout=15).items():
        try:
            policies[resource.name] = str(future.result()["cleanup.policy"].value or "")
        except KafkaException as error:
            if not error.args[0].name().startswith(("TOPIC_AUTHORIZATION", "UNKNOWN_TOPIC")):
                raise Unreachable(f"Kafka at {kafka['bootstrap.servers']}: {error.args[0].str()}") from error
    return policies


def _topic_ids(topics: set[str], kafka: Mapping[str, Any]) -> dict[str, str]:
    from confluent_kafka import KafkaException, TopicCollection
    from confluent_kafka.admin import AdminClient

    ids = {}
    admin = AdminClient({**kafka, **QUIET})
    for name, future in admin.describe_topics(TopicCollection(sorted(topics)), request_timeout=15).items():
        try:
            ids[name] = str(future.result().topic_id)
        except KafkaException as error:
            if not error.args[0].name().startswith("UNKNOWN_TOPIC"):
                raise Unreachable(f"Kafka at {kafka['bootstrap.servers']}: {error.args[0].str()}") from error
    return ids


def _read_range(each: Mapping[str, Any], kafka: Mapping[str, Any]) -> tuple[int, dict[int, int]]:
    """Return the first offset that Kafka has, and the timestamps of the visible records of the range by offset."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

    seen: dict[int, int] = {}
    fetched, until = -1, time.monotonic() + PATIENCE

    def note(statistics: str) -> None:
        """Wait on while records are fetched of which none is visible: those of aborted transactions."""
        nonlocal fetched, until
        told = json.loads(statistics)["topics"].get(each["topic"], {"partitions": {}})["partitions"]
        if (offset := told.get(str(each["partition"]), {}).get("next_offset", fetched)) != fetched:
            fetched, until = offset, time.monotonic() + PATIENCE

    safe = {"group.id": "tidemark-verify", "enable.auto.commit": False, "enable.partition.eof": True}
    safe |= {"isolation.level": "read_committed", "auto.offset.reset": "error"}
    reader = Consumer({**kafka, **QUIET, **safe, "statistics.interval.ms": 1000, "stats_cb": note})
    try:
        # Not `get_watermark_offsets`: when one of its two requests is refused, it may return the end as the earliest.
        asked = TopicPartition(each["topic"], each["partition"], OFFSET_BEGINNING)
        [earliest] = reader.offsets_for_times([asked], timeout=30)
        if earliest.error is not None:
            raise KafkaException(earliest.error)
        first = earliest.offset
        if first > each["from_offset"] or each["from_offset"] == each["until_offset"]:
            return (first if each["from_offset"] < each["until_offset"] else 0), seen
        reader.assign([TopicPartition(each["topic"], each["partition"], each["from_offset"])])
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            # An event without a topic is about the reader's group, which nothing here depends on.
            if (message := reader.poll(1.0)) is None or message.topic() is None:
                continue
            if message.error() and message.error().code() != KafkaError._PARTITION_EOF:
                raise Unreachable(f"Kafka at {kafka['bootstrap.servers']}: {message.error().str()}")
            if message.error() or message.offset() >= each["until_offset"]:
                return first, seen
            seen[message.offset()], until = message.timestamp()[1], time.monotonic() + PATIENCE
    except KafkaException as error:
        raise Unreachable(f"Kafka at {kafka['bootstrap.servers']}: {error.args[0].str()}") from error
    finally:
        reader.close()
    raise Unreachable(f"Kafka sent nothing of {_place(each)} within {PATIENCE:.0f} s")


def _place(each: Mapping[str, Any]) -> str:
    return f"{each['topic']}-{each['partition']} [{each['from_offset']}, {each['until_offset']})"


def _where(table: Mapping[str, Any]) -> str:
    return f"{table['table']} {table['partition']}"


def ed25519_verifies(public_key: str, signature: str, message: bytes) -> bool:
    """Return whether an Ed25519 signature fits (RFC 8032, section 5.1.7); keys and signatures are hexadecimal."""
    try:
        key, value = bytes.fromhex(public_key), bytes.fromhex(signature)
    except ValueError:
        return False
    if len(key) != 32 or len(value) != 64:
        return False
    signer, commitment = _decompress(key), _decompress(value[:32])
    scalar = int.from_bytes(value[32:], "little")
    if signer is None or commitment is None or scalar >= _L:
        return False
    challenge = int.from_bytes(hashlib.sha512(value[:32] + key + message).digest(), "little") % _L
    y = 4 * pow(5, -1, _P) % _P
    base = _recover(y, 0)
    assert base is not None
    left, right = _times(scalar, base), _add(commitment, _times(challenge, signer))
    return all((left[n] * right[2] - right[n] * left[2]) % _P == 0 for n in (0, 1))


def _decompress(encoded: bytes) -> _Point | None:
    number = int.from_bytes(encoded, "little")
    return _recover(number & (2**255 - 1), number >> 255)


def _recover(y: int, sign: int) -> _Point | None:
    """Return the point of a y coordinate and the sign of x; None when there is none."""
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * _ROOT % _P
    if y >= _P or (x * x - square) % _P or (x == 0 and sign):
        return None
    x = _P - x if x & 1 != sign else x
    return x, y, 1, x * y % _P


def _add(p: _Point, q: _Point) -> _Point:
    a, b = (p[1] - p[0]) * (q[1] - q[0]) % _P, (p[1] + p[0]) * (q[1] + q[0]) % _P
    c, d = 2 * p[3] * q[3] * _D % _P, 2 * p[2] * q[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _times(scalar: int, point: _Point) -> _Point:
    result: _Point = (0, 1, 1, 0)
    while scalar:
        result = _add(result, point) if scalar & 1 else result
        point, scalar = _add(point, point), scalar >> 1
    return result


def lines(report: Report) -> Iterator[str]:
    """Yield what was found, differences first. Names of files and texts of a proof cannot write lines of their own."""
    found = [f"differs: {each}" for each in report.differences] + [f"note: {each}" for each in report.notes]
    yield from map(_shown, found)
    yield "the proof does not hold" if report.differences else "everything that was checked is as the proof states"


def _shown(text: object) -> str:
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in str(text))


def _lake_above(file: str, content: bytes) -> str:
    """Return the folder of the lake that holds a proof. Raise OSError when the proof was moved."""
    try:
        path = str(parse(content).get("file", ""))
    except NotAProof:
        return "."
    if not path or not file.endswith(path):
        raise OSError("it does not lie where it was written; name the lake with --lake")
    return file.removesuffix(path) or "."


def key_of(text: str) -> str:
    """Return a public key as proofs hold it. Raise ArgumentTypeError for what is none, as an unset variable is."""
    key = text.strip().lower()
    if not re.fullmatch("[0-9a-f]{64}", key):
        raise argparse.ArgumentTypeError(f"{text!r} is not a public key of 64 hexadecimal digits")
    return key


def _missing(kafka: str) -> str:
    """Return what is not installed as it is needed; empty when nothing is missing."""
    if sys.version_info < (3, 10):  # noqa: UP036
        return f"Python 3.10 or later is needed, this is {sys.version.split()[0]}"
    if int(pa.__version__.split(".")[0]) < 14:
        return f"pyarrow 14 or later is needed, installed is {pa.__version__}"
    try:
        if kafka:
            from confluent_kafka import TopicCollection  # noqa: F401
    except ImportError as error:
        return f"--kafka needs confluent-kafka 2.3 or later: {error}"
    return ""


def main(arguments: list[str] | None = None) -> int:
    """Check the proof that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description="Check a proof of Tidemark.")
    parser.add_argument("file", help="the proof")
    parser.add_argument("--lake", default="", help="URI of the lake; default: the folder that holds the proofs")
    parser.add_argument("--kafka", default="", help="host:port, to read the offsets again")
    parser.add_argument("--public-key", type=key_of, metavar="HEX", help="the signer's public key, in hexadecimal")
    try:
        given = parser.parse_args(arguments)
    except SystemExit as error:
        return 64 if error.code else 0
    if missing := _missing(given.kafka):
        print(missing, file=sys.stderr)
        return 64
    try:
        with open(given.file, "rb") as file:  # noqa: PTH123
            content = file.read()
        uri = given.lake or _lake_above(given.file, content)
    except OSError as error:
        print(_shown(f"{given.file}: {error}"), file=sys.stderr)
        return 64
    try:
        kafka = {"bootstrap.servers": given.kafka} if given.kafka else None
        report = check(content, open_lake(uri), kafka, given.public_key or "")
    except Unreachable as error:
        print(_shown(error), file=sys.stderr)
        return 6
    except NotALake as error:
        print(_shown(error), file=sys.stderr)
        return 64
    print("\n".join(lines(report)))
    return 3 if report.differences else 0


if __name__ == "__main__":
    sys.exit(main())
