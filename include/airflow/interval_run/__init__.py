"""Parts of an interval's run under Airflow: its form, its links, its log, its approval."""
