"""Decoders that the user writes: a Python function, or a Kafka `Deserializer` in Java."""
