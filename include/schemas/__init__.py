"""The schema registry and the writer schemas it holds."""
