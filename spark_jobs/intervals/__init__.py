"""One interval: read, built, written, and compared with its previous revisions."""
