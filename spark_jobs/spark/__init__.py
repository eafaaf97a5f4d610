"""Spark itself: session, entry of a driver, small frames, schemas, Kafka, checkpoints."""
