"""Drivers that Airflow hands over to a cluster."""
