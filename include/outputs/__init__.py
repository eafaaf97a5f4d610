"""Database tables that outputs of rows write: where they are, their columns, and how rows get into them.

A row's coordinates are its primary key, so a row that is written again is the same row. PostgreSQL, and MariaDB or
MySQL: `include/outputs/dialects.py` holds what differs.
"""
