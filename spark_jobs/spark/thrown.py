"""The Java exceptions behind an error of Spark, with what tells them apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import AnalysisException, PySparkAttributeError

from include import lake
from include.catalog import comparable_location
from include.errors import UsageError, one_line
from include.lake.disks import NO_SPACE, Disk
from include.pipelines.spec import Pipeline

_RAISED = "USER_RAISED_EXCEPTION"
"""Error class of errors thrown by `raise_error`."""

MISSING = ("PATH_NOT_FOUND", "FAILED_READ_FILE.FILE_NOT_EXIST")
"""Error classes of a file that is no longer there."""

_OF_FILES = ("java.io.IOException", "java.io.FileNotFoundException", "java.nio.file.FileSystemException")
"""Exactly these classes: parsers throw subclasses of the first one, with the text that they parsed."""

_NO_FOLDER = re.compile(r"Mkdirs failed to create (?:file:)?(/.*) \(exists=")
"""Hadoop's words for a folder that could not be made; Java does not say why."""


@dataclass(frozen=True)
class Thrown:
    """One Java exception in the chain of a failure."""

    kinds: tuple[str, ...]
    """Its class and the classes above that."""
    message: str
    thrower: str
    """The class whose method threw it."""
    condition: str
    """Spark's error class; empty for other exceptions."""
    parameters: Mapping[str, str]
    cause: str = ""
    """The class of what caused it; empty for the last of the chain."""
    sql_state: str = ""
    """SQL's code of what a database threw; empty for other exceptions."""

    @property
    def raised(self) -> str:
        """The text that an expression threw by `raise_error`; empty for anything else."""
        return str(self.parameters.get("errorMessage", "")) if self.condition == _RAISED else ""

    @property
    def unread(self) -> str:
        """The path below the lake of a file that is missing or cannot be read; empty for anything else."""
        is_file = self.condition.startswith(("FAILED_READ_FILE", "PATH_NOT_FOUND"))
        return below_lake(self.parameters.get("path", "")) if is_file else ""


def causes_of(error: Exception) -> Iterator[Any]:
    """Yield the Java exceptions behind an error, the outermost first; none for a Python error."""
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if cause is None:
        # A query's own report holds its cause as a Python error.
        inner = getattr(error, "_cause", None)
        if isinstance(inner, Exception):
            yield from causes_of(inner)
    while cause is not None:
        yield cause
        cause = cause.getCause()


def chain_of(error: Exception) -> Iterator[Thrown]:
    """Yield what is known of each Java exception behind an error, the outermost first."""
    for cause in causes_of(error):
        kinds, kind = [], cause.getClass()
        while kind is not None:
            kinds.append(str(kind.getName()))
            kind = kind.getSuperclass()
        trace = cause.getStackTrace()
        condition, parameters = _error_class(cause)
        thrower = str(trace[0].getClassName()) if len(trace) else ""
        below = cause.getCause()
        caused_by = str(below.getClass().getName()) if below is not None else ""
        state = str(cause.getSQLState() or "") if "java.sql.SQLException" in kinds else ""
        yield Thrown(tuple(kinds), str(cause.getMessage() or ""), thrower, condition, parameters, caused_by, state)


def _error_class(cause: Any) -> tuple[str, Mapping[str, str]]:
    if not is_instance_of(SparkContext._gateway, cause, "org.apache.spark.SparkThrowable"):
        return "", {}
    # By PySpark's helper: Py4J does not find the default methods of an interface.
    helper: Any = SparkContext._jvm.PythonErrorUtils  # type: ignore[union-attr]
    return str(helper.getCondition(cause) or ""), dict(helper.getMessageParameters(cause) or {})


@contextmanager
def refused_by_spark(pipeline: Pipeline, function: str) -> Iterator[None]:
    """Raise UsageError for what Spark refuses of a pipeline's transform, e.g. a column that is not there."""
    try:
        yield
    except (AnalysisException, PySparkAttributeError) as error:
        # Below its first line are the plan and Python's frames.
        said, *_ = str(error).splitlines() or [""]
        raise UsageError(
            f"Spark refuses the function {function} of spark_jobs/transforms/{pipeline.code}.py: {one_line(said)}",
            remedy="correct it, or the declaration of the columns that it gets",
            pipeline=pipeline.name,
        ) from error


def jvm_has_ended() -> bool:
    """Return whether this driver had a JVM that has ended: Py4J says of it what a service's client would say."""
    gateway = SparkContext._gateway
    if gateway is None:
        return False
    try:
        gateway.jvm.java.lang.System.nanoTime()
    except (OSError, Py4JError):
        return True
    return False


def missing_file(error: Exception) -> str:
    """Return the path below the lake of a file that was not found; empty for any other failure."""
    if isinstance(error, FileNotFoundError):
        return below_lake(str(error.filename or ""))
    missing = (each for each in chain_of(error) if each.condition in MISSING and "path" in each.parameters)
    return next((below_lake(each.parameters["path"]) for each in missing), "")


def unread_file(error: Exception) -> str:
    """Return the path below the lake of a file that was not found, or could not be read; empty for another failure."""
    return next((each.unread for each in chain_of(error) if each.unread), "")


def place_without_space(thrown: Thrown) -> str | None:
    """Return where a write found no space: empty where nobody says where; None for any other failure."""
    if thrown.kinds[0] not in _OF_FILES:
        return None
    if thrown.message.endswith((NO_SPACE, f"({NO_SPACE})")):
        return ""
    folder = _NO_FOLDER.match(thrown.message)
    disk = Disk.of(Path(folder[1])) if folder else None
    return str(disk.folder) if disk is not None and disk.is_full else None


def below_lake(path: str) -> str:
    """Return the path of a file of the lake below its root."""
    return comparable_location(path).removeprefix(lake.root() + "/")
