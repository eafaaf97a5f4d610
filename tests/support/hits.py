"""Lines of hits for `isp_hits`, good ones and hostile ones, and what they must add up to."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from include.producing.messages import isp_hits
from tests.conftest import Home, iso
from tests.support import audit
from tests.support.corpora import JSON_CASES, NAUGHTY

Window = tuple[str, int]
"""A zip code or provider, and the window's start in seconds since the epoch."""


def good(start: datetime, count: int, seed: int) -> list[bytes]:
    """Return `count` hits within eight minutes: none of them is late, whatever their order."""
    rng = random.Random(seed)
    return [isp_hits.message(start + timedelta(seconds=rng.uniform(0, 480)), rng)[1] for _ in range(count)]


def naughty(start: datetime) -> list[bytes]:
    """Return hits of users with unexpected names; all of them are good."""
    hit = {"zipcode": "94103", "hittime": iso(start), "isp": "Northwind Cable"}
    return [json.dumps({**hit, "user": name}, ensure_ascii="\0" in name).encode() for name in NAUGHTY]


def bad(start: datetime) -> list[bytes]:
    """Return lines that are not hits, each of which must be in quarantine unchanged."""
    lines = [b"", b" ", b"\xff\xfe", b"null", b"[]", b"{}", b'{"zipcode": "94103"', b"x" * 1_100_000]
    lines += [value for _, value in isp_hits.bad_messages(start, random.Random(1))]
    return lines + [path.read_bytes().replace(b"\n", b" ").rstrip(b"\r") for path in JSON_CASES]


def rows_of(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """The rows that good lines must become, with `seconds` of the hit."""
    hits = [json.loads(line) for line in lines]
    return [{**hit, "seconds": datetime.fromisoformat(hit["hittime"]).timestamp()} for hit in hits]


def hit_of(record: audit.Record) -> dict[str, Any] | None:
    """The hit of a good message; None for one that must be in quarantine."""
    try:
        found = json.loads((record.value or b"").decode())
        moment = datetime.fromisoformat(found["hittime"]).timestamp()
    except (UnicodeDecodeError, ValueError, KeyError, TypeError):
        return None
    safe = isinstance(found.get("zipcode"), str) and found["zipcode"].isascii() and found["zipcode"].isdigit()
    named = isinstance(found.get("isp"), str | None) and len((found.get("isp") or "").encode(errors="replace")) <= 200
    in_time = -3600 <= record.timestamp / 1000 - moment <= 30 * 86_400
    return {**found, "seconds": moment} if safe and named and in_time else None


def fates_of(records: dict[audit.Coordinates, audit.Record]) -> audit.Fates:
    """What the audit expects of a topic's records."""
    found = {at: each for at, record in records.items() if (each := hit_of(record)) is not None}
    return audit.Fates({(*at, 0): each for at, each in found.items()}, set(found), set(), records.keys() - found.keys())


def counts_by_zip(hits: Iterable[dict[str, Any]]) -> Counter[Window]:
    """Count hits per zip code and window of ten minutes, every five minutes from two past the hour, in plain Python."""
    counted: Counter[Window] = Counter()
    for each in hits:
        last = int(each["seconds"] - 120) // 300 * 300 + 120
        counted.update([(each["zipcode"], last), (each["zipcode"], last - 300)])
    return counted


def told_by_topic(kafka: str, topic: str, key: str) -> dict[Window, int]:
    """Return a compacted topic's values by window."""
    found = {}
    for text, value in audit.last_values(kafka, topic).items():
        parsed = json.loads(text)
        start = int(datetime.fromisoformat(parsed["window"]["start"]).timestamp())
        found[(parsed[key], start)] = value["hits"]
    return found


def move_in(folder: Path, name: str, lines: list[bytes], end: bytes = b"\n") -> None:
    """Give the stream a file in the documented way: complete, under another name, then renamed."""
    hidden = folder / f".{name}"
    hidden.write_bytes(b"\n".join(lines) + end)
    hidden.rename(folder / name)


def read_rows(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the rows of the files."""
    return [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]


def archived(home: Home, name: str) -> list[dict[str, Any]]:
    """Rows of the landing files that the ledger lists."""
    wanted = "SELECT path FROM landing_files f JOIN micro_batches b ON b.id = f.micro_batch_id"
    paths = home.ledger(f"{wanted} WHERE pipeline = '{name}' AND fate = 'archived'")
    return read_rows(home.lake / path for (path,) in paths)


def quarantined(home: Home, name: str) -> list[dict[str, Any]]:
    return read_rows(sorted((home.lake / "quarantine" / name).glob("*.parquet")))


def fates(home: Home, name: str) -> dict[str, tuple[int, int, int, int]]:
    """By source: first line, end, archived and quarantined, over all micro-batches, which must follow each other."""
    found: dict[str, tuple[int, int, int, int]] = {}
    counts = "SELECT source_name, from_line, until_line, archived, empty, quarantined FROM line_counts c"
    batches = "JOIN micro_batches b ON b.id = c.micro_batch_id"
    for source, begin, end, good, empty, bad in home.ledger(
        f"{counts} {batches} WHERE pipeline = '{name}' ORDER BY b.id"
    ):
        first, until, goods, bads = found.get(source, (begin, begin, 0, 0))
        assert begin == until, f"{source}: line {until} is followed by {begin}"
        assert (end - begin, empty) == (good + bad, 0)
        found[source] = (first, end, goods + good, bads + bad)
    return found


def check_archive(home: Home, name: str, good: list[bytes], bad: list[bytes]) -> None:
    """Every good line is archived once, every bad one kept once as it was, and the views count the good ones."""
    rows = archived(home, name)
    identities = Counter((row["source_name"], row["source_line"], row["source_element"]) for row in rows)
    kept = quarantined(home, name)
    identities.update((row["source_name"], row["source_line"], 0) for row in kept)
    assert set(identities.values()) == {1}
    assert not [column for column in (*rows[0], *kept[0]) if column.startswith("kafka")]
    expected = rows_of(good)
    assert Counter((row["zipcode"], row["isp"], row["user"]) for row in rows) == Counter(
        (row["zipcode"], row["isp"], row["user"]) for row in expected
    )
    assert Counter(row["value"] for row in kept) == Counter(bad)
    assert all(row["reason"] for row in kept)
    kind = name.rpartition("_")[2]
    counted = counts_by_zip(expected)
    assert told_by_topic(home.kafka, f"isp-hits-by-zip-{kind}", "zipcode") == counted
    served = f"SELECT zipcode, extract(epoch FROM window_start)::bigint, hits FROM {name}_by_zip"
    assert {(zipcode, start): count for zipcode, start, count in home.rows("serving", served)} == counted
