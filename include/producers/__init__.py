"""Generators of realistic messages, one file per pipeline; what `./tidemark produce` writes."""
