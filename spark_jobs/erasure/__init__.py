"""Search of archive rows for the keys of an erasure."""
