"""Where streams write: landing files and compacted topics."""
