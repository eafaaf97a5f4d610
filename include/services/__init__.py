"""Start and stop embedded Kafka, PostgreSQL, registry, Spark, YARN and Airflow, which listen on loopback only."""
