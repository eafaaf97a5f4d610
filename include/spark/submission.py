"""How Spark is started: one place for the command line, Airflow and the tests.

Secrets do not travel here: jobs read them from the settings, as every process does.
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

from include.environment import foreign
from include.lake import object_store
from include.lake.disks import check_room
from include.pipelines.spec import Pipeline
from include.pipelines.spec.decoders import Decoder
from include.processes import check_user_has_name
from include.settings import REPOSITORY, Settings, settings
from include.spark import class_archive, cluster, driver_folders, kept
from include.spark.cluster import DeployMode
from include.spark.compiled_jars import LOG_STORES, decoder_jars, log_store_jars
from include.spark.driver_lines import pipeline_of
from include.spark.jars import SHORT_LIVED, classpath, ensure_fetched, pyspark_home

JOBS = REPOSITORY / "spark_jobs"

OWN_SPARK_SUBMIT = Path(sys.executable).parent / "spark-submit"
"""The one that this Python's PySpark has."""

SPARK_POOL = "tidemark_spark"
"""Airflow's pool that the drivers of all intervals share."""

SHUFFLE_PARTITIONS = 2
"""Frozen into a stream's state at its first start, so a constant and not a setting of the machine."""

SHORT = 200_000
"""A job with fewer offsets, over all its queries, ends before optimised code pays for its compilation."""

FIRST_COMPILER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""Only the JVM's first compiler, with the code cache of both: alone, it would get 48 MiB."""

_HUGE_METHODS = "-XX:-DontCompileHugeMethods"
"""Compile methods of more than 8,000 bytes too: Spark may generate one for a table of ten columns and their rules, and
it would be interpreted for ever."""

_ROOM_FOR_CLASSES = "-XX:MetaspaceSize=256m"
"""By default the JVM collects the whole heap once 21 MiB of classes are loaded, and again until all of Spark's are."""

AVRO_LIMITS = " ".join(
    f"-Dorg.apache.avro.limits.{what}={most}"
    for what, most in {
        "string.maxLength": 2**26,
        "bytes.maxLength": 2**26,
        "collectionItems.maxLength": 2**24,
    }.items()
)
"""Avro reserves the memory for a text, bytes, an array or a map before it reads them, as long as the value says they
are. By default that is up to 2 GiB, and one short record ends the JVM; above 64 MiB here, it is malformed."""

DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # For reading a table's log: its commits are small.
    "spark.databricks.delta.snapshotPartitions": str(SHUFFLE_PARTITIONS),
}
"""What lets a session read and write Delta tables; their jars must be there when it starts."""

LOGGING = Path(__file__).with_name("log4j2.properties")
"""What drivers log, by Log4j."""

SCHEDULING = {
    "spark.scheduler.mode": "FAIR",
    # Spark does not unescape it, as of a folder with a blank; a path alone may lie in HDFS, by Hadoop's configuration.
    "spark.scheduler.allocation.file": f"file:{Path(__file__).with_name('pools.xml')}",
}
"""Otherwise a long job that began first takes all task slots."""


@dataclass(frozen=True)
class SparkSubmission:
    """One `spark-submit`: an entry of `spark_jobs/` with its arguments, configuration and environment."""

    job: str
    """Name of the entry without `.py`, e.g. `build_interval`."""
    arguments: tuple[str, ...]
    name: str
    conf: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    """Environment of the driver; without secrets when that runs elsewhere."""
    mode: DeployMode = "client"

    @property
    def application(self) -> str:
        """Path of the entry."""
        return str(JOBS / f"{self.job}.py")

    @property
    def program(self) -> Path:
        """Path of the `spark-submit`: the settings', or what stands in for PySpark's own while a JVM is kept."""
        if self.mode == "client" and kept.can_run(self.job, self.conf):
            return kept.STAND_IN
        return settings().spark_submit or OWN_SPARK_SUBMIT

    def command(self) -> list[str]:
        """Return the command line; it holds no secret."""
        current, options, application = settings(), dict(self.conf), self.application
        master = ["--master", current.spark_master]
        if self.mode == "cluster":
            options |= cluster.submit_options(current, self.env)
            master += ["--deploy-mode", "cluster"]
            application = cluster.application_uri(current, application)
        conf = [part for key, value in sorted(options.items()) for part in ("--conf", f"{key}={value}")]
        master += ["--name", self.name]
        return [str(self.program), *master, *conf, application, *self.arguments]

    def attached(self) -> tuple[list[str], dict[str, str]]:
        """Return command and environment of a driver that keeps its caller's terminal.

        Here Python starts the JVM: with `spark-submit` the JVM starts Python, and the driver gets no standard input.
        """
        options = [part for key, value in sorted(self.conf.items()) for part in ("--conf", f"{key}={value}")]
        options = ["--master", settings().spark_master, "--name", self.name, *options, "pyspark-shell"]
        return [sys.executable, self.application, *self.arguments], {
            **self.env,
            "PYSPARK_SUBMIT_ARGS": shlex.join(options),
        }


def _young_generation(heap: str) -> str:
    """Return the option that starts the young generation at a third of the heap, the most that it may grow to.

    By default it starts with a few MiB and hardly grows; rows that wait for their files are then copied again and
    again, which doubles the collector's time.
    """
    size = int(heap[:-1]) * 1024 ** " kmgt".index(heap[-1].lower())
    return f"-XX:NewSize={size // 3}"


def submission(
    job: str,
    *arguments: str,
    name: str,
    short: bool = False,
    delta: bool = False,
    decoder: Decoder | None = None,
    mode: DeployMode | None = None,
) -> SparkSubmission:
    """Return the submission of a job with this process's settings; `delta`: it reads or writes Delta tables.

    `decoder`: the decoder of the records that it reads. Raises UsageError when its jar is missing or this user has no
    name, DiskFull when Spark's local folder has no space.

    A `short` job ends before the JVM's second compiler pays for itself; without that one it takes half the CPU time.
    Dead drivers' folders are removed, and the job's driver gets a folder of its own. `mode` overrides the settings'.
    """
    check_user_has_name("Spark")
    current = settings()
    on_cluster = (mode or cluster.deploy_mode(job, current)) == "cluster"
    jars, own, folder = driver_jars(decoder, delta=delta), dict[str, str](), None
    if not on_cluster:
        driver_folders.sweep()
        check_room(current.home / "tmp", pipeline_of(arguments))
        folder = driver_folders.make(job)
        own = {driver_folders.VARIABLE: str(folder), "TMPDIR": str(folder)}
        own[kept.GATEWAY] = str(kept.gateway_file(current))
    conf = {
        **(_delta_options() if delta else {}),
        "spark.jars": ",".join(map(str, jars)),
        "spark.driver.extraClassPath": str(class_archive.driver_jar()),
        "spark.driver.extraJavaOptions": driver_options(current, folder, short=short),
        "spark.driver.memory": current.driver_memory,
        # For executors that a cluster starts: they need the code at the same path, as in the containers.
        "spark.executor.extraJavaOptions": f"-Duser.timezone=UTC {_HUGE_METHODS} {AVRO_LIMITS}",
        "spark.executorEnv.PYTHONPATH": str(REPOSITORY),
        # Naive times of a Python decoder are read in the host's zone.
        "spark.executorEnv.TZ": "UTC",
        # As for the driver: their JVMs, too, open paths.
        "spark.executorEnv.LC_ALL": "C.UTF-8",
        **cluster.options(current, jars, "cluster" if on_cluster else "client"),
    }
    if on_cluster:
        cluster.check_secrets(current)
    environment = {**spark_environment(current), **own}
    return SparkSubmission(job, arguments, name, conf, environment, "cluster" if on_cluster else "client")


def stream_submission(
    pipeline: Pipeline, *arguments: str, name: str = "", short: bool = False, mode: DeployMode | None = None
) -> SparkSubmission:
    """Return the submission of a pipeline's stream; `name` is that of its stream if it reads lines."""
    return submission(
        "stream",
        "--pipeline",
        pipeline.name,
        *arguments,
        name=f"stream {name or pipeline.name}",
        short=short,
        delta=pipeline.archive.delta,
        decoder=pipeline.decoder,
        mode=mode,
    )


def driver_jars(decoder: Decoder | None, *, delta: bool) -> list[Path]:
    """Return the jars of a driver; the connector of a lake in a bucket is fetched if it is missing."""
    jars = classpath("spark") + (classpath("delta") if delta else []) + decoder_jars(decoder)
    lake_uri = settings().lake_uri
    if object_store.is_bucket_uri(lake_uri):
        ensure_fetched("s3", lambda line: print(f"tidemark: {line}", file=sys.stderr, flush=True))
        jars += classpath("s3")
    return jars + (log_store_jars(lake_uri) if delta else [])


def _delta_options() -> dict[str, str]:
    scheme = settings().lake_uri.partition("://")[0]
    log_store = {f"spark.delta.logStore.{scheme}.impl": LOG_STORES[scheme]} if scheme in LOG_STORES else {}
    return {**DELTA, **log_store}


def driver_options(current: Settings, folder: Path | None, *, short: bool) -> str:
    """Return the options of a driver's JVM; without a folder it runs in a container, which has one of its own."""
    # Quoted for Spark, which splits its options at blanks. Spark's local folder is below it, too.
    here = (f'"-Djava.io.tmpdir={folder}"', *class_archive.options()) if folder is not None else ()
    options = (
        f"-Duser.timezone=UTC -Dlog4j2.configurationFile={LOGGING.as_uri()}",
        f"-XX:+UseSerialGC -XX:-UsePerfData {_HUGE_METHODS} {_ROOM_FOR_CLASSES} {AVRO_LIMITS}",
        *here,
        *([FIRST_COMPILER] if short else []),
        _young_generation(current.driver_memory),
        os.environ.get("TIDEMARK_JVM_OPTIONS", ""),
    )
    return " ".join(options).strip()


def spark_environment(current: Settings) -> dict[str, str]:
    """Return the environment of a driver: Python, UTC, and Tidemark's settings.

    What the caller's shell exports for other Sparks is removed from this process, whose variables a driver gets, too.
    """
    foreign.take_out_other_sparks(os.environ, on_cluster=not current.spark_master.startswith("local"))
    passed_on = {key: value for key, value in os.environ.items() if key.startswith("TIDEMARK_")}
    return {
        **passed_on,
        "TIDEMARK_HOME": str(current.home),
        # The one that is installed with this Python, whatever the caller's shell exports: the jars are for its version.
        **({} if current.spark_submit else {"SPARK_HOME": str(pyspark_home())}),
        # PySpark's own, which does not exist: a class archive is valid only for a class path without folders, and
        # another installation's spark-defaults.conf must not matter here.
        "SPARK_CONF_DIR": str(pyspark_home() / "conf"),
        "PYTHONPATH": str(REPOSITORY),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Of UDFs: otherwise they import from the folder in which the command was typed, as from another checkout.
        "PYTHONSAFEPATH": "1",
        # As SPARK_CONF_DIR: another metastore's hive-site.xml must not matter, either.
        **dict.fromkeys(foreign.OF_OTHER_METASTORES, str(pyspark_home() / "conf")),
        **({"SPARK_LOCAL_IP": "127.0.0.1"} if current.spark_master.startswith("local") else {}),
        **cluster.client_environment(current),
        # spark-submit starts a JVM of its own to find out how to start the driver's.
        "SPARK_LAUNCHER_OPTS": " ".join(SHORT_LIVED),
        # Without a locale of UTF-8, Java cannot open a path with a letter outside of ASCII.
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
    }
