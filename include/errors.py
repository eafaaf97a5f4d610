"""Every error that Tidemark raises on purpose, with its exit code (include/docs/runbook.md).

    TidemarkError                  1  unexpected
    ├── ValidationFailed           2  the checkpoint did not pass, nothing registered
    │   ├── ApprovalNeeded         2  only warnings failed: a person decides whether it is registered
    │   └── Undecodable            2  a decoder that fails fast met a value it cannot decode
    ├── ReconciliationFailed       3  something is unexplained, nothing registered
    ├── OffsetsLost                4  offsets gone: retention, a cut range
    │   ├── TopicRecreated         4  the topic is not the one that was read before
    │   ├── LogTruncated           4  a topic partition has other records than were read, or fewer
    │   └── PositionTooOld         4  an event stream no longer has the events after the follower's position
    ├── AnotherWriter              5  another driver holds the pipeline
    ├── ServiceUnreachable         6  Kafka, PostgreSQL, the registry or Airflow does not answer
    │   ├── RequestRefused         6  Kafka answers, but not this request: a right is missing, or a topic has no leader
    │   ├── LockLost               6  the connection that held a lock in PostgreSQL has ended
    │   └── LockHeld               5  another command holds a lock in the ledger for too long
    ├── AnswerTooLong              1  the registry answers with more than is read
    ├── DiskFull                   1  a disk of the lake, or of this home, has no space left
    ├── FileUnreadable             1  a file that the ledger names is missing or damaged
    ├── MessageRefused             1  Kafka does not take a message, whenever it is sent
    ├── MetadataGone               1  the catalog names metadata of an Iceberg table that does not exist
    ├── ArchiveBehind              7  the archive did not reach the interval's end in time
    └── UsageError                64  unknown pipeline, malformed time, wrong setting
        ├── CheckpointDamaged     64  a file of a checkpoint is lost or cannot be read: only a new generation goes on
        ├── OtherScale            64  a file's decimals have other decimal places than those of its Iceberg table
        └── PipelinesClash        64  two pipelines write what must be of one

The text of an error is one line: what is wrong, where, and what to do. `retryable` and `meaning` belong to the exit
code, since a driver's error reaches Airflow as its code.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager


def one_line(text: str, most: int = 400) -> str:
    """Return the first line of a text that an error or a log quotes, without control characters."""
    first = text.strip().splitlines()[0][:most] if text.strip() else "no message"
    return "".join(character if character.isprintable() else " " for character in first)


class TidemarkError(Exception):
    """Root of the tree. `message` says what and where, `remedy` what to do about it."""

    exit_code = 1
    retryable = True
    """Whether Airflow tries again; one answer per exit code."""
    meaning = "unexpected, its log says why"
    """What the exit code means, in a few words."""
    is_reported = False
    """Whether a driver has already said what is wrong: the command then only ends with the exit code."""

    def __init__(self, message: str, *, remedy: str = "", pipeline: str = "") -> None:
        self.message = message
        self.remedy = remedy
        self.pipeline = pipeline
        super().__init__(str(self))

    def __str__(self) -> str:
        where = f"{self.pipeline}: " if self.pipeline else ""
        what_to_do = f" — {self.remedy}" if self.remedy else ""
        return " ".join(f"{where}{self.message}{what_to_do}".split())


class ValidationFailed(TidemarkError):
    """The checkpoint did not pass on a revision; nothing was registered."""

    exit_code = 2
    retryable = False
    meaning = "validation failed, nothing was registered"


class ApprovalNeeded(ValidationFailed):
    """Only expectations of severity `warn` were not met; nothing is registered until somebody approves."""


class Undecodable(ValidationFailed):
    """A decoder that is declared to fail fast met a value that it cannot decode; nothing of it was committed."""


class ReconciliationFailed(TidemarkError):
    """Archive, Kafka and speed view disagree in a way nothing explains; nothing was registered."""

    exit_code = 3
    retryable = False
    meaning = "reconciliation left something unexplained, nothing was registered"


class OffsetsLost(TidemarkError):
    """Offsets that were still to be read are gone from Kafka."""

    exit_code = 4
    retryable = False
    meaning = "offsets are lost, or the topic was recreated"


class TopicRecreated(OffsetsLost):
    """The topic's id differs from the one that earlier commits were read from."""


class LogTruncated(OffsetsLost):
    """A topic partition ends before an offset that was read, or holds other records below it."""


class PositionTooOld(OffsetsLost):
    """An event stream no longer has the events after the position that its follower has reached."""


class AnotherWriter(TidemarkError):
    """Another driver holds the pipeline's lease."""

    exit_code = 5
    meaning = "another writer holds the pipeline"


class ServiceUnreachable(TidemarkError):
    """A service does not answer at its address."""

    exit_code = 6
    meaning = "a service cannot be reached"


class RequestRefused(ServiceUnreachable):
    """Kafka answers, but not this request: about other topics it may."""


class LockLost(ServiceUnreachable):
    """A lock in PostgreSQL was lost with its connection: others may have taken it since."""


class LockHeld(ServiceUnreachable):
    """Another command has held a lock in the ledger for longer than a statement waits, or each waited for the other.

    What waits for a service that is away waits for this, too; the exit code says that another one is at work.
    """

    exit_code = AnotherWriter.exit_code
    meaning = AnotherWriter.meaning


class AnswerTooLong(TidemarkError):
    """The registry answers with more than is read of an answer."""


class DiskFull(TidemarkError):
    """A disk of the lake or of this home has no space left."""


class FileUnreadable(TidemarkError):
    """A file of the lake that the ledger names is missing or damaged."""


class MessageRefused(TidemarkError):
    """Kafka does not take a message, whenever it is sent: it is too large, for example."""


class MetadataGone(TidemarkError):
    """The catalog names metadata of an Iceberg table that does not exist any more, or lies in another lake."""


class ArchiveBehind(TidemarkError):
    """The archive has not reached the interval's end in time (stream stopped or behind)."""

    exit_code = 7
    meaning = "the archive has not reached the interval's end in time"


class UsageError(TidemarkError):
    """A wrong argument or setting."""

    exit_code = 64
    retryable = False
    meaning = "wrong usage or settings"


class CheckpointDamaged(UsageError):
    """A file of a stream's checkpoint is lost or cannot be read; the stream goes on in a new generation."""


class OtherScale(UsageError):
    """A file has decimals with other decimal places than its Iceberg table: readers would misread their numbers."""


class PipelinesClash(UsageError):
    """Two pipelines write what must be of one; the message names both."""

    def __init__(self, message: str, *, remedy: str = "", pipelines: tuple[str, ...] = ()) -> None:
        self.pipelines = pipelines
        super().__init__(message, remedy=remedy)


@contextmanager
def asking_owner(what: str, command: str = "./tidemark doctor --repair") -> Iterator[None]:
    """Raise UsageError where this user may not write to the checkout: what is wrong with it, and what mends it."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise UsageError(
            f"{what}, and this user cannot write to this checkout: {error.strerror}",
            remedy=f"the owner of this checkout must start {command}",
        ) from None


def error_class(exit_code: int) -> type[TidemarkError]:
    """Return the topmost class in the tree with an exit code; TidemarkError when no class has it."""
    return next((known for known in _classes(TidemarkError) if known.exit_code == exit_code), TidemarkError)


def _classes(root: type[TidemarkError]) -> Iterator[type[TidemarkError]]:
    yield root
    for below in root.__subclasses__():
        yield from _classes(below)
