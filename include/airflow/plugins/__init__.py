"""Airflow's plugins folder: it imports each module here by its bare name."""
