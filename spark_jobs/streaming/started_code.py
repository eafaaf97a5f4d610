"""The code that a stream's driver runs, told once at its start: what lies on disk later may be a newer deployment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from include.errors import TidemarkError
from include.intervals.references import taken_contents
from include.pipelines.spec import Pipeline, UserDefined
from include.pipelines.spec.references import check_references
from include.versions import decoder_version, rules_version, view_version
from include.versions.loaded_modules import Code, changed_code, loaded_code
from spark_jobs.decoding.decoders import code_of_workers
from spark_jobs.decoding.records import check_transforms
from spark_jobs.decoding.user_defined import python_function
from spark_jobs.spark.worker_code import files_of


@dataclass(frozen=True)
class StreamVersions:
    """Versions of the code that a driver runs, for everything that it commits."""

    decoder: str
    views: Mapping[str, str]
    """By the names of the views."""
    rules: str
    """Of the flags."""


def load_code(pipeline: Pipeline) -> dict[str, str]:
    """Import the pipeline's transforms too, and return the hashes of all modules that this process and its Python
    workers run. Raises UsageError when a decoder of the user's cannot be imported, or a transform is not there.
    """
    if isinstance(pipeline.decoder, UserDefined):
        python_function.prepare(pipeline.decoder)
    check_transforms(pipeline)
    return loaded_code(files_of(code_of_workers(pipeline)))


def versions_of(pipeline: Pipeline, code: Code) -> StreamVersions:
    """Return the versions of the pipeline's code; they are computed from files, and kept for the process.

    `code` is what the process runs. Raises TidemarkError when the files are of other code by now, UsageError when a
    reference cannot be read.
    """
    check_references(pipeline.references, pipeline.name)
    versions = StreamVersions(
        decoder_version(pipeline.code),
        {view.name: view_version(pipeline.code, view.name, taken_contents(pipeline)) for view in pipeline.views},
        rules_version(pipeline.code),
    )
    check_code(pipeline, code, "stream")
    return versions


def check_code(pipeline: Pipeline, code: Code, what: str) -> None:
    """Raise TidemarkError when the files are of other code than the process runs; `what`: stream, or replay."""
    if changed := sorted(changed_code(code)):
        raise TidemarkError(
            f"code was deployed while the {what} started: {', '.join(changed[:3])} changed",
            remedy=f"start the {what} again",
            pipeline=pipeline.name,
        )
