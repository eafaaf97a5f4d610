"""The only SparkSession builder."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from py4j.java_gateway import JavaClass, JavaMember
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from include import lake
from include.errors import ServiceUnreachable
from include.lake import object_store
from include.services.java import jdbc_url
from include.services.spark.allowance import cores
from include.settings import Settings, settings
from include.spark.submission import SCHEDULING, SHUFFLE_PARTITIONS

_ASKED_FOR = (
    "org.apache.spark.sql.functions",
    "functions",
    "PythonRDD",
    "PythonSQLUtils",
    "PythonUtils",
    "SerDeUtil",
    "SimplePythonFunction",
)
"""Names by which PySpark asks the JVM for a class whenever it makes a column or a DataFrame."""

_NOTICE = "WARNING: Using incubator modules: jdk.incubator.vector"


def build_session(
    name: str, *, catalog: bool = False, metastore: Mapping[str, str] | None = None, task_slots: int = 0
) -> SparkSession:
    """Return a session with UTC, declared partition types and quiet logs; `catalog` adds the Hive catalog (2 s).

    `metastore`: properties of another metastore, in place of the one in the settings. `task_slots`: the minimum
    with the master `local[*]`, also on a machine with fewer cores; without effect with any other. Raises
    ServiceUnreachable when a standalone master does not answer.
    """
    builder = (
        SparkSession.builder.appName(name)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", SHUFFLE_PARTITIONS)
        .config("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
        # Read for each field of each Avro record; computing its default reads the environment every time.
        .config("spark.sql.types.framework.enabled", "false")
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        .config("spark.sql.streaming.metricsEnabled", "true")
        .config("spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        # Otherwise each expression looks up its origin in stack and JVM, which doubles its cost.
        .config("spark.python.sql.dataFrameDebugging.enabled", "false")
        .config("spark.ui.enabled", str(settings().spark_ui).lower())
        # These pages have no access control, so they must not be able to stop a query.
        .config("spark.ui.killEnabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", lake.uri("warehouse"))
        .config(map={**SCHEDULING})
    )
    if settings().spark_master.startswith("local"):
        # Otherwise the ports that a driver opens on loopback take Java objects from every user of the machine. Spark
        # makes a secret for each context; of other masters, only YARN and Kubernetes do (include/spark/cluster.py).
        builder = builder.config("spark.authenticate", "true")
    if object_store.is_bucket_uri(lake.root()):
        for key, value in object_store.spark_properties().items():
            builder = builder.config(key, value)
    if catalog or metastore:
        # Set here, not on the command line or in a file: the driver takes the password from its settings.
        for key, value in (metastore or catalog_properties(settings())).items():
            builder = builder.config(f"spark.hadoop.{key}", value)
        builder = builder.enableHiveSupport()
    if task_slots > cores() and settings().spark_master == "local[*]":
        builder = builder.master(f"local[{task_slots}]")
    _start_jvm()
    with _naming_the_master():
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("WARN")
    share_class_loader(session.sparkContext)
    keep_classes(session.sparkContext)
    return session


def _start_jvm() -> None:
    """Start a JVM where `spark-submit` has started none, as for a driver that keeps its caller's terminal.

    With the session, PySpark would start it with all of that's options on its command line, passwords too, where every
    user can read them. `sed` leaves out that Spark uses a module of Java which is not final yet.
    """
    if SparkContext._gateway or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    # In a session of its own: Ctrl-C reaches the driver alone.
    rest = subprocess.Popen(["sed", "-u", f"/^{_NOTICE}$/d"], stdin=subprocess.PIPE, stdout=2, start_new_session=True)
    assert rest.stdin is not None
    with rest.stdin:
        gateway = launch_gateway(popen_kwargs={"stderr": rest.stdin})  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=gateway)


def keep_classes(context: SparkContext) -> None:
    """Have PySpark find the classes that columns are made with, and their methods, without asking the JVM again.

    Otherwise it asks for both before each call. A name without a package is looked for in each package that PySpark
    imports, which is in all of Spark's jars: a tenth of what a plan costs.
    """
    jvm = context._jvm
    for name in _ASKED_FOR:
        with suppress(Py4JError):
            found = getattr(jvm, name)
            if type(found) is JavaClass:
                setattr(jvm, name, _KeptClass(found._fqn, found._gateway_client))


class _KeptClass(JavaClass):  # type: ignore[misc]
    """A class of the JVM that is asked once for each of its methods."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, JavaMember):
            setattr(self, name, found)
        return found


def share_class_loader(context: SparkContext) -> bool:
    """Have a local executor's tasks use the driver's class loader, and return whether they do.

    Spark keeps a generated class by its code and the class loader for which it was compiled. An executor makes one of
    its own, also in the driver's JVM: there each class of a query is compiled twice, and in a JVM that stays once more
    for every context. Its jars are the driver's. Where another version of Spark has other names inside, all stays as
    it was.
    """
    jvm = context._jvm
    assert jvm is not None
    # Nobody promises the names of private fields.
    with suppress(Py4JError):
        dispatcher = _inside(jvm.org.apache.spark.SparkEnv.get().rpcEnv(), "dispatcher")
        for endpoint in _inside(dispatcher, "endpointRefs").keySet().toArray():
            kind = endpoint.getClass().getName()
            if kind == "org.apache.spark.scheduler.local.LocalEndpoint":
                executor = _inside(endpoint, f"{kind.replace('.', '$')}$$executor")
                drivers = jvm.java.lang.Thread.currentThread().getContextClassLoader()
                getattr(executor.defaultSessionState(), "replClassLoader_$eq")(drivers)
                return True
    return False


def _inside(instance: Any, name: str) -> Any:
    """Return a private field of an object in the JVM."""
    field = instance.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(instance)


@contextmanager
def _naming_the_master() -> Iterator[None]:
    """Raise ServiceUnreachable when Spark stops its context while it starts: no standalone master answered it."""
    try:
        yield
    except Py4JJavaError as error:
        master, kind = settings().spark_master, error.java_exception.getClass().getName()
        if not master.startswith("spark://") or kind != "java.lang.IllegalStateException":
            raise
        raise ServiceUnreachable(
            f"the Spark master {master} does not answer; nothing was read or written",
            remedy="start the cluster, or correct TIDEMARK_SPARK_MASTER, then start it again",
        ) from error


def catalog_properties(current: Settings) -> dict[str, str]:
    """Return the options of Hive's client for the metastore. Raises ServiceUnreachable before `up postgres`."""
    catalog = current.database("catalog")
    return {
        # None: a hive-site.xml on the class path may name a server, which would be asked instead.
        "hive.metastore.uris": "",
        "javax.jdo.option.ConnectionURL": jdbc_url(current, "catalog"),
        "javax.jdo.option.ConnectionDriverName": "org.postgresql.Driver",
        "javax.jdo.option.ConnectionUserName": catalog.username or "",
        # Spark redacts values of keys like this one wherever it shows its configuration.
        "javax.jdo.option.ConnectionPassword": str(catalog.password or ""),
        "datanucleus.schema.autoCreateAll": "false",
        "hive.metastore.schema.verification": "false",
        # Hive's check compares columns by position; include/catalog/columns.py has already decided what a table may
        # become.
        "hive.metastore.disallow.incompatible.col.type.changes": "false",
        # Without Hive's own cache: one session reads and writes only a few rows.
        "datanucleus.cache.level2.type": "none",
    }
