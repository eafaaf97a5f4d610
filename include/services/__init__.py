"""Start and stop embedded Kafka, PostgreSQL, schema registry and Airflow, which listen on loopback only."""
