"""Drivers of streams that Airflow launches detached."""
