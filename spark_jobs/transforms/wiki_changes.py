"""wiki_changes: the change in a message, and how edits are counted per user."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

EDITS = ("edit", "new")
"""Types of changes to a page's text; log entries and categorisations follow from other changes."""

# The years 1 to 9999 in seconds: what a timestamp column can hold and print.
_FIRST, _LAST = -62_135_596_800, 253_402_300_799

_TAKEN = (
    "server_name", "wiki", "type", "namespace", "title", "title_url", "comment", "parsedcomment", "user", "bot",
    "minor", "patrolled", "id", "length", "revision", "notify_url", "server_url", "server_script_path", "log_id",
    "log_type", "log_action", "log_action_comment", "log_params",
)  # fmt: skip


def changes(message: Column) -> Column:
    """Return the change of a message as a struct, with `changed_at`; null for a canary event.

    `changed_at` is `meta.dt`, or `timestamp` (seconds) where that is missing. Canary events are the service's own test
    events, which its documentation asks readers to leave out.
    """
    meta = message["meta"]
    seconds = message["timestamp"]
    in_seconds = F.when(seconds.between(_FIRST, _LAST), F.timestamp_seconds(seconds))
    row = F.struct(
        F.coalesce(meta["dt"], in_seconds).alias("changed_at"),
        *(message[name].alias(name) for name in _TAKEN),
        message["$schema"].alias("schema_uri"),
        meta.alias("meta"),
    )
    is_canary = F.coalesce(meta["domain"] == "canary", F.lit(False))
    return F.when(~is_canary, row)


def edits(archive: DataFrame, references: dict[str, DataFrame]) -> DataFrame:
    """Return edits and new pages by a known user; bots are kept, marked by `bot` (null counts as false).

    Columns: those of `archive`, and `event_time`.
    """
    made = archive.where(F.col("type").isin(*EDITS) & F.col("user").isNotNull())
    return made.withColumn("bot", F.coalesce("bot", F.lit(False)))


def user_edits(edits: DataFrame, window: Column) -> DataFrame:
    """Count edits per user and window.

    Columns: user string, bot boolean, window struct<start, end> (UTC), count bigint.
    """
    return (
        edits.groupBy("user", "bot", window)
        .agg(F.count(F.lit(1)).alias("count"))
        .select("user", "bot", "window", "count")
    )
