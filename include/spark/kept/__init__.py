"""A JVM that stays for short Spark applications: `./tidemark up spark`.

What a short application costs is mostly the start of its JVM: classes that are loaded, and code that is not compiled
yet. The service `spark` keeps a JVM, and a command or a task of Airflow that would start one uses it instead: the
driver is a Python process of its own, with a Spark context of its own in that JVM, as PySpark connects any driver to
its JVM. It is forked from one that has imported what drivers import, which is the other half of a start. One
application at a time uses the JVM. Whatever finds it busy, or made for other settings, starts its own.

- `spark_jobs/kept/keeper.py` is the service: it starts the JVM, and again when that has ended or has served its time.
- `spark_jobs/kept/application.py` takes `spark-submit`'s place for one application; `forks.py` makes its driver.
- This module tells who may use the JVM, and `start.py` how it is started.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from include.processes import ProcessIdentity
from include.setting_values import Secret
from include.settings import Settings, settings
from include.spark.jars import pyspark_home

SERVICE = "spark"
"""Name of the service, of its state file and of its log."""

STAND_IN = Path(__file__).parent / "bin" / "spark-submit"
"""What is called in place of `spark-submit`."""

SHORT_JOBS = frozenset({"build_interval", "publish", "repair_catalog", "replay_quarantine", "report_ranges", "run_sql"})
"""The entries of `spark_jobs/` that use the JVM. A stream would hold it for ever; what people work with, for hours."""

GATEWAY = "TIDEMARK_KEPT_GATEWAY"
"""Environment variable that names the file of `gateway_file`, for an application."""

KEPT_CLASSES = {"spark.sql.codegen.cache.maxEntries": "2000"}
"""Setting by which a JVM keeps generated and compiled code for the next application: an interval alone has some 280
classes, and Spark keeps 100 by default."""

_LENGTH = 8192
"""Characters of the gateway file; the longest path has half as many."""

_OF_THE_JVM = (
    "home",
    "lake",
    "kafka_bootstrap",
    "kafka_properties",
    "database_url",
    "jdbc_properties",
    "registry_url",
    "secrets",
    "spark_master",
    "driver_memory",
    "spark_submit",
)
"""Settings that the JVM and its Python workers have from its start on."""


_OF_STORES = ("AWS_", "AZURE_", "GOOGLE_", "HADOOP_", "KRB5")
"""How the names of variables begin that say where a store is and who may use it."""


def gateway_file(current: Settings) -> Path:
    """Return the private file with the JVM's port and secret, which is the lock on the JVM, too."""
    return current.home / "services" / "spark.gateway"


def as_note(told: Mapping[str, Any]) -> str:
    """Return what the gateway file says, always as long: it is written in one call, and read at any moment."""
    return json.dumps(told).ljust(_LENGTH)


def read_note(file: int) -> dict[str, Any]:
    """Return what a descriptor's gateway file says now."""
    told: dict[str, Any] = json.loads(os.pread(file, _LENGTH, 0))
    return told


def key(current: Settings) -> str:
    """Return what tells JVMs apart that may serve different applications: settings, JVM options and libraries."""
    told = hashlib.sha256(f"{pyspark_home()}|{os.environ.get('TIDEMARK_JVM_OPTIONS', '')}".encode())
    # Another one once a library was installed anew: its folder has the version in its name.
    told.update(f"|{pyspark_home().parent.stat().st_mtime_ns}".encode())
    # Of the lake's store: the JVM has those with which it was started.
    credentials = sorted((name, value) for name, value in os.environ.items() if name.startswith(_OF_STORES))
    told.update(repr(credentials).encode())
    for name in _OF_THE_JVM:
        value = getattr(current, name)
        told.update(f"|{name}={value.get_secret_value() if isinstance(value, Secret) else value}".encode())
    return told.hexdigest()


def can_run(job: str, conf: Mapping[str, str]) -> bool:
    """Whether a JVM is kept in which this application would have all that it asks for."""
    current = settings()
    if job not in SHORT_JOBS or current.spark_submit or current.spark_master != "local[*]":
        return False
    state = current.service_state(SERVICE)
    identity = str(state.get("process") or "")
    return (
        bool(identity)
        and ProcessIdentity.parse(identity).is_running()
        and state.get("key") == key(current)
        and set(conf["spark.jars"].split(",")) <= set(state.get("jars", ()))
        and gateway_file(current).exists()
        # A statement may name files by relative paths, which the JVM reads from where it was started.
        and (job != "run_sql" or state.get("cwd") == str(Path.cwd()))
    )
