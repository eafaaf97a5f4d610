"""The archive: its files, how they are read and hashed, and the revisions that hold the rows of removed files."""
