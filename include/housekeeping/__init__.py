"""Housekeeping: removes what registered tables have replaced and old revisions, and compacts closed days."""
