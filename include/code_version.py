"""The version of the code that makes a pipeline's output: a hash over what it is a function of."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version

from include.settings import REPOSITORY

_SHARED = ("spark_jobs/*.py", "spark_jobs/decoding/*.py", "include/pipelines/spec.py")


@cache
def code_version(pipeline: str) -> str:
    """Twelve hex digits that change when the pipeline's declaration, references, transforms or the
    shared decoding and building code change, or Spark's version does.
    """
    own = (f"include/pipelines/{pipeline}.*", f"spark_jobs/transforms/{pipeline}.py")
    digest = hashlib.sha256(f"pyspark {version('pyspark')}".encode())
    for path in sorted({path for pattern in (*_SHARED, *own) for path in REPOSITORY.glob(pattern)}):
        digest.update(path.relative_to(REPOSITORY).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
