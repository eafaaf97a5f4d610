"""What a failure of Spark means: its exceptions as errors of the tree, and the marks that our expressions throw."""

from __future__ import annotations

import re

from include import lake
from include.errors import (
    OffsetsLost,
    ReconciliationFailed,
    ServiceUnreachable,
    TidemarkError,
    Undecodable,
    one_line,
)
from include.lake import object_store

FAILED_FAST = "tidemark: a record cannot be decoded"
"""With what decoding throws where a decoder is to fail fast."""

UNRESOLVED = "tidemark: a schema id is not resolved yet"

_LOST = ("may have been lost", "KAFKA_DATA_LOSS", "OffsetOutOfRange")
_DISK_FULL = "No space left on device"
_NO_BROKER = ("TimeoutException", "Failed to update metadata", "Connection refused", "No resolvable bootstrap")
_FAILED_FAST = re.compile(rf"{FAILED_FAST}: (\S+-\d[^\n]*?)(?: SQLSTATE|\n|$)")
_UNREADABLE = re.compile(r"\[(?:FAILED_READ_FILE|PATH_NOT_FOUND)[^\]]*\][^\n]*?((?:file|[a-z0-9]+):/[^\s,]*[^\s,.])")


def translate(error: Exception) -> TidemarkError | None:
    """Spark's words for what the error tree knows; None for anything else."""
    text = str(error)
    if refused := object_store.unreachable(lake.root(), text):
        return refused
    if unreadable := _UNREADABLE.search(text):
        return unreadable_file(unreadable[1], text)
    if undecodable := _FAILED_FAST.search(text):
        return Undecodable(
            f"{undecodable[1].strip()}: the decoder's mode is FAILFAST, nothing of its micro-batch was committed",
            remedy="have the record's producer corrected, or declare mode PERMISSIVE, which puts it into quarantine",
        )
    if is_unresolved(error):
        # Whoever runs a query resolves the id and starts it again; no record is to blame.
        return TidemarkError("a schema id was not resolved before decoding", remedy="start again")
    if any(word in text for word in _LOST):
        return OffsetsLost(one_line(text), remedy="see `./tidemark ranges` and the topic's retention")
    if _DISK_FULL in text:
        return TidemarkError(
            f"{_DISK_FULL}: below {lake.root()} or Spark's local folder; nothing half written was committed",
            remedy="free space, then start it again: it goes on where it committed last",
        )
    if any(word in text for word in _NO_BROKER):
        return ServiceUnreachable(f"Kafka or PostgreSQL: {one_line(text)}", remedy="./tidemark status")
    return None


def root_cause(error: Exception) -> str:
    """What is at the bottom of Spark's error: kind and message of its innermost cause, one line."""
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if cause is None:
        # What a query reports of itself holds its cause as an error of Python's.
        inner = getattr(error, "_cause", None)
        return root_cause(inner) if isinstance(inner, Exception) else one_line(str(error))
    while cause.getCause() is not None:
        cause = cause.getCause()
    # The record may be quoted in it.
    return f"{cause.getClass().getSimpleName()}: {one_line(str(cause.getMessage() or ''))}"


def unreadable_file(path: str, text: str) -> ReconciliationFailed:
    """The error of a file of the lake that is missing or damaged: its content can no longer be compared."""
    below = path.replace("file:/", "file:///").replace("file://////", "file:///").removeprefix(lake.root() + "/")
    missing = "PATH_NOT_FOUND" in text or "FILE_NOT_EXIST" in text
    return ReconciliationFailed(
        f"{below} {'is missing' if missing else 'cannot be read, it is damaged'}; nothing was registered",
        remedy="put it back from a copy (./tidemark doctor names every damaged file), then run the interval again",
    )


def is_unresolved(error: Exception) -> bool:
    """Whether a query ended because it met a schema id that it did not know when it was planned."""
    # With the id: the words alone are also in every plan that an error may quote.
    return re.search(rf"{UNRESOLVED}: \d", str(error)) is not None
