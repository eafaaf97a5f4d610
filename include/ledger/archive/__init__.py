"""The ledger of the archive: micro-batches, their files, what decoded them, what was removed."""
