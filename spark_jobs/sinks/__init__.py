"""Where streams write: landing files, compacted topics, plain topics, a JDBC table, the console."""
