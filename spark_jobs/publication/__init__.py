"""From revisions to registered partitions: validation, catalog, Delta."""
