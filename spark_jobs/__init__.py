"""Spark drivers (verb_noun.py) and what they import."""
