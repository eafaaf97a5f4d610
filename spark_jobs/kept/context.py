"""One JVM, one application after the other: what is left of the last one is removed, and the next one's is set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from include.spark.kept import KEPT_CLASSES


def prepare(conf: Mapping[str, str]) -> None:
    """Give the JVM, whose address the environment has, this application's configuration in place of the last one's.

    Called in a driver before it makes its Spark context.
    """
    from pyspark import SparkContext

    SparkContext._ensure_initialized()
    jvm = SparkContext._jvm
    assert jvm is not None
    end_left_context(jvm)
    log_warnings(jvm)
    system = jvm.java.lang.System
    for name in list(system.getProperties().stringPropertyNames()):
        if name.startswith("spark."):
            system.clearProperty(name)
    for name, value in {**conf, **KEPT_CLASSES}.items():
        system.setProperty(name, value)


def log_warnings(jvm: Any) -> None:
    """Let the JVM log warnings from here on: an application switches its log off before it ends.

    `build_session` does so once there is a context, too late for what Spark says while that starts.
    """
    log4j = jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setRootLevel(log4j.Level.WARN)


def end_left_context(jvm: Any) -> bool:
    """End the Spark context of a driver that died, with its tasks, and return whether there was one."""
    left = getattr(getattr(jvm.org.apache.spark, "SparkContext$"), "MODULE$").getActive()
    if not left.isDefined():
        return False
    left.get().stop()
    return True
