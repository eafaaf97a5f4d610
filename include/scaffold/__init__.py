"""`./tidemark new`: a pipeline out of a sample of its messages."""
