"""The continuous queries of a pipeline."""
