"""The work that a JVM does once, so that its loaded classes can be archived."""
