"""Spark drivers (verb_noun.py) and what they import."""

# Before PySpark, whose folder it finds.
import include as include
