"""One interval: read, built, written, compared with the revision before it."""
