"""Shared by the Airflow side and the Spark side: declarations, ledger, lake, services, command. Light at import."""

import sys
from importlib.machinery import PathFinder


def _import_pyspark_from_its_folder() -> None:
    """Take the archive of PySpark off the path that `spark-submit` puts first, where PySpark is installed as well.

    Python keeps no compiled code of modules in an archive: each driver would compile PySpark anew. Here, because
    whatever imports PySpark in a driver has imported this package before.
    """
    others = [entry for entry in sys.path if not entry.endswith("/pyspark.zip")]
    if len(others) < len(sys.path) and PathFinder.find_spec("pyspark", others):
        sys.path[:] = others


_import_pyspark_from_its_folder()
