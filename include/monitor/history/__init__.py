"""Intervals, tables and quarantine over time, as the web pages show them: read from the ledger, and laid out."""
