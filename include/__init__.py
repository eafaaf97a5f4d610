"""Shared by the Airflow side and the Spark side: declarations, ledger, lake, services, command. Light at import."""

import sys
from importlib.machinery import PathFinder


def _import_pyspark_from_its_folder() -> None:
    """Remove the PySpark archive that `spark-submit` puts first on the path, where PySpark is installed as well.

    Python does not cache compiled modules of an archive: each driver would compile PySpark again. This runs here
    because whatever imports PySpark in a driver has imported this package before.
    """
    others = [entry for entry in sys.path if not entry.endswith("/pyspark.zip")]
    if len(others) < len(sys.path) and PathFinder.find_spec("pyspark", others):
        sys.path[:] = others


_import_pyspark_from_its_folder()
