"""Decisions that only a person may take: the facts beforehand, and carrying out what was approved."""
