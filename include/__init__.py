"""Shared by the Airflow side and the Spark side: declarations, ledger, lake, services, command. Light at import."""
