"""Content of references: what is used is kept, so that an interval is built again by what it was built by.

A reference is a small file that ships with the code, so a newer deployment may have other rows. Each content is kept
once, in the lake under its SHA-256, when a stream or an interval first uses it; a build notes which it used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from include import lake
from include.errors import UsageError
from include.ledger.intervals import builds
from include.ledger.intervals.pins import PinnedInterval
from include.pipelines.spec import Pipeline, Reference
from include.pipelines.spec.references import content_of
from include.times import format_time

Contents = Mapping[str, str]
"""SHA-256 of each reference's content, by its name."""


def keep_references(pipeline: Pipeline) -> dict[str, str]:
    """Keep what the references' files hold now, where it is not kept yet, and return it.

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


@contextmanager
def references_of(pipeline: Pipeline, pinned: PinnedInterval, *, anew: bool) -> Iterator[tuple[Pipeline, Contents]]:
    """Give the pipeline with the references that are in force for an interval, during the block, and their content.

    In force is what its registered revisions were built by; before there are any, and `anew`, what the files
    hold now. Raises UsageError when that is not kept any more, or a file cannot be read.
    """
    now = keep_references(pipeline)
    then = {} if anew else builds.references_of_registered(pinned.id)
    differing = {name: digest for name, digest in then.items() if name in now and now[name] != digest}
    with TemporaryDirectory(prefix="references-") as folder:
        in_force = {name: _as_kept(pipeline, pinned, name, digest, Path(folder)) for name, digest in differing.items()}
        yield replace(pipeline, references={**pipeline.references, **in_force}), {**now, **differing}


def _as_kept(pipeline: Pipeline, pinned: PinnedInterval, name: str, digest: str, folder: Path) -> Reference:
    """Return the reference with a file that holds the kept content."""
    location = _location(pipeline, name, digest)
    content = lake.read_bytes(location) if lake.exists(location) else None
    if content is None or hashlib.sha256(content).hexdigest() != digest:
        bounds = [format_time(each) for each in (pinned.interval.from_time, pinned.interval.to_time)]
        raise UsageError(
            f"{pinned.interval} was built by another content of the reference {name} ({digest[:12]}) than its file has "
            f"now, and {location} {'is gone' if content is None else 'was altered'}",
            remedy="restore it, or build the interval by what the references hold now: ./tidemark interval "
            f"{pipeline.name} --from {bounds[0]} --to {bounds[1]} --new-references",
            pipeline=pipeline.name,
        )
    file = folder / f"{name}.csv"
    file.write_bytes(content)
    return replace(pipeline.references[name], path=file)
