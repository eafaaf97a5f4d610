"""The driver of one application in the kept JVM: `driver.py CONF APPLICATION ARGUMENTS…`, `CONF` as JSON."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path


def main(conf: str, application: list[str]) -> None:
    """Become the application, with this configuration in the JVM that the environment names."""
    from spark_jobs.kept.context import prepare

    prepare(json.loads(conf))
    sys.argv = application
    sys.path[0] = str(Path(application[0]).parent)
    runpy.run_path(application[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
