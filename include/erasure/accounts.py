"""What the lake tells of erasures to a ledger that does not know them, as one restored from an older copy.

Such a ledger lets come back what was erased. No account holds a key: it has a slow hash of all keys of the erasure
together, by which it is recognised when it is repeated.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from time import sleep

from include import lake
from include.erasure.keys import hashes_of
from include.erasure.names import columns_now
from include.errors import TidemarkError
from include.ledger.erasures.unfinished import Begun, erasures
from include.monitor.text import quantity
from include.pipelines import load_pipeline
from include.times import format_time, parse_time

_FOLDER = "erasures"

_MOST_AHEAD = 60
"""Seconds."""


@dataclass(frozen=True)
class Account:
    """An erasure, without what was erased."""

    pipeline: str
    begun_at: str
    by: str
    reason: str
    keys: int
    records: int
    salt: str
    mark: str
    """Slow hash of the salted hashes of its keys."""
    columns: tuple[str, ...] = ()
    """Paths inside archive rows that held the keys; none in an account that does not tell them."""

    def __str__(self) -> str:
        """Return that the ledger does not know it, for a person."""
        erased = f"{quantity(self.keys, 'key')}, {quantity(self.records, 'record')}"
        return (
            f"{self.pipeline}: the ledger does not know the erasure of {self.begun_at} ({erased}; by {self.by}: "
            f"{self.reason}), as an older copy does not: what was erased comes back from Kafka"
        )

    @property
    def remedy(self) -> str:
        """What to do when the ledger does not know it."""
        pipeline = load_pipeline(self.pipeline)
        asked = sorted(columns_now(pipeline, self.columns))
        named = [] if asked == [pipeline.archive.subject] else asked
        columns = "".join(f"--column {shlex.quote(each)} " for each in named)
        return (
            "let the stream catch up first, then erase the same keys again: "
            f'./tidemark erase {self.pipeline} --key … {columns}--reason "…"; this is told until '
            f"that has erased {quantity(self.records, 'record')}; if Kafka has fewer, or it is done otherwise, "
            f"remove {self.location}"
        )

    @property
    def location(self) -> str:
        """Its URI."""
        return lake.uri(_FOLDER, self.pipeline, f"{self.begun_at.replace(':', '')}-{self.salt[:16]}.json")


def write(erasure: Begun) -> str:
    """Write the account of an erasure that was begun, and return its URI; repeating it changes nothing."""
    mark = _mark(erasure.key_hashes, erasure.salt)
    counts = erasure.counts["keys"], erasure.counts["records"]
    begun = erasure.pipeline, format_time(erasure.begun_at), erasure.by, erasure.reason
    told = Account(*begun, *counts, erasure.salt, mark, erasure.columns)
    lake.write_text(told.location, json.dumps(asdict(told)))
    return told.location


def check_clock(pipeline: str) -> None:
    """Raise TidemarkError when `await_clock` would: before an erasure begins, from a file that is deleted again."""
    probe = lake.uri(_FOLDER, pipeline, f"{secrets.token_hex(8)}.clock")
    lake.write_text(probe, "")
    try:
        if (ahead := _ahead(probe)) > _MOST_AHEAD:
            raise _too_far_ahead(ahead, "nothing was changed", "set the clocks, then repeat this command", pipeline)
    finally:
        lake.delete(probe)


def await_clock(written: str, pipeline: str, tell: Callable[[str], None]) -> None:
    """Wait until this machine's clock has passed the time of a file that was just written.

    Files that killed jobs left are told from new ones by their times, which the lake's store gives them. Raises
    TidemarkError when its clock is more than a minute ahead.
    """
    ahead = _ahead(written)
    if ahead > _MOST_AHEAD:
        resume = f"set the clocks, then: ./tidemark erase {pipeline} --resume"
        raise _too_far_ahead(ahead, "the erasure is unfinished", resume, pipeline)
    if ahead >= 1:
        tell(f"{pipeline}: waiting {ahead:.0f} s, as far as the clock of the lake's store is ahead of this machine's")
    if ahead > 0:
        sleep(ahead)


def _ahead(written: str) -> float:
    _, modified = lake.size_and_mtime(written)
    return (modified - datetime.now(UTC)).total_seconds()


def _too_far_ahead(ahead: float, state: str, remedy: str, pipeline: str) -> TidemarkError:
    return TidemarkError(
        f"the clock of the lake's store is {ahead:.0f} seconds ahead of this machine's, so what killed jobs left "
        f"looks new: {state}",
        remedy=remedy,
        pipeline=pipeline,
    )


def unknown(pipeline: str) -> list[Account]:
    """Return the erasures in the lake that the ledger does not know, oldest first."""
    folder = lake.uri(_FOLDER, pipeline)
    # A kill or a full disk leaves half of a file under the temporary name that it is written under.
    names = [each.name for each in lake.list_files(folder) if each.name.endswith(".json")]
    told = [_read(f"{folder}/{each}") for each in names]
    salts = {each.salt for each in erasures(pipeline)} if told else set()
    return [each for each in told if each.salt not in salts]


def _read(location: str) -> Account:
    read = json.loads(lake.read_text(location))
    return Account(**{**read, "columns": tuple(read.get("columns", ()))})


def forget_repeated(pipeline: str, keys: Iterable[str]) -> list[Account]:
    """Delete the accounts that the ledger does not know of erasures of just these keys, if they were repeated whole.

    Whole is in the same columns, and of as many records: with fewer, the stream has not read all of them again.
    Return those that are kept.
    """
    named = [*keys]
    kept: list[Account] = []
    for each in unknown(pipeline):
        if each.keys == len(named) and each.mark == _mark(hashes_of(named, each.salt), each.salt):
            if _erased_since(each, named) >= each.records:
                lake.delete(each.location)
            else:
                kept.append(each)
    return kept


def _erased_since(account: Account, keys: Sequence[str]) -> int:
    """Return how many records the later erasures in the ledger of these keys, in its columns at least, erased."""
    begun_at, pipeline = parse_time(account.begun_at), load_pipeline(account.pipeline)
    # No record is counted twice: one that an erasure has erased is not found by the next.
    return sum(
        each.counts["records"]
        for each in erasures(account.pipeline)
        if each.begun_at > begun_at
        and columns_now(pipeline, account.columns) <= columns_now(pipeline, each.columns)
        and sorted(each.key_hashes) == hashes_of(keys, each.salt)
    )


def _mark(hashes: Iterable[str], salt: str) -> str:
    together = "".join(sorted(hashes)).encode()
    return hashlib.scrypt(together, salt=bytes.fromhex(salt), n=2**14, r=8, p=1, dklen=32).hex()
