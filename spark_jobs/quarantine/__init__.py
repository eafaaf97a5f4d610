"""Replay of quarantined records."""
