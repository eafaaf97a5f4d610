"""Feeds bring lines to a stream that does not read Kafka: from new files of a folder, or from a socket.

A feed is a thread of the driver. It does one thing: it notes complete files in the ledger. All queries read those files
in the order of the ledger; no query lists the folder or opens a connection itself.
"""

from __future__ import annotations

import logging
import socket
import threading
from abc import ABC, abstractmethod
from datetime import datetime
from urllib.parse import quote

from include import lake
from include.errors import ServiceUnreachable, TidemarkError, UsageError, one_line
from include.lake.object_store import is_bucket_uri
from include.ledger.streams import lines
from include.ledger.streams.lines import NotedFile
from include.ledger.streams.writers import Lease
from include.pipelines.spec.lines import LineSource, SocketLines, TextFiles, one_spelling
from include.streams.received_lines import OpenConnection, note_left

LOOK_EVERY = 1.0
"""Seconds between two looks at a folder."""


class Feed(threading.Thread, ABC):
    """A thread that notes files until it is stopped."""

    def __init__(self, lease: Lease, place: str, *, until_end: bool) -> None:
        super().__init__(name="feed", daemon=True)
        self.lease = lease
        self.place = place
        self.until_end = until_end
        self.stopping = threading.Event()
        self._error: TidemarkError | None = None

    def run(self) -> None:
        """Feed until stopped, or until there is no more."""
        try:
            self.feed()
        except TidemarkError as error:
            self._error = error
        except OSError as error:
            self._error = TidemarkError(
                f"lines can no longer be taken in: {one_line(str(error))}", remedy=f"check {self.place}"
            )
        except Exception as error:
            # The thread's edge: a feed that ended unforeseen must not count as one that reached the end.
            self._error = TidemarkError(
                f"lines can no longer be taken in: {type(error).__name__}: {one_line(str(error))}",
                remedy="start the stream again, and report this if it comes back",
            )
            self._error.__cause__ = error

    @abstractmethod
    def feed(self) -> None:
        """Note new files until stopped; with `until_end`, until there are no more now."""

    def check(self) -> None:
        """Raise the error that ended the feed. A feed that ended without being asked has failed."""
        if self._error is not None:
            raise self._error
        if self.ident is not None and not (self.is_alive() or self.until_end or self.stopping.is_set()):
            raise TidemarkError("lines are no longer taken in, the log above says why", remedy="start the stream again")

    def end(self) -> None:
        """Note the files that are there, and end the feed."""
        self.stopping.set()
        if self.is_alive():
            self.join(timeout=30)


def feed_of(source: LineSource, lease: Lease, *, until_end: bool) -> Feed:
    """Return the feed of a source. Raises UsageError for a folder, or a bucket, that does not exist."""
    if isinstance(source, TextFiles):
        return FolderFeed(source, lease, until_end=until_end)
    return SocketFeed(source, lease, until_end=until_end)


class FolderFeed(Feed):
    """Notes each file of a folder once; folders and pipes in it, and names that begin with `.` or `_`, are ignored."""

    def __init__(self, source: TextFiles, lease: Lease, *, until_end: bool) -> None:
        super().__init__(lease, source.folder, until_end=until_end)
        self._folder = source.folder
        # A URI in a bucket has no escapes.
        self._spelled = str if is_bucket_uri(self._folder) else quote
        # Earlier versions noted files as the folder was written.
        self._noted = {one_spelling(at): state for at, state in lines.noted(lease.pipeline).items()}
        self._last_look: dict[str, tuple[int, datetime]] = {}
        self._told_folders = False
        self._check_folder()

    def _check_folder(self) -> None:
        if lake.is_folder(self._folder):
            return
        if is_bucket_uri(self._folder):
            # A folder without a file is none there, as before the first one, or after all were moved on.
            bucket = "/".join(self._folder.split("/")[:3])
            if not lake.exists(bucket):
                raise UsageError(f"there is no bucket {bucket}", remedy="create it; files may appear in it later")
        else:
            raise UsageError(f"there is no folder {self._folder}", remedy="create it; files may appear in it later")

    def feed(self) -> None:
        """Look once a second; the end is reached when all files are noted. Raises TidemarkError for a changed file."""
        while True:
            growing = self._look()
            if (self.until_end and not growing) or self.stopping.wait(LOOK_EVERY):
                return

    def _look(self) -> bool:
        """Note new files that have not changed since the last look; return whether others must be looked at again."""
        self._check_folder()
        entries = [entry for entry in self._entries() if not entry.name.startswith((".", "_"))]
        self._tell_folders(sum(entry.is_folder for entry in entries))
        listed = {
            f"{self._folder}/{self._spelled(entry.name)}": (entry.bytes, entry.modified)
            for entry in entries
            if entry.is_file and entry.modified
        }
        for location in listed.keys() & self._noted.keys():
            if not _same(listed[location], self._noted[location]):
                raise changed(location, self._noted[location], listed[location], self.lease.pipeline)
        new = {at: state for at, state in listed.items() if at not in self._noted}
        still = {at: state for at, state in new.items() if self._last_look.get(at) == state}
        # The oldest files first.
        ordered = sorted(still.items(), key=lambda item: (item[1][1], item[0]))
        if ordered:
            lines.note_files(self.lease, [NotedFile(at, size, modified, at) for at, (size, modified) in ordered])
        self._noted |= still
        self._last_look = new
        return len(still) < len(new)

    def _tell_folders(self, count: int) -> None:
        if count and not self._told_folders:
            logging.getLogger("tidemark").warning(
                "%s: folders in it are passed over, with all files in them: %s", self._folder, count
            )
            self._told_folders = True

    def _entries(self) -> list[lake.Entry]:
        try:
            return lake.list_entries(self._folder, recursive=False)
        except UnicodeDecodeError as error:
            name = bytes(error.object).rpartition(b"/")[2]
            raise TidemarkError(
                f"the name of a file in {self._folder} is not UTF-8: {str(name)[1:]}, so no file of the folder is read",
                remedy="rename it, or move it out of the folder, and start the stream again",
                pipeline=self.lease.pipeline,
            ) from None


def _same(one: tuple[int, datetime], other: tuple[int, datetime]) -> bool:
    # To the second, as errors tell it: an object store reports the time of a single file less exactly than its listings
    # do.
    return (one[0], int(one[1].timestamp())) == (other[0], int(other[1].timestamp()))


def changed(location: str, noted: tuple[int, datetime], now: tuple[int, datetime], pipeline: str) -> TidemarkError:
    """Return the error of a file that changed after it was noted: nobody can tell which of its lines were read."""
    return TidemarkError(
        f"{location} was changed after it was noted ({noted[0]} bytes of {noted[1]:%Y-%m-%dT%H:%M:%SZ}, now {now[0]} "
        f"of {now[1]:%Y-%m-%dT%H:%M:%SZ}): a file is read once, and whole",
        remedy="put it back as it was; what was added goes into a file of its own, moved into the folder when it is "
        "complete",
        pipeline=pipeline,
    )


def check_unchanged(file: NotedFile, pipeline: str) -> None:
    """Raise TidemarkError unless the file is still what was noted."""
    try:
        size, modified = lake.size_and_mtime(file.location)
    except FileNotFoundError:
        raise TidemarkError(
            f"{file.location} was noted ({file.bytes} bytes of {file.modified_at:%Y-%m-%dT%H:%M:%SZ}) and is gone "
            "before it was read",
            remedy="put it back, with this modification time",
            pipeline=pipeline,
        ) from None
    if not _same((size, modified), (file.bytes, file.modified_at)):
        raise changed(file.location, (file.bytes, file.modified_at), (size, modified), pipeline)


class SocketFeed(Feed):
    """Writes what a server sends to files of the lake and notes them; connects again when it is cut off."""

    def __init__(self, source: SocketLines, lease: Lease, *, until_end: bool) -> None:
        super().__init__(lease, lake.root(), until_end=until_end)
        self._source = source

    def feed(self) -> None:
        """Receive connection after connection; the end is reached when the first one is closed.

        Raises ServiceUnreachable when not even the first can be opened; at the end TidemarkError unless the server has
        closed it.
        """
        note_left(self.lease)
        pause = 0.0
        reached = told = False
        while not self.stopping.wait(pause):
            try:
                connected = socket.create_connection((self._source.host, self._source.port), timeout=10)
            except OSError as error:
                if not reached:
                    raise ServiceUnreachable(
                        f"{self._source}: {one_line(str(error))}", remedy="is the server listening there?"
                    ) from None
                if not told:
                    logging.getLogger("tidemark").warning(
                        "%s cannot be reached, what it sends meanwhile is lost; trying again: %s",
                        *(self._source, one_line(str(error))),
                    )
                told = True
                pause = min(30.0, pause * 2)
                continue
            reached, told = True, False
            with connected:
                connection = OpenConnection(connected, str(self._source), self.lease)
                received = connection.receive(self.stopping)
            pause = 1.0 if received else min(30.0, max(1.0, pause * 2))
            if self.until_end:
                connection.check()
                return
