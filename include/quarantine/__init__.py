"""The quarantine: its records and what became of each, one record whole, discarding, and launching a replay."""

from include.quarantine.launch import replay
from include.quarantine.records import (
    Latest,
    Quarantined,
    check_there,
    discard,
    find,
    initial_counts,
    latest_records,
    pending,
    printable,
    records,
    records_within,
    select,
)
from include.quarantine.selection import Selection
