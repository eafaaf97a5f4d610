"""Pages for people: the report of an interval and the live page in Airflow."""
