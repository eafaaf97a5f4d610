"""Operators, triggers, assets and notifiers of the DAGs; imported by `dags/`, Airflow and the demo only."""
