"""The class archive: Spark's classes as the JVM holds them in memory, made once and mapped at each start.

A Spark application loads some 25,000 classes, which is a quarter of the CPU time of a short one. The JVM can dump
what it has loaded (dynamic AppCDS, JDK 13 and newer) and map that file later, as long as it is the same JVM with the
same class path; a file that does not fit is ignored. `include/spark/class_training.py` makes it at set-up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from include.settings import REPOSITORY
from include.spark.jars import classpath, java, pyspark_home

_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
"""Without these options a JVM that cannot use the file reports that on standard output."""


def folder() -> Path:
    """Return the folder of class archives."""
    return REPOSITORY / ".tidemark" / "classes"


def find() -> Path | None:
    """Return the archive of this Java with these jars; None if there is none, or it is incomplete."""
    for file in folder().glob(f"spark-{_key()}-*.jsa"):
        # The JVM checks only the file's header, and crashes on a missing page.
        if file.stem.endswith(f"-{file.stat().st_size}"):
            return file
    return None


def keep(made: Path) -> Path:
    """Name a complete archive, remove all others, and return its path."""
    target = folder() / f"spark-{_key()}-{made.stat().st_size}.jsa"
    for old in folder().glob("spark-*.jsa"):
        old.unlink()
    return made.rename(target)


def _key() -> str:
    key = hashlib.sha256()
    for file in _inputs():
        status = file.stat()
        key.update(f"{file}|{status.st_size}|{status.st_mtime_ns}\n".encode())
    return key.hexdigest()[:16]


def _inputs() -> Iterator[Path]:
    yield Path(java()).resolve().parents[1] / "lib" / "modules"
    yield pyspark_home() / "jars"
    yield driver_jar()


def driver_jar() -> Path:
    """Return the jar on the class path of every driver: PostgreSQL's, which the catalog needs there.

    The path is resolved, so that checkouts that share their jars share the archive.
    """
    return next(jar for jar in classpath("spark") if jar.name.startswith("postgresql-")).resolve()


def options() -> tuple[str, ...]:
    """Return the JVM options that use the archive; none without one."""
    archive = find()
    # Quoted for Spark, which splits its options at blanks.
    return (f'"-XX:SharedArchiveFile={archive}"', *_QUIET) if archive else ()
