"""Changes of wiki pages in the form of Wikimedia's recent-change stream (schema `mediawiki/recentchange`).

`message` generates changes; `describe_event` reads those that the stream delivers.
"""

from __future__ import annotations

import json
import random
import uuid
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

from include.producing.event_stream import EventFacts
from include.producing.messages import format_milliseconds

SERVERS = (
    ("en.wikipedia.org", "enwiki", 30),
    ("www.wikidata.org", "wikidatawiki", 25),
    ("commons.wikimedia.org", "commonswiki", 20),
    ("de.wikipedia.org", "dewiki", 8),
    ("fr.wikipedia.org", "frwiki", 7),
    ("ja.wikipedia.org", "jawiki", 5),
    ("en.wiktionary.org", "enwiktionary", 3),
    ("be-tarask.wikipedia.org", "be_x_oldwiki", 2),
)
USERS = tuple(f"Editor {number:03d}" for number in range(1, 301))
BOTS = ("ArchiverBot", "CategoryBot", "InterlinkBot", "SpellingBot")
TYPES = (("edit", 62), ("categorize", 26), ("log", 7), ("new", 5))

KEY_CHARACTERS = 300
"""Longest key; longer ones are cut. Real titles have at most 255 bytes, but nothing enforces it in the stream."""

# The n-th editor makes about 1/n of the first one's edits.
_USER_WEIGHTS = tuple(accumulate(1 / rank for rank in range(1, len(USERS) + 1)))


def describe_event(data: str) -> EventFacts:
    """Return the facts that the follower needs from an event's data; None for unknown ones. Raise nothing."""
    try:
        change = json.loads(data)
    except (ValueError, RecursionError):
        return EventFacts()
    if not isinstance(change, dict):
        return EventFacts()
    meta = change.get("meta")
    meta = meta if isinstance(meta, dict) else {}
    identity, domain = meta.get("id"), meta.get("domain")
    wiki, title = change.get("wiki"), change.get("title")
    named = isinstance(wiki, str) and isinstance(title, str)
    return EventFacts(
        identity=identity if isinstance(identity, str) and identity else None,
        # By page, so that one topic partition holds all changes of a page in order.
        key=f"{wiki}:{title}"[:KEY_CHARACTERS].encode("utf-8", "replace") if named else None,
        moment=_parse_iso_time(meta.get("dt")) or _parse_unix_seconds(change.get("timestamp")),
        is_canary=domain == "canary",
    )


def _parse_iso_time(value: object) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def _parse_unix_seconds(value: object) -> datetime | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    try:
        return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def message(moment: datetime, rng: random.Random) -> tuple[bytes | None, bytes]:
    """Return key and value of one change at `moment`; one in two hundred is a canary event."""
    change = _change(moment, rng)
    if rng.random() < 0.005:
        change["meta"]["domain"] = "canary"
    value = json.dumps(change, separators=(",", ":"), ensure_ascii=False)
    return describe_event(value).key, value.encode()


def _change(moment: datetime, rng: random.Random) -> dict[str, Any]:
    server, wiki, _ = rng.choices(SERVERS, [weight for *_, weight in SERVERS])[0]
    kind = rng.choices([name for name, _ in TYPES], [weight for _, weight in TYPES])[0]
    bot = rng.random() < 0.2
    user = rng.choice(BOTS) if bot else rng.choices(USERS, cum_weights=_USER_WEIGHTS)[0]
    page = rng.randint(1, 5000)
    title = f"Category:Topic {page % 97}" if kind == "categorize" else f"Page {page} – été"
    url = f"https://{server}/wiki/{title.replace(' ', '_')}"
    change: dict[str, Any] = {
        "$schema": "/mediawiki/recentchange/1.0.0",
        "meta": _meta(url, server, moment, rng),
        "id": rng.randint(10**9, 2 * 10**9),
        "type": kind,
        "namespace": {"categorize": 14, "log": 2}.get(kind, 0),
        "title": title,
        "title_url": url,
        "comment": rng.choice(("", "typo", "/* History */ more sources", "added to category")),
        "timestamp": int(moment.timestamp()),
        "user": user,
        "bot": bot,
        "notify_url": f"https://{server}/w/index.php?diff={page}",
        "server_url": f"https://{server}",
        "server_name": server,
        "server_script_path": "/w",
        "wiki": wiki,
        "parsedcomment": "",
    }
    return {**change, **_details(kind, rng)}


def _meta(url: str, server: str, moment: datetime, rng: random.Random) -> dict[str, Any]:
    return {
        "uri": url,
        "request_id": str(_uuid(rng)),
        "id": str(_uuid(rng)),
        "dt": format_milliseconds(moment.astimezone(UTC)),
        "domain": server,
        "stream": "mediawiki.recentchange",
        "topic": rng.choice(("eqiad.mediawiki.recentchange", "codfw.mediawiki.recentchange")),
        "partition": 0,
        "offset": rng.randint(5 * 10**9, 6 * 10**9),
    }


def _uuid(rng: random.Random) -> uuid.UUID:
    return uuid.UUID(int=rng.getrandbits(128), version=4)


def _details(kind: str, rng: random.Random) -> dict[str, Any]:
    sizes: dict[str, int | None]
    revisions: dict[str, int | None]
    size, revision = rng.randint(200, 90_000), rng.randint(10**9, 2 * 10**9)
    match kind:
        case "edit":
            sizes = {"old": size, "new": max(0, size + rng.randint(-300, 900))}
            revisions = {"old": revision, "new": revision + rng.randint(1, 999)}
        case "new":
            sizes, revisions = {"old": None, "new": size}, {"old": None, "new": revision}
        case "log":
            return {
                "log_id": rng.randint(10**8, 2 * 10**8),
                "log_type": "move",
                "log_action": "move",
                "log_params": {"target": "Elsewhere", "noredir": "0"},
                "log_action_comment": "moved to Elsewhere",
            }
        case _:
            return {}
    return {"minor": rng.random() < 0.3, "patrolled": rng.random() < 0.6, "length": sizes, "revision": revisions}


def bad_messages(moment: datetime, rng: random.Random) -> list[tuple[str, bytes]]:
    """Return well-formed JSON messages that break a rule of the pipeline, as (reason, value)."""

    def changed(meta: dict[str, object] | None = None, **changes: object) -> bytes:
        change = _change(moment, rng)
        return json.dumps({**change, **changes, "meta": {**change["meta"], **(meta or {})}}).encode()

    return [
        ("wrong_type", changed(length="long")),
        ("wrong_type", changed({"dt": "yesterday"})),
        ("required_missing", changed({"id": None})),
        ("required_missing", changed({"dt": None}, timestamp=None)),
        ("event_time_out_of_bounds", changed({"dt": "9999-12-31T23:59:59Z"})),
        ("event_time_out_of_bounds", changed({"dt": None}, timestamp=-62_135_596_800)),
        ("unsafe_partition_value", changed(server_name="../../etc")),
        ("unsafe_partition_value", changed(server_name=None)),
        ("value_too_long", changed(user="x" * 2000)),
    ]
