"""The JVM that stays for short Spark applications (`include/spark/kept/`), as a service: `./tidemark up spark`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from include.errors import UsageError
from include.services import process
from include.services.process import ServiceStatus
from include.settings import settings
from include.spark import driver_folders
from include.spark.kept import SERVICE, gateway_file, key


def up() -> None:
    """Start the keeper and its JVM. Raise ServiceUnreachable when that does not answer in 90 s.

    Raises UsageError where applications run elsewhere than in this machine's own Spark.
    """
    from include.spark.kept.start import kept_jars
    from include.spark.submission import spark_environment

    current = settings()
    if current.spark_submit or current.spark_master != "local[*]":
        raise UsageError(
            f"no JVM can be kept for applications that run on {current.spark_submit or current.spark_master}",
            remedy="./tidemark up spark is for TIDEMARK_SPARK_MASTER=local[*], with PySpark's own spark-submit",
        )
    process.end_left_over(SERVICE)
    driver_folders.sweep()
    gateway_file(current).unlink(missing_ok=True)
    folder = driver_folders.make(SERVICE)
    # First: it takes out what the shell exports for other Sparks.
    own = spark_environment(current)
    environment = {
        **os.environ,
        **own,
        driver_folders.VARIABLE: str(folder),
        "TMPDIR": str(folder),
    }
    command = [sys.executable, "-P", "-m", "spark_jobs.kept.keeper", str(process.log_path(SERVICE))]
    started = process.start_detached(SERVICE, command, environment)
    known = {"key": key(current), "jars": kept_jars(), "cwd": str(Path.cwd())}
    # Before it is awaited: `down` finds it, however this command ends.
    process.write_started(SERVICE, started, address="127.0.0.1", **known)
    process.wait_until(SERVICE, lambda: bool(_gateway()), started, 90)
    process.write_started(SERVICE, started, address=f"127.0.0.1:{_gateway()['port']}", **known)


def _gateway() -> dict[str, Any]:
    """Return what applications are told of the JVM; empty while there is none, or it is being replaced."""
    try:
        told: dict[str, Any] = json.loads(gateway_file(settings()).read_text() or "{}")
    except FileNotFoundError:
        return {}
    return told


def status() -> ServiceStatus:
    """Return where the JVM listens, and how many applications have used it; a healthy one has a keeper."""
    state = process.read_state(SERVICE)
    keeper = process.running(state)
    if keeper is None:
        return ServiceStatus(state.get("address", ""), False, None)
    told = _gateway()
    is_of_these = state.get("key") == key(settings())
    detail = f"applications served: {told.get('served', 0)}" if is_of_these else "started with other settings: not used"
    address = f"127.0.0.1:{told['port']}" if told else state["address"]
    return ServiceStatus(address, True, keeper.pid, detail=detail)


def down() -> None:
    """Stop the keeper and its JVM; an application that uses it ends as if its own JVM had been stopped."""
    process.stop_service(SERVICE)
    process.end_left_over(SERVICE)
    gateway_file(settings()).unlink(missing_ok=True)
