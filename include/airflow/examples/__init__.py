"""Examples of DAGs of others; Airflow does not read this folder: copy a file into your own DAGs."""
