"""The machine and the set-up: Java, packages, jars, memory, disk, files with secrets, and variables without effect."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from include.doctor.finding import Finding
from include.errors import TidemarkError
from include.lake.disks import LEAST, amount, disks
from include.services import registry, supervisor
from include.services.process import embedded_addresses
from include.services.spark.allowance import available_memory
from include.settings import REPOSITORY, Settings, settings
from include.spark import class_archive, compiled_jars, jars
from include.spark.class_training import ensure_class_archive

_NOT_SETTINGS = ("CRASH_AT", "DB_PASSWORD", "DEBUG", "HANG_AT", "JVM_OPTIONS", "PAUSE_AT")
"""What other variables begin with `TIDEMARK_`, as include/docs/deployment.md lists them."""

_SECRETS = (
    *("services/*.json", "services/spark.gateway", "services/*.properties", "services/*.p12"),
    *("metastore/*.properties", "airflow/*.json", "airflow/*.key", "airflow/*.secret"),
)
"""Patterns of the files with secrets in a home."""

_ROOM = 2 * 2**30
"""Bytes of disk that are needed beside what is installed."""


def effective_settings() -> dict[str, str]:
    """Return the settings in force by the name of their variable, secrets masked or left out."""
    current = settings()
    values = {f"TIDEMARK_{name.upper()}": str(getattr(current, name) or "") for name in Settings.declared()}
    values["TIDEMARK_LAKE"] = current.lake_uri
    if current.registry_url:
        values["TIDEMARK_REGISTRY_URL"] = registry.shown_address()
    unset = {
        **embedded_addresses(),
        "TIDEMARK_MAX_OFFSETS_PER_TRIGGER": "(as the pipeline declares)",
        "TIDEMARK_SPARK_SUBMIT": "(PySpark's own)",
        "TIDEMARK_SPARK_UI": "false",
    }
    return {name: value or unset.get(name, "(none)") for name, value in values.items()}


def examine_machine() -> Iterator[Finding]:
    """Yield what is found of the machine, the packages, the jars and the files with secrets."""
    yield from _machine()
    yield from _disks()
    yield from _packages()
    yield from _jars()
    yield from _compiled_jars()
    yield from _class_archive()
    yield from examine_secrets()
    yield from examine_settings()


def repair_machine(progress: Callable[[str], None]) -> None:
    """Fetch damaged jars, compile missing ones, prepare Spark's classes and close open files with secrets.

    Only name what cannot be done: services and tables can be repaired all the same.
    """
    try:
        jars.ensure_jars(progress)
        compiled_jars.compile_all()
        ensure_class_archive(progress)
    except TidemarkError as error:
        progress(f"not repaired: {error}")
    close_secrets(progress)


def close_secrets(progress: Callable[[str], None]) -> None:
    """Let only their owner read the files with secrets; name each that another account has to close."""
    for path in _open_secrets():
        progress(f"chmod 600 {path}")
        try:
            path.chmod(0o600)
        except OSError as error:
            progress(f"not closed: {error}")


def _machine() -> Iterator[Finding]:
    text = subprocess.run([jars.java(), "-version"], capture_output=True, text=True, check=False).stderr
    named = re.search(r'version "(\d+)', text)
    major = int(named[1]) if named else 0
    yield Finding(major >= 17, f"Java {major}", "" if major >= 17 else "install Java 17 or newer")
    yield Finding(
        True, f"Python {platform.python_version()}, PySpark {version('pyspark')}, Airflow {version('apache-airflow')}"
    )
    free = available_memory() / 2**30
    yield Finding(
        free > 3,
        f"{free:.1f} GiB of memory available",
        "" if free > 3 else "end something: 3 GiB are needed beside what runs",
    )


def _disks() -> Iterator[Finding]:
    for number, disk in enumerate(disks()):
        # A disk of one folder may be meant to be small; the first one is the home's.
        needed = _ROOM if number == 0 else min(_ROOM, disk.size // 10)
        is_enough = disk.free > needed and disk.takes_files
        remedy = f"make room there: at {amount(LEAST)} it is full, and what writes to it ends"
        yield Finding(is_enough, str(disk), "" if is_enough else remedy)


def _packages() -> Iterator[Finding]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    # Without the extras that a requirement names.
    pinned = (re.sub(r"\[.*?\]", "", each) for each in project["dependencies"] if "==" in each)
    pins = dict(each.split("==") for each in pinned)
    wrong = [name for name, wanted in pins.items() if _installed(name) != wanted]
    what = f"{len(pins) - len(wrong)} of {len(pins)} pinned packages as pinned"
    remedy = f"{', '.join(wrong)}: remove .venv and start ./tidemark again, which installs it" if wrong else ""
    yield Finding(not wrong, what, remedy)


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _jars() -> Iterator[Finding]:
    wrong, others = jars.damaged(), jars.unpinned()
    what = f"{len(jars.wanted()) - len(wrong)} of {len(jars.wanted())} jars as pinned"
    what += f", and {len(others)} that are not pinned: {', '.join(others[:3])}" if others else ""
    is_right = not wrong and not others
    yield Finding(is_right, what, "" if is_right else "./tidemark doctor --repair")
    spark = version("pyspark")
    others = [jar.name for jar in sorted(jars.folder().glob("*/spark-*.jar")) if not jar.stem.endswith(f"-{spark}")]
    # Known and tested (include/spark/ivy.xml), but shown so that nobody has to find it out.
    yield Finding(True, f"jars of Spark not at {spark}: {', '.join(others) or 'none'}")


def _compiled_jars() -> Iterator[Finding]:
    lacking = compiled_jars.lacking()
    what = f"{', '.join(lacking)}: missing or not readable" if lacking else "all jars of our own classes"
    yield Finding(not lacking, what, "./tidemark doctor --repair, by this checkout's owner" if lacking else "")


def _class_archive() -> Iterator[Finding]:
    made = class_archive.find() is not None
    yield Finding(True, f"Spark's classes are {'prepared' if made else 'not prepared: ./tidemark doctor --repair'}")


def _secret_files() -> list[Path]:
    current = settings()
    named = (current.secrets, current.kafka_properties, current.jdbc_properties, current.proof_key)
    found = [path for pattern in _SECRETS for path in current.home.glob(pattern)]
    # A setting may name one of the embedded services.
    return sorted({path.resolve() for path in (*found, *named) if path is not None and _is_there(path)})


def _is_there(path: Path) -> bool:
    """Return whether there is such a file; not one in a folder that this account must not enter."""
    try:
        return path.is_file()
    except PermissionError:
        return False


def _open_secrets() -> list[Path]:
    return [path for path in _secret_files() if path.stat().st_mode & 0o077]


def examine_secrets() -> Iterator[Finding]:
    """Yield whether only their owner can read the files with secrets, of this home and those that settings name."""
    files, open_ones = len(_secret_files()), _open_secrets()
    what = f"{files - len(open_ones)} of {files} files with secrets are private"
    what += f", not {', '.join(map(str, open_ones[:3]))}" if open_ones else ""
    yield Finding(not open_ones, what, "./tidemark doctor --repair" if open_ones else "")


def examine_settings() -> Iterator[Finding]:
    """Yield a note for each variable that is taken for a setting, for mail without a receiver, and for Airflow's own.

    The last for an embedded Airflow that was started with other settings than this process has.
    """
    names = [name.upper() for name in Settings.declared()]
    words = (name.removeprefix("TIDEMARK_") for name in sorted(os.environ) if name.startswith("TIDEMARK_"))
    for word in words:
        if word not in (*names, *_NOT_SETTINGS):
            like = get_close_matches(word, names, 1)
            remedy = f"do you mean TIDEMARK_{like[0]}?" if like else "include/docs/deployment.md lists the settings"
            yield Finding(True, f"TIDEMARK_{word} is no setting: it has no effect", remedy, notice=True)
    is_set = {
        "TIDEMARK_ALERT_SMTP": settings().alert_smtp is not None,
        "TIDEMARK_ALERT_EMAIL_TO": bool(settings().alert_email_to),
    }
    if len({*is_set.values()}) > 1:
        there, missing = sorted(is_set, key=lambda name: not is_set[name])
        yield Finding(True, f"{there} is set and {missing} is not: no mail is sent", f"set {missing}", notice=True)
    if others := supervisor.unlike_airflow():
        remedy = "where this process has the right ones: ./tidemark down airflow, then ./tidemark up airflow"
        yield Finding(True, others, remedy, notice=True)
