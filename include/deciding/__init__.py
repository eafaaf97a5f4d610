"""Decisions that only a person may take: what is known, and carrying out what was approved."""
