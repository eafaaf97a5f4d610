"""Served views by their names in SQL: `live.<pipeline>_<view>`, as PostgreSQL has them at that moment.

A statement reads each view by one query of PostgreSQL, into which Spark pushes filters and sums: one snapshot.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from include.services.java import jdbc_url
from include.serving import DATABASE
from include.settings import settings

CATALOG = "live"


def name_served_views(spark: SparkSession) -> None:
    """Let the session's statements name served views. PostgreSQL is not queried before a statement names one."""
    url = settings().database(DATABASE)
    options = {
        "": "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog",
        ".url": jdbc_url(settings(), DATABASE, currentSchema=CATALOG),
        ".driver": "org.postgresql.Driver",
        ".user": url.username or "",
        # Spark redacts values of keys like this one wherever it shows its configuration.
        ".password": str(url.password or ""),
        ".pushDownAggregate": "true",
    }
    for name, value in options.items():
        spark.conf.set(f"spark.sql.catalog.{CATALOG}{name}", value)
