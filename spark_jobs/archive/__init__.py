"""The archive: its files, how they are read and hashed, and where removed ones are found again."""
