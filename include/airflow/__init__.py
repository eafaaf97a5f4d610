"""What the DAGs need of Airflow's classes; imported by `dags/` and by Airflow only."""
