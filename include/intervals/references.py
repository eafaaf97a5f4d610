"""Content of references: what is used is kept, so that an interval is built again with the content of its first build.

A reference is a small file that ships with the code, so a newer deployment may have other rows. Each content is kept
once, in the lake under its SHA-256, when a stream or an interval first uses it; a build notes which it used.

A reference may be read from a source instead (`spark_jobs/references/take.py`). Its content is kept in the
same form and place, and put into a file for the driver; from there on it is as if it had shipped with the code.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from include import lake
from include.errors import UsageError
from include.ledger import reference_versions
from include.ledger.intervals import revisions
from include.ledger.intervals.pins import PinnedInterval
from include.pipelines.spec import Pipeline, Reference
from include.pipelines.spec.ddl import fields_of
from include.pipelines.spec.references import columns_of_file, content_of, declared_columns
from include.settings import settings, write_private
from include.times import format_time

Contents = Mapping[str, str]
"""SHA-256 of each reference's content, by its name."""

CONTENT = "content of reference "
"""Prefix of a fact's name in a query's fingerprint."""


def keep_references(pipeline: Pipeline) -> dict[str, str]:
    """Keep what the references' files hold, unless it is kept already, and return its hashes.

    Raises UsageError when a file cannot be read, ServiceUnreachable.
    """
    kept = {}
    for name, reference in pipeline.references.items():
        content = content_of(name, reference)
        kept[name] = hashlib.sha256(content).hexdigest()
        if not lake.exists(location := _location(pipeline, name, kept[name])):
            lake.write_bytes(location, content)
    return kept


def _location(pipeline: Pipeline, name: str, digest: str) -> str:
    return lake.uri("references", pipeline.name, name, f"{digest}.csv")


def keep_content(pipeline: Pipeline, name: str, lines: Sequence[str]) -> str:
    """Keep and note what the source of a reference holds, as the lines of a CSV file, and return its SHA-256.

    The same rows give the same content in whatever order they were read.
    """
    reference = pipeline.references[name]
    content = "".join((_header(reference), *(f"{line}\n" for line in sorted(lines)))).encode()
    digest = hashlib.sha256(content).hexdigest()
    with reference_versions.noting(pipeline.name, name, digest, len(lines), str(reference.source)):
        if not lake.exists(location := _location(pipeline, name, digest)):
            lake.write_bytes(location, content)
    return digest


def _header(reference: Reference) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([each.name for each in fields_of(reference.columns)])
    return text.getvalue()


def without_rows(reference: Reference) -> Reference:
    """Return a reference that has a source, with a file of this machine that has its columns and no rows."""
    header = _header(reference)
    file = settings().home / "references" / f"{hashlib.sha256(header.encode()).hexdigest()}.csv"
    write_private(file, header)
    return replace(reference, path=file)


def as_file(pipeline: Pipeline, name: str, digest: str) -> Reference:
    """Return a reference that has a source, with a file of this machine that holds the kept content.

    Raises UsageError when that is gone, was altered, or has other columns than the declared ones.
    """
    now = (
        "take what its source holds now: ./tidemark interval … --new-references, for a stream "
        f'./tidemark new-generation {pipeline.name} --reason "…"'
    )
    needed = f"the content {digest[:12]} of the reference {name} is needed"
    file = settings().home / "references" / f"{digest}.csv"
    if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != digest:
        write_private(file, _kept_content(pipeline, name, digest, needed, now).decode())
    kept = replace(pipeline.references[name], path=file)
    if other := _other_columns(name, kept):
        raise UsageError(f"{needed}, and {other}", remedy=now, pipeline=pipeline.name)
    return kept


def _kept_content(pipeline: Pipeline, name: str, digest: str, needed: str, instead: str) -> bytes:
    """Return a kept content. Raises UsageError when it is gone or altered, with why it is needed and what to do."""
    location = _location(pipeline, name, digest)
    content = lake.read_bytes(location) if lake.exists(location) else None
    if content is None or hashlib.sha256(content).hexdigest() != digest:
        raise UsageError(
            f"{needed}, and {location} {'is gone' if content is None else 'was altered'}",
            remedy=f"restore it, or {instead}",
            pipeline=pipeline.name,
        )
    return content


def _other_columns(name: str, kept: Reference) -> str:
    """Return the columns of a kept content and the declared ones, in words; empty when they are the same."""
    has, declared = columns_of_file(name, kept), declared_columns(kept)
    return "" if has == declared else f"has the columns {','.join(has)!r}, declared are {','.join(declared)!r}"


def taken_contents(pipeline: Pipeline) -> tuple[tuple[str, str], ...]:
    """Return names and SHA-256 of the references that were read from a source, as versions of code take them."""
    return tuple((name, each.path.stem) for name, each in sorted(pipeline.references.items()) if each.source)


@contextmanager
def references_of(pipeline: Pipeline, pinned: PinnedInterval, *, anew: bool) -> Iterator[tuple[Pipeline, Contents]]:
    """Yield the pipeline with the references that are in force for an interval, and their content.

    In force is what its last published build was made with; before there is one, and with `anew`, what the files hold
    now. Raises UsageError when that is no longer kept or has other columns than the declared ones, or a file
    cannot be read.
    """
    now = keep_references(pipeline)
    then = {} if anew else revisions.references_of_published(pinned.id)
    differing = {name: digest for name, digest in then.items() if name in now and now[name] != digest}
    with TemporaryDirectory(prefix="references-") as folder:
        in_force = {name: _as_kept(pipeline, pinned, name, digest, Path(folder)) for name, digest in differing.items()}
        yield replace(pipeline, references={**pipeline.references, **in_force}), {**now, **differing}


def _as_kept(pipeline: Pipeline, pinned: PinnedInterval, name: str, digest: str, folder: Path) -> Reference:
    """Return the reference with a file that holds the kept content."""
    bounds = [format_time(each) for each in (pinned.interval.from_time, pinned.interval.to_time)]
    built = (
        f"{pinned.interval} was built with another content of the reference {name} ({digest[:12]}) than its file has "
        "now"
    )
    now = (
        "build the interval with what the references hold now: ./tidemark interval "
        f"{pipeline.name} --from {bounds[0]} --to {bounds[1]} --new-references"
    )
    file = folder / f"{name}.csv"
    file.write_bytes(_kept_content(pipeline, name, digest, built, now))
    kept = replace(pipeline.references[name], path=file)
    if other := _other_columns(name, kept):
        raise UsageError(f"{built}: that content {other}", remedy=now, pipeline=pipeline.name)
    return kept
