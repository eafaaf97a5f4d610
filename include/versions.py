"""Versions of code: a hash over what a pipeline's output, or the decoding of its records, is a function of."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version

from include.pipelines import load_pipeline
from include.settings import REPOSITORY

_SHARED = ("spark_jobs/*.py", "spark_jobs/decoding/*.py", "include/pipelines/spec/*.py")


@cache
def code_version(pipeline: str) -> str:
    """Twelve hex digits that change when the pipeline's declaration, references, transforms or the
    shared decoding and building code change, or Spark's version does.
    """
    own = (f"include/pipelines/{pipeline}.*", f"spark_jobs/transforms/{pipeline}.py")
    return _digest("", *_SHARED, *own)


@cache
def decoder_version(pipeline: str) -> str:
    """Twelve hex digits that change when a record may decode to something else: the declared decoder and
    archive, the transforms, the shared decoding code, or Spark's version.
    """
    declared = load_pipeline(pipeline)
    own = ("spark_jobs/decoding/*.py", "spark_jobs/spark/schemas.py", f"spark_jobs/transforms/{pipeline}.py")
    return _digest(f"{declared.decoder!r} {declared.archive!r}", *own)


@cache
def rules_version(pipeline: str) -> str:
    """Twelve hex digits that change when a record's flags may: with its decoding, the rules, or a flag's form."""
    declared = load_pipeline(pipeline)
    return _digest(f"{declared.flags!r} {decoder_version(pipeline)}", "spark_jobs/views/flags.py")


def _digest(facts: str, *patterns: str) -> str:
    digest = hashlib.sha256(f"pyspark {version('pyspark')}{facts}".encode())
    for path in sorted({path for pattern in patterns for path in REPOSITORY.glob(pattern)}):
        digest.update(path.relative_to(REPOSITORY).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
