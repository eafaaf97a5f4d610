"""The JVM that `./tidemark up spark` keeps, and the applications in it (`include/spark/kept/`)."""
