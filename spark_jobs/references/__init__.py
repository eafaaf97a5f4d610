"""References that are read from tables, files and databases."""
