"""The ledger of the quarantine: where its records lie, what was decided about them, and what replays delivered."""

from include.ledger.quarantine.decisions import (
    Decisions,
    Note,
    Replayed,
    deciding,
    decisions,
    is_being_decided,
    record_discards,
)
from include.ledger.quarantine.records import Origin, QuarantineFile, RecordKey, files, latest_batches
from include.ledger.quarantine.replays import (
    REPLAY,
    LandedReplay,
    ReplayedInto,
    assign_replays,
    check_namesakes,
    diverted,
    next_replay,
    pinned_fates,
    record_replay,
    replayed_into,
    replayed_within,
    replays_into,
)

__all__ = [
    "REPLAY",
    "Decisions",
    "LandedReplay",
    "Note",
    "Origin",
    "QuarantineFile",
    "RecordKey",
    "Replayed",
    "ReplayedInto",
    "assign_replays",
    "check_namesakes",
    "deciding",
    "decisions",
    "diverted",
    "files",
    "is_being_decided",
    "latest_batches",
    "next_replay",
    "pinned_fates",
    "record_discards",
    "record_replay",
    "replayed_into",
    "replayed_within",
    "replays_into",
]
