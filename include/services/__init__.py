"""Embedded Kafka, PostgreSQL, schema registry and Airflow on loopback."""
