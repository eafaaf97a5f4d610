"""How Spark applications are started outside Spark: submission, jars, drivers' folders, class archive."""
