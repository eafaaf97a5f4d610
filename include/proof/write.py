"""Write the proofs of registered intervals.

A proof is written after the registration that it is about, by whoever announces the interval. The next announcement of
the pipeline writes a proof that a kill prevented. Writing can be repeated: the ledger's note of a proof comes after its
file and decides; a file without a note is written again, and nothing refers to it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from itertools import count
from typing import Any

from include import lake
from include.crash_points import crash_point
from include.errors import UsageError
from include.ledger import proofs
from include.ledger.intervals.findings import ExpectationResult, Validation
from include.ledger.proofs import Evidence, Proof, Registered
from include.pipelines.spec import Pipeline
from include.proof.signing import own_public_key, signature_of
from include.proof.verify import FORMAT, canonical
from include.settings import REPOSITORY
from include.times import format_time

OTHERS = 20
"""How many proofs of other intervals an announcement writes at most."""

NO_RECORD_HASHES = "the build keeps no hash of keys and values; offsets and timestamps can be compared with Kafka"


def prove_registered(pipeline: Pipeline, interval_id: int) -> str | None:
    """Write the proof of an interval that is registered, and those that are missing before; return its URI.

    None when nothing of the interval was ever registered. Raises UsageError for a key that cannot be used, or is not
    set although the proofs before are signed.
    """
    for build in proofs.unproved(pipeline.name, OTHERS):
        prove(pipeline, build)
    own = proofs.build_to_prove(interval_id)
    written = prove(pipeline, own) if own is not None else None
    proofs.note_proved(pipeline.name)
    return lake.uri(written.path) if written is not None else None


def prove(pipeline: Pipeline, build: int) -> Proof | None:
    """Write the proof of a published build unless it has one, and return it; None when a later one replaced it.

    Raises UsageError like `prove_registered`.
    """
    with proofs.extending(pipeline.name, build, pipeline.tables) as chain:
        if chain.written is not None:
            return chain.written
        evidence = proofs.evidence_of(build)
        if proofs.build_to_prove(evidence.pinned.id) != build:
            return None
        if chain.is_signed and not own_public_key():
            raise UsageError(
                "the proofs before are signed and no key is set, and an unsigned one among them would never verify",
                remedy="set TIDEMARK_PROOF_KEY; what was registered stays, and the next run writes the proof",
                pipeline=pipeline.name,
            )
        document = assemble(pipeline, evidence, chain.heads)
        document["file"] = _place_of(document)
        document["signature"] = signature_of(canonical(document))
        content = json.dumps(document, indent=1).encode() + b"\n"
        lake.write_bytes(lake.uri(document["file"]), content)
        crash_point("proof_written")
        proof = Proof(document["file"], hashlib.sha256(content).hexdigest())
        chain.append(proof, document["signature"].get("public_key"))
        return proof


def _place_of(document: Mapping[str, Any]) -> str:
    """Return where a proof is written: not over that of another build, which a ledger that was lost knew by its number.

    One of the same build, or that nobody can read, is what a kill left without a note.
    """
    path, ending = document["file"].removesuffix(".json"), ""
    for number in count(2):
        place = f"{path}{ending}.json"
        if not lake.exists(lake.uri(place)) or _is_of_build(lake.read_bytes(lake.uri(place)), document):
            return place
        ending = f"-{number}"
    raise AssertionError("there are numbers for ever")


def _is_of_build(content: bytes, document: Mapping[str, Any]) -> bool:
    try:
        there = json.loads(content)
    except ValueError:
        return True
    own = ("attempt", "registered_at")
    return isinstance(there, dict) and all(there.get(name) == document[name] for name in own)


def assemble(pipeline: Pipeline, evidence: Evidence, heads: Mapping[str, Proof | None]) -> dict[str, Any]:
    """Return the proof of a build without its signature."""
    interval, build = evidence.pinned.interval, evidence.findings.build
    validation = evidence.findings.validation
    fates = build.fates if build is not None else {}
    return {
        "format": FORMAT,
        "file": f"proofs/{pipeline.name}/{interval.label}-{evidence.build}.json",
        "pipeline": pipeline.name,
        "archive_table": pipeline.table,
        "interval": {"from": format_time(interval.from_time), "to": format_time(interval.to_time)},
        "build": evidence.build,
        "attempt": evidence.attempt,
        "source": evidence.source,
        "code_version": evidence.code_version,
        "lock_sha256": _lock_sha256(),
        "registered_at": format_time(evidence.published_at),
        "ranges": [
            {**each.as_json(), **(asdict(fates[each.topic_partition]) if each.topic_partition in fates else {})}
            for each in evidence.pinned.ranges
        ],
        "record_hashes": {"present": False, "why": NO_RECORD_HASHES},
        "records": asdict(build.records) if build is not None else {},
        "reconciliation": asdict(build.reconciliation) if build is not None else {},
        "references": dict(build.references) if build is not None else {},
        "validation": _validation(validation),
        "expectations": [_expectation(each) for each in (validation.expectations if validation else ())],
        "tables": [_table(each) for each in evidence.registered],
        "previous": {
            table: {"file": head.path, "sha256": head.sha256} if head else None for table, head in heads.items()
        },
    }


def _table(registered: Registered) -> dict[str, Any]:
    built = registered.built
    return {
        "table": built.table,
        "partition": built.partition,
        "location": lake.below_lake(built.location),
        "revision": built.revision,
        "code_version": registered.code_version,
        "rows": built.rows,
        "content_hash": built.content_hash,
        "files": [
            {"name": name, **{fact: facts.get(fact) for fact in ("rows", "bytes", "sha256")}}
            for name, facts in sorted(built.files.items())
        ],
    }


def _validation(validation: Validation | None) -> dict[str, Any]:
    if validation is None:
        return {"success": False, "suite": "", "decision": None}
    return {"success": validation.success, "suite": validation.suite, "decision": dict(validation.decision) or None}


def _expectation(each: ExpectationResult) -> dict[str, Any]:
    names = ("table", "expectation", "column", "words", "severity", "success", "observed", "unexpected_count")
    return {name: getattr(each, name) for name in names}


def _lock_sha256() -> str | None:
    """Return the hash of the writing environment's lock file; None if it was not installed from one."""
    lock = REPOSITORY / "uv.lock"
    return hashlib.sha256(lock.read_bytes()).hexdigest() if lock.is_file() else None
