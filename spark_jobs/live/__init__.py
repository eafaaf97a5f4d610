"""Live looks at a pipeline: the largest keys of a view, and a shell with its tables."""
