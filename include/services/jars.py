"""The jars: fetched once by PySpark's own Ivy as `ivy.xml` says, checked against `jars.sha256`, then offline.

`python -m include.services.jars` fetches them; the launcher calls it at set-up.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from include.errors import ServiceUnreachable, TidemarkError, UsageError
from include.settings import REPOSITORY

Conf = Literal["spark", "broker"]

IVY = Path(__file__).with_name("ivy.xml")
CHECKSUMS = Path(__file__).with_name("jars.sha256")


@cache
def pyspark_home() -> Path:
    """The folder of the installed PySpark, found without importing it."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise UsageError("PySpark is not installed", remedy="start ./tidemark, which installs it")
    return Path(spec.origin).parent


def folder() -> Path:
    """Where the jars of this `ivy.xml` lie."""
    return REPOSITORY / ".tidemark" / "jars" / hashlib.sha256(IVY.read_bytes()).hexdigest()[:12]


def java() -> str:
    """Path of the Java launcher. Raises UsageError when there is none."""
    import os

    home = os.environ.get("JAVA_HOME")
    found = shutil.which(str(Path(home) / "bin" / "java")) if home else None
    found = found or shutil.which("java")
    if found is None:
        raise UsageError("Java is missing", remedy="install Java 17 or newer, e.g. openjdk-17-jre-headless")
    return found


def classpath(conf: Conf) -> list[Path]:
    """The jars of a configuration. Raises UsageError when they were never fetched."""
    found = sorted((folder() / conf).glob("*.jar"))
    if not found:
        raise UsageError(f"the {conf} jars are missing in {folder()}", remedy="./tidemark doctor --repair")
    return found


def checksums() -> dict[str, str]:
    """Expected SHA-256 by `conf/file name`."""
    lines = CHECKSUMS.read_text().splitlines()
    return {name: digest for digest, name in (line.split(maxsplit=1) for line in lines if line)}


def damaged() -> list[str]:
    """Jars that are missing or differ from their checksum."""
    return [name for name, digest in checksums().items() if _digest(folder() / name) != digest]


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def ensure_jars(progress: Callable[[str], None]) -> None:
    """Fetch what is missing or damaged; complete jars are left alone, so an interrupted fetch resumes.

    Raises ServiceUnreachable when they cannot be fetched, TidemarkError when they differ from their checksums.
    """
    if not damaged():
        return
    target = folder()
    fetched = target.with_name(target.name + ".partial")
    progress("fetching jars (Spark's Kafka connector, the broker, the PostgreSQL driver): about a minute")
    command = [java(), "-Xmx512m", "-jar", next((pyspark_home() / "jars").glob("ivy-*.jar")).as_posix()]
    command += ["-ivy", str(IVY), "-cache", str(target.parent / "ivy-cache")]
    command += ["-retrieve", f"{fetched}/[conf]/[artifact]-[revision].[ext]"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wrong = [name for name, digest in checksums().items() if _digest(fetched / name) != digest]
    if result.returncode:
        raise ServiceUnreachable(
            f"{len(wrong)} of {len(checksums())} jars could not be fetched",
            remedy="check the network, then start again: it resumes",
        )
    if wrong:
        raise TidemarkError(
            f"{len(wrong)} jars differ from their checksums or are missing: {', '.join(wrong[:3])}",
            remedy=f"remove {target.parent}, then start again",
        )
    if target.exists():
        shutil.rmtree(target)
    fetched.rename(target)
    progress(f"jars complete: {len(checksums())}")


def main() -> int:
    """Fetch the jars; 0 or the error's exit code."""
    try:
        ensure_jars(lambda line: print(f"tidemark: {line}", file=sys.stderr, flush=True))
    except TidemarkError as error:
        print(f"tidemark: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
