"""Examples for your own DAGs; Airflow does not read this folder: copy a file into your DAGs."""
