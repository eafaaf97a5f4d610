"""Bytes of Kafka records to columns, one module per format."""
