"""Quarantined records tried again."""
