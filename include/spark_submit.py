"""How Spark is started: one place for the command line, Airflow and the tests.

Secrets do not travel here. The catalog's password lies in a 0600 `hive-site.xml` in the folder that
`SPARK_CONF_DIR` names; jobs read Kafka's and the ledger's from the settings, as every process does.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

from include.services.jars import classpath
from include.settings import REPOSITORY, Settings, settings, write_private

JOBS = REPOSITORY / "spark_jobs"

SHUFFLE_PARTITIONS = 2
"""Frozen into a stream's state at its first start, so a constant and not a setting of the machine."""

_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{3}
logger.kafka.name = org.apache.kafka
logger.kafka.level = error
logger.admin.name = org.apache.spark.sql.kafka010
logger.admin.level = error
logger.hive.name = org.apache.hadoop.hive
logger.hive.level = error
logger.datanucleus.name = DataNucleus
logger.datanucleus.level = error
logger.window.name = org.apache.spark.sql.execution.window
logger.window.level = error
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = error
logger.utils.name = org.apache.spark.util.Utils
logger.utils.level = error
logger.streaming.name = org.apache.spark.sql.execution.streaming.runtime.ResolveWriteToStream
logger.streaming.level = error
logger.trigger.name = org.apache.spark.sql.execution.streaming.ProcessingTimeExecutor
logger.trigger.level = error
"""


@dataclass(frozen=True)
class SparkSubmission:
    """One `spark-submit`: an entry of `spark_jobs/` with its arguments, configuration and environment."""

    job: str
    """Name of the entry without `.py`, e.g. `build_interval`."""
    arguments: tuple[str, ...]
    name: str
    conf: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)

    @property
    def application(self) -> str:
        """Path of the entry."""
        return str(JOBS / f"{self.job}.py")

    def command(self) -> list[str]:
        """The command line; it holds no secret."""
        conf = [part for key, value in sorted(self.conf.items()) for part in ("--conf", f"{key}={value}")]
        master = ["--master", settings().spark_master, "--name", self.name]
        return [spark_submit_binary(), *master, *conf, self.application, *self.arguments]


def spark_submit_binary() -> str:
    """Path of the `spark-submit` that belongs to this Python's PySpark."""
    return str(Path(sys.executable).parent / "spark-submit")


def submission(job: str, *arguments: str, name: str, short: bool = False) -> SparkSubmission:
    """What starts the job with this process's settings.

    A `short` one is over before the JVM's second compiler pays for itself: without it, it costs half the CPU time.
    """
    current = settings()
    jars = ",".join(
        str(jar) for jar in classpath("spark") if "delta" not in jar.name and "unitycatalog" not in jar.name
    )
    postgresql = next(str(jar) for jar in classpath("spark") if jar.name.startswith("postgresql-"))
    options = " ".join(
        (
            "-Duser.timezone=UTC -XX:+UseSerialGC -XX:-UsePerfData",
            *(["-XX:TieredStopAtLevel=1"] if short else []),
            os.environ.get("TIDEMARK_JVM_OPTIONS", ""),
        )
    )
    conf = {
        "spark.jars": jars,
        "spark.driver.extraClassPath": postgresql,
        "spark.driver.extraJavaOptions": options.strip(),
        "spark.driver.memory": current.driver_memory,
    }
    return SparkSubmission(job, arguments, name, conf, spark_environment(current))


def spark_environment(current: Settings) -> dict[str, str]:
    """Environment of a driver: configuration folder, Python, UTC, and Tidemark's settings."""
    passed_on = {key: value for key, value in os.environ.items() if key.startswith("TIDEMARK_")}
    return {
        **passed_on,
        "TIDEMARK_HOME": str(current.home),
        "SPARK_CONF_DIR": str(write_spark_conf(current)),
        "PYTHONPATH": str(REPOSITORY),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        **({"SPARK_LOCAL_IP": "127.0.0.1"} if current.spark_master.startswith("local") else {}),
        # spark-submit starts a JVM of its own to find out how to start the driver's.
        "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData",
        "TZ": "UTC",
    }


def write_spark_conf(current: Settings) -> Path:
    """Write Spark's configuration folder (0600 files) below the home folder and return its path."""
    folder = current.home / "spark-conf"
    catalog = current.database("catalog")
    properties = {
        "javax.jdo.option.ConnectionURL": f"jdbc:postgresql://{catalog.host}:{catalog.port or 5432}/catalog",
        "javax.jdo.option.ConnectionDriverName": "org.postgresql.Driver",
        "javax.jdo.option.ConnectionUserName": catalog.username or "",
        "javax.jdo.option.ConnectionPassword": str(catalog.password or ""),
        "datanucleus.schema.autoCreateAll": "false",
        "hive.metastore.schema.verification": "false",
        # Hive would start its own change log thread and cache; one session reads and writes a few rows.
        "datanucleus.cache.level2.type": "none",
    }
    rows = "".join(
        f"<property><name>{name}</name><value>{escape(value)}</value></property>\n"
        for name, value in properties.items()
    )
    write_private(folder / "hive-site.xml", f"<configuration>\n{rows}</configuration>\n")
    write_private(folder / "log4j2.properties", _LOG4J)
    return folder
