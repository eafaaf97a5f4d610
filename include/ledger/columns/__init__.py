"""Columns of tables, as their files have them."""
