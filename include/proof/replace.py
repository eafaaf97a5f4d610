"""Write proofs again that name erased table partitions, and those that follow them in the chain.

A replacement has the path of the former proof, states by SHA-256 which ones it replaces and which erasure did that, and
differs from them in what was erased, in the hashes of the proofs before it, and in its signature. `verify` compares the
two if somebody still has the former one.

This is done in the order of the chain: a file that names the erasure is finished. After a kill in between, the next run
continues after it, and notes its hash again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from include import lake
from include.crash_points import crash_point
from include.errors import TidemarkError, UsageError
from include.lake.object_store import is_bucket_uri
from include.ledger import proofs
from include.ledger.erasures.to_forget import NamesToForget
from include.pipelines.spec import Pipeline
from include.proof.signing import own_public_key, signature_of
from include.proof.verify import NotAProof, canonical, parse


def replace_proofs(pipeline: Pipeline, erasure: int, names: NamesToForget) -> int:
    """Replace the proofs that name the partitions and all that follow, and return how many this erasure replaced.

    One whose file is gone names nobody, and stays as the ledger notes it. Repeating it changes nothing. Raises
    UsageError if a signed proof cannot be signed again, TidemarkError for a file that is not a proof, and when their
    folder is gone.
    """
    replaced: dict[str, str] = {}
    with proofs.replacing(pipeline.name) as chain:
        written = chain.paths()
        if written:
            _check_folder(pipeline)
        for path in written:
            if (before := _read(pipeline, path)) is None:
                continue
            proof = before if _is_replaced(before, erasure) else _replacement(before, replaced, names)
            if proof == before and not _is_replaced(before, erasure):
                continue
            if proof != before:
                _write(pipeline, path, proof, before, erasure)
                crash_point("proof_replaced")
            content = lake.read_bytes(lake.uri(path))
            replaced[path] = hashlib.sha256(content).hexdigest()
            chain.note(path, replaced[path], parse(content)["signature"].get("public_key"))
    return len(replaced)


def _check_folder(pipeline: Pipeline) -> None:
    """Raise TidemarkError when the folder of the proofs is gone: it may be on a disk that is not mounted now."""
    folder = lake.uri("proofs", pipeline.name)
    if not is_bucket_uri(folder) and not lake.is_folder(folder):
        raise TidemarkError(
            f"the folder proofs/{pipeline.name} is gone with all proofs, which may name what is erased; the erasure is "
            "unfinished",
            remedy=f"mount it or put it back, or make the folder {folder.removeprefix('file://')} if there is no copy, "
            f"then: ./tidemark erase {pipeline.name} --resume",
            pipeline=pipeline.name,
        )


def replaced_by(pipeline: Pipeline, erasure: int) -> int:
    """Return how many proofs of a pipeline an erasure replaced. Raises TidemarkError like `replace_proofs`."""
    every = (_read(pipeline, path) for path in proofs.paths(pipeline.name))
    return sum(each is not None and _is_replaced(each, erasure) for each in every)


def _read(pipeline: Pipeline, path: str) -> dict[str, Any] | None:
    """Return a proof; None where its file is gone. Raises TidemarkError for another file in its place."""
    try:
        return parse(lake.read_bytes(lake.uri(path)))
    except FileNotFoundError:
        return None
    except NotAProof as error:
        raise TidemarkError(
            f"the file {path} is no proof, so it cannot be replaced; the erasure is unfinished",
            remedy="put it back from a backup, or delete what is there if there is none, then: "
            f"./tidemark erase {pipeline.name} --resume",
            pipeline=pipeline.name,
        ) from error


def _is_replaced(proof: Mapping[str, Any], erasure: int) -> bool:
    return any(each["erasure"] == erasure for each in proof.get("replaces", ()))


def _replacement(proof: dict[str, Any], replaced: Mapping[str, str], names: NamesToForget) -> dict[str, Any]:
    """Return a proof without the names, whose chain leads to the replacements before it."""
    previous = {
        table: {**each, "sha256": replaced.get(each["file"], each["sha256"])} if each else None
        for table, each in proof["previous"].items()
    }
    told = {"expectations": names.without_keys(proof["expectations"]), "previous": previous}
    clean = {**names.without(proof), **told}
    if decision := clean["validation"].get("decision"):
        reason = names.without_keys(decision["reason"])
        clean["validation"] = {**clean["validation"], "decision": {**decision, "reason": reason}}
    return clean


def _write(pipeline: Pipeline, path: str, proof: dict[str, Any], before: Mapping[str, Any], erasure: int) -> None:
    if before["signature"]["algorithm"] != "none" and not own_public_key():
        raise UsageError(
            f"the proof {path} is signed, and no key is set to sign another in its place; the erasure is unfinished",
            remedy=f"set TIDEMARK_PROOF_KEY, then: ./tidemark erase {pipeline.name} --resume",
            pipeline=pipeline.name,
        )
    was = hashlib.sha256(lake.read_bytes(lake.uri(path))).hexdigest()
    proof["replaces"] = [*before.get("replaces", ()), {"sha256": was, "erasure": erasure}]
    proof["signature"] = signature_of(canonical(proof))
    lake.write_bytes(lake.uri(path), json.dumps(proof, indent=1).encode() + b"\n")
