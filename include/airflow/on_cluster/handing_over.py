"""What Airflow's operator submits, wherever the driver runs: what commands submit, by Airflow's Spark connection."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException

from include.errors import UsageError
from include.settings import settings
from include.spark import cluster, yarn
from include.spark.driver_lines import DriverLines, secret_values, without_secrets
from include.spark.kept import GATEWAY, STAND_IN
from include.spark.submission import SparkSubmission


def take_submission(operator: SparkSubmitOperator, resolved: SparkSubmission) -> None:
    """Make an operator submit a submission: its arguments, configuration, and an environment without secrets.

    On YARN the stock hook turns each variable into an argument for the driver, and gives the same ones to
    `spark-submit`. What `spark-submit` itself needs goes into this process, which belongs to the task.
    """
    operator.application_args = list(resolved.arguments)
    operator.conf = resolved.conf
    operator.env_vars = cluster.without_secrets(resolved.env)
    if resolved.program == STAND_IN:
        # The provider takes a program's name only, not a path.
        operator.env_vars[GATEWAY] = resolved.env[GATEWAY]
        operator.env_vars["PATH"] = os.pathsep.join([str(STAND_IN.parent), os.environ["PATH"]])
    if resolved.mode == "cluster":
        operator.env_vars = cluster.driver_environment(settings(), resolved.env)
        own = {name: value for name, value in resolved.env.items() if name not in operator.env_vars}
        os.environ.update({name: value for name, value in own.items() if not name.startswith("TIDEMARK_")})


def check_master(hook: SparkSubmitHook) -> None:
    """Raise UsageError when connection and settings name masters of different kinds, or the connection is missing.

    By the settings a submission gets its jars, its driver's address, and a JVM that is kept; by the connection its
    executors. How many cores a local master takes may differ.
    """
    of_connection, of_settings = str(hook._connection["master"]), settings().spark_master
    if _kind(of_connection) != _kind(of_settings):
        if not has_connection(hook):
            raise UsageError(
                f"Airflow has no connection {hook._conn_id}, by which it submits to Spark",
                remedy=f"airflow connections add {hook._conn_id} --conn-type spark --conn-host '{of_settings}'",
            )
        raise UsageError(
            f"Airflow's connection {hook._conn_id} names the master {of_connection}, TIDEMARK_SPARK_MASTER is "
            f"{of_settings}",
            remedy="correct the connection, or set TIDEMARK_SPARK_MASTER for Airflow's processes",
        )


def has_connection(hook: SparkSubmitHook) -> bool:
    """Return whether Airflow has the hook's connection; without it the hook names YARN, in client mode."""
    try:
        hook.get_connection(hook._conn_id)
    except AirflowException:
        return False
    return True


def _kind(master: str) -> str:
    return "local" if master.startswith("local") else master.partition(":")[0]


def known_secrets() -> frozenset[str]:
    """Return the secrets that this process can read, which no line of a driver may show."""
    known = set[str]()
    # The driver tells what is wrong with the others.
    with suppress(UsageError):
        known.update(secret_values())
    return frozenset(known)


class OwnLines:
    """A hook's log without secrets, in which messages that are not the driver's own lines are for debugging only."""

    def __init__(self, log: Any, lines: DriverLines) -> None:
        self._log, self._lines = log, lines
        self._secrets = known_secrets()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def info(self, text: str, *arguments: Any) -> None:
        """Log a message of the hook, or a line of the driver."""
        message = self._safe(text, arguments)
        (self._log.info if self._lines.passes(message) else self._log.debug)("%s", message)

    def _safe(self, text: str, arguments: tuple[Any, ...]) -> str:
        return without_secrets(text % arguments if arguments else text, self._secrets)


class HandedOver(OwnLines):
    """The same for a driver elsewhere: what `spark-submit` prints is not the driver's, and shown only if it fails."""

    def info(self, text: str, *arguments: Any) -> None:
        """Log a message for debugging only, and keep it for a failure."""
        message = self._safe(text, arguments)
        self._lines.passes(message)
        self._log.debug("%s", message)


class MaskedYarn(yarn.Yarn):
    """YARN, whose drivers' lines are without secrets before anything is made of them, an error for example."""

    def __init__(self) -> None:
        super().__init__()
        self._secrets = known_secrets()

    def masked(self, text: str) -> str:
        """Return a text without secrets."""
        return without_secrets(text, self._secrets)

    def new_lines(self, application: yarn.Application) -> list[str]:
        """Return the driver's lines since the last call."""
        # A secret may hold a line's end.
        return self.masked("\n".join(super().new_lines(application))).splitlines()

    def last_lines(self, application: yarn.Application) -> list[str]:
        """Return the end of the log of the driver's JVM."""
        return self.masked("\n".join(super().last_lines(application))).splitlines()
