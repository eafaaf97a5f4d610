"""`./tidemark new`: a pipeline from a sample of its messages."""
