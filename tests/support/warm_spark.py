"""One JVM for the Spark applications that a test run's commands submit, one after the other.

What a short application costs is mostly the start of its JVM: classes, and code that is not compiled yet. Here
`spark-submit` has started a JVM that stays, and each driver is a Python process of its own with a Spark context of its
own in that JVM, as with `include/spark/kept/`, but for many homes and for streams, too. `TIDEMARK_SPARK_SUBMIT` names
the script that does so, by way of `tests/support/warm_python.py`.

An application has a JVM of its own, as in production, wherever the process is part of what is tested: kills and
pauses at named places, drivers that run beside another one, whatever `Home.start` begins, other masters than this
machine's cores, and every module with the marker `own_drivers`.
"""

from __future__ import annotations

import fcntl
import json
import os
import runpy
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from include.settings import write_private
from include.spark.submission import OWN_SPARK_SUBMIT
from spark_jobs.kept.application import parse_submission
from spark_jobs.kept.context import prepare

if TYPE_CHECKING:
    from tests.support.warm_python import WarmPython

GATEWAY = "TIDEMARK_TEST_GATEWAY"
"""Environment variable that names the file with the JVM's port and secret, which is the lock on the JVM, too."""


class WarmJvm:
    """The JVM, from the first use of its `environment` until `end`."""

    def __init__(self, folder: Path, options: str, python: WarmPython) -> None:
        self._python = python
        self._gateway = folder / "gateway.json"
        self._script = folder / "spark-submit"
        self._log = folder / "jvm.log"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def environment(self) -> dict[str, str]:
        """Return the environment that makes a command submit to the JVM, which is started if it does not run."""
        if self._process is None or self._process.poll() is not None:
            self._process = self._start()
        return {"TIDEMARK_SPARK_SUBMIT": str(self._script), GATEWAY: str(self._gateway)}

    def _start(self) -> subprocess.Popen[bytes]:
        from include.spark import class_archive
        from include.spark.compiled_jars import log_store_jars
        from include.spark.jars import classpath, pyspark_home
        from tests.conftest import wait_for

        folder = self._gateway.parent
        folder.mkdir(parents=True, exist_ok=True)
        self._gateway.unlink(missing_ok=True)
        self._script.write_text(f'#!/bin/sh\nexec {shlex.join(self._python.stand_in(__file__))} "$@"\n')
        self._script.chmod(0o755)
        options = f'-Duser.timezone=UTC "-Djava.io.tmpdir={folder}" -XX:+UseSerialGC -XX:-UsePerfData {self._options}'
        jars = classpath("spark") + classpath("delta") + log_store_jars("file:///lake")
        conf = {
            "spark.jars": ",".join(map(str, jars)),
            "spark.driver.extraClassPath": str(class_archive.driver_jar()),
            "spark.driver.extraJavaOptions": " ".join((options, *class_archive.options())),
            "spark.driver.memory": "1500m",
        }
        options_of_it = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
        application = [__file__, "--host", str(self._gateway), str(os.getpid())]
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [str(OWN_SPARK_SUBMIT), "--master", "local[*]", *options_of_it, *application],
                env={**os.environ, **python, "SPARK_CONF_DIR": str(pyspark_home() / "conf"), "TZ": "UTC"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

        def is_up() -> bool:
            assert process.poll() is None, f"the tests' JVM did not start: {self._log.read_text()[-2000:]}"
            return self._gateway.exists()

        wait_for("the tests' JVM", is_up, 120)
        return process

    def end(self) -> None:
        """End the JVM, if it was started."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)


def host(gateway: Path, tests: int) -> None:
    """In the Python process that `spark-submit` runs: tell how to reach its JVM, and keep it until the tests end.

    `tests`: pid of their process, which may be killed.
    """
    known = {name: os.environ[name] for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")}
    write_private(gateway, json.dumps(known))
    with suppress(psutil.NoSuchProcess):
        psutil.Process(tests).wait()


def submit(arguments: list[str]) -> None:
    """In place of `spark-submit`: become the driver in the running JVM, unless another one uses it."""
    own = [str(OWN_SPARK_SUBMIT), *arguments]
    conf, application = parse_submission(arguments)
    gateway = Path(os.environ[GATEWAY])
    try:
        # Held until this process ends.
        fcntl.flock(os.open(gateway, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.execv(own[0], own)
    if not conf["spark.master"].startswith("local"):
        os.execv(own[0], own)
    os.environ.update(json.loads(gateway.read_text()))
    _prepare(conf)
    sys.argv = application
    sys.path[0] = str(Path(application[0]).parent)
    runpy.run_path(application[0], run_name="__main__")


def _prepare(conf: dict[str, str]) -> None:
    # Python workers get the JVM's environment, which is not this driver's.
    own = {f"spark.executorEnv.{name}": value for name, value in os.environ.items() if name.startswith("TIDEMARK_")}
    prepare({**conf, **own, **_own_metastore_client()})


def _own_metastore_client() -> dict[str, str]:
    """What makes Hive's client, which the JVM keeps, connect anew for another home, where the address is the same.

    Its connections were ended with the last home's database. It reconnects when a property of JDO changes, and JDO
    ignores this one.
    """
    return {"spark.hadoop.tidemark.jdo.home": os.environ.get("TIDEMARK_HOME", "")}


if __name__ == "__main__":
    if sys.argv[1] == "--host":
        host(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        submit(sys.argv[1:])
