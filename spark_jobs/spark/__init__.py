"""Spark itself: session, edge of a driver, small frames, schemas, Kafka, checkpoints."""
