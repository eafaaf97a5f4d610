"""The ledger of the archive: what was committed, in which landing files, and what holds the rows of removed ones."""
