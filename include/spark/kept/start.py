"""With what the kept JVM starts."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from include.settings import settings
from include.spark import class_archive, driver_folders
from include.spark.kept import KEPT_CLASSES
from include.spark.submission import driver_jars, driver_options

_LATE_SECOND_COMPILER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000 "
    "-XX:Tier4BackEdgeThreshold=80000"
)
"""The second compiler takes only what is called ten times as often as by default, or loops twice as long: planning a
query is never worth its time, many rows still are."""


def submit_arguments() -> str:
    """Return the JVM's options, as PySpark takes them from the environment."""
    current = settings()
    own = driver_options(current, Path(os.environ[driver_folders.VARIABLE]), short=False)
    conf = {
        **KEPT_CLASSES,
        "spark.jars": ",".join(kept_jars()),
        "spark.driver.extraClassPath": str(class_archive.driver_jar()),
        "spark.driver.extraJavaOptions": f"{_LATE_SECOND_COMPILER} {own}",
        "spark.driver.memory": current.driver_memory,
    }
    options = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    return shlex.join(["--master", current.spark_master, "--name", "kept", *options, "pyspark-shell"])


def kept_jars() -> list[str]:
    """Return the jars that the JVM has: all that an application may need but those of decoders."""
    return [str(jar) for jar in driver_jars(None, delta=True)]
