"""Parts of the DAG `decide`: its form, its question, and what was answered."""
