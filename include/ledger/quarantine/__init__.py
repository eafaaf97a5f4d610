"""The ledger of the quarantine: where its records lie, what was decided about them, and what replays delivered."""

from include.ledger.quarantine.decisions import (
    Decisions,
    deciding,
    decisions,
    is_being_decided,
    record_discards,
)
from include.ledger.quarantine.records import Origin, QuarantineFile, RecordKey, files, latest_batches, replaced
from include.ledger.quarantine.replays import (
    REPLAY,
    LandedReplay,
    ReplayedInto,
    assign_replays,
    check_namesakes,
    discarded,
    diverted,
    next_replay,
    pinned_fates,
    record_replay,
    replayed_into,
    replayed_within,
    replays_into,
)
