"""Views: how rows become aggregates and flags, and how their keys and values are written."""
