"""The archive: its files, how they are read and hashed, and where the rows of removed ones are."""
