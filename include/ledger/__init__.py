"""The ledger: PostgreSQL tables that hold what is committed, pinned, validated and registered.

`models` documents every table and column; `database` connects, locks and migrates; `connection` is for commands that
only read. All SQL is in this package: functions return frozen values, and each transaction is one function, named for
what it commits. Packages are named for what they record: `streams`, `archive`, `intervals`, `quarantine`. `inventory`
serves doctor and housekeeping, `lineage` serves explain, `listings` serves notifications.
"""
