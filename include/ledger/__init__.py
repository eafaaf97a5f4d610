"""The ledger: PostgreSQL tables that hold what is committed, pinned, validated and registered.

`models` documents every table and column, `database` connects and migrates; the other modules are
named after what they write: `writers`, `micro_batches`, `intervals`, `revisions`.
"""

from include.ledger.database import migrate, session

__all__ = ["migrate", "session"]
