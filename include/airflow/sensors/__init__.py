"""Sensors for DAGs that read the tables."""
