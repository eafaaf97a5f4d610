"""What an Iceberg table says of its completeness, in its properties."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.table import Table, Transaction

from include.ledger.completeness.properties import KEYS


def said_of(table: Table) -> dict[str, str]:
    """Return what a table says now."""
    return {key: table.properties[key] for key in KEYS if key in table.properties}


def say(transaction: Transaction, said: Mapping[str, str]) -> None:
    """Let a table say this and nothing else, by the transaction's commit."""
    before = transaction.table_metadata.properties
    if said:
        transaction.set_properties(dict(said))
    if gone := [key for key in KEYS if key in before and key not in said]:
        transaction.remove_properties(*gone)
