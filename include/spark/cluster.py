"""What an application on YARN or Kubernetes needs: deploy mode, jars, executors, an environment without secrets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from include.environment import foreign
from include.errors import UsageError
from include.settings import Settings, read_properties, secret_variables
from include.spark import driver_folders, kubernetes, yarn
from include.spark.jars import pyspark_home

DeployMode = Literal["client", "cluster"]

CLUSTER_JOBS = ("stream", "build_interval", "publish")
"""Entries whose driver may run on the cluster; the others write a file on this machine."""

_OWN = (
    *("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_LAUNCHER_OPTS", "PYTHONSAFEPATH"),
    *foreign.OF_OTHER_CLUSTERS,
    *foreign.OF_OTHER_METASTORES,
)
"""Variables of `spark-submit` on this host, which a driver elsewhere must not get."""


def deploy_mode(job: str, current: Settings) -> DeployMode:
    """Return where the job's driver runs. Raise UsageError for cluster mode without YARN or Kubernetes."""
    if current.spark_deploy_mode == "client":
        return "client"
    if current.spark_master != "yarn" and not kubernetes.is_master(current.spark_master):
        raise UsageError(
            f"TIDEMARK_SPARK_DEPLOY_MODE=cluster with the master {current.spark_master}",
            remedy="set TIDEMARK_SPARK_MASTER=yarn or k8s://https://HOST:PORT; "
            "Spark's standalone master takes no Python in cluster mode",
        )
    return "cluster" if job in CLUSTER_JOBS else "client"


def options(current: Settings, jars: Sequence[Path], mode: DeployMode) -> dict[str, str]:
    """Return Spark's options of an application on YARN or Kubernetes; none for another master.

    All jars lie where the code does, on each node or in the image. Raise UsageError for settings that are missing.
    """
    if kubernetes.is_master(current.spark_master):
        return kubernetes.options(current, jars) | kubernetes.mode_options(current, mode)
    if current.spark_master != "yarn":
        return {}
    return yarn_options(current, jars) | (yarn.CLUSTER_OPTIONS if mode == "cluster" else {})


def yarn_options(current: Settings, jars: Sequence[Path]) -> dict[str, str]:
    """Return Spark's options of an application on YARN."""
    local = {"SPARK_LOCAL_IP": "127.0.0.1"} if yarn.is_embedded() else {}
    return {
        "spark.jars": ",".join(f"local:{jar}" for jar in jars),
        "spark.yarn.jars": f"local:{pyspark_home() / 'jars'}/*",
        "spark.executor.instances": str(current.spark_executors),
        "spark.executor.memory": current.executor_memory,
        # As on Kubernetes: a driver answers only executors that have the secret that YARN makes for each application.
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        **{f"spark.executorEnv.{name}": value for name, value in local.items()},
    }


def client_environment(current: Settings) -> dict[str, str]:
    """Return the variables by which Spark finds YARN; with the embedded one, which is on loopback, drivers are too.

    Without YARN, PySpark's own Spark gets nothing of a cluster for which the shell is set up, but for what a lake in
    HDFS and pods on Kubernetes may need of it.
    """
    if current.spark_master != "yarn":
        needs_it = kubernetes.is_master(current.spark_master) or current.lake_uri.startswith("hdfs:")
        return {} if needs_it or current.spark_submit else dict.fromkeys(foreign.OF_OTHER_CLUSTERS, "")
    folder = str(yarn.configuration())
    local = {"SPARK_LOCAL_IP": "127.0.0.1"} if yarn.is_embedded() else {}
    return {"HADOOP_CONF_DIR": folder, "YARN_CONF_DIR": folder, **local}


def submit_options(current: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the options that give a driver on the cluster its environment."""
    prefix = "kubernetes.driverEnv" if kubernetes.is_master(current.spark_master) else "yarn.appMasterEnv"
    return {f"spark.{prefix}.{name}": value for name, value in driver_environment(current, environment).items()}


def application_uri(current: Settings, path: str) -> str:
    """Return the entry's path for `spark-submit`; on Kubernetes it is marked as a path in the image."""
    return f"local://{path}" if kubernetes.is_master(current.spark_master) else path


def driver_environment(current: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a driver on the cluster gets: no secrets, and none of `spark-submit` itself."""
    # A folder of its container, which is removed with it; a pod has one of its own.
    folder = {} if kubernetes.is_master(current.spark_master) else {"TMPDIR": "./tmp"}
    passed_on = {name: value for name, value in without_secrets(environment).items() if name not in _OWN}
    return {"TIDEMARK_SPARK_MASTER": current.spark_master, **passed_on, **folder}


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without Tidemark's variables that are secret or unknown.

    On YARN and Kubernetes the stock hook turns each variable into an argument, and logs it. A driver on this host
    inherits the secrets from the worker that starts it; one elsewhere reads them from a file (`check_secrets`).
    """
    shown = {f"TIDEMARK_{name.upper()}" for name in Settings.declared()} - secret_variables()
    shown |= {driver_folders.VARIABLE, "TIDEMARK_LAUNCH", "TIDEMARK_DEBUG"}
    return {name: value for name, value in environment.items() if not name.startswith("TIDEMARK_") or name in shown}


def check_secrets(current: Settings) -> None:
    """Raise UsageError when a secret of this process's environment is not in the file, or is another one there.

    A driver elsewhere would have none, or work with another service than this process.
    """
    in_file = read_properties(current.secrets)
    # An empty variable is unset.
    here = {name: value for name in sorted(secret_variables()) if (value := os.environ.get(name))}
    if alone := [name for name in here if name not in in_file]:
        raise UsageError(
            f"{', '.join(alone)}: secrets of the environment do not reach a driver on the cluster",
            remedy="write them to a 0600 file at the same path on each node or pod, and name it by TIDEMARK_SECRETS",
        )
    if other := [name for name, value in here.items() if value != in_file[name]]:
        raise UsageError(
            f"{', '.join(other)}: differs from the file of TIDEMARK_SECRETS, by which a driver on the cluster goes",
            remedy="unset the variable, or correct the one that is wrong",
        )
