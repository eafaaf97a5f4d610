"""The jars: fetched once by PySpark's own Ivy as `ivy.xml` says, checked against `jars.sha256`, then offline.

`python -m include.spark.jars [spark]` fetches them, or those of some configurations; the launcher calls it at set-up.
Jars that only some need (the schema registry, YARN, the connector of a lake in an S3-compatible store) are fetched
when they are first used.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NoReturn
from urllib.parse import urlsplit

import fasteners

from include.errors import ServiceUnreachable, TidemarkError, UsageError, asking_owner, one_line
from include.settings import REPOSITORY

Conf = Literal["spark", "delta", "broker", "registry", "s3", "yarn"]

SET_UP: tuple[Conf, ...] = ("spark", "delta", "broker")
"""What the set-up fetches."""

_CONTENTS: dict[Conf, str] = {
    "spark": "Spark's Kafka connector, Avro, the PostgreSQL driver",
    "delta": "Delta Lake",
    "broker": "the Kafka broker, half a minute",
    "registry": "the schema registry, 110 MB",
    "s3": "Spark's connector to S3-compatible stores, 12 MB",
    "yarn": "Hadoop's resource manager and node manager, 90 MB, some minutes",
}
"""What the jars of each configuration are; they are fetched in this order."""

_TRIES = 4

_LOCK = "fetch.lock"

SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
"""Options of a JVM that ends before it has warmed up: it fetches, starts another one, or hands an application over."""

IVY = Path(__file__).with_name("ivy.xml")
IVY_SETTINGS = Path(__file__).with_name("ivysettings.xml")
CHECKSUMS = Path(__file__).with_name("jars.sha256")


@cache
def pyspark_home() -> Path:
    """Return the folder of the installed PySpark without importing it."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise UsageError("PySpark is not installed", remedy="start ./tidemark, which installs it")
    return Path(spec.origin).parent


def folder() -> Path:
    """Return the folder of the jars of this `ivy.xml`."""
    return REPOSITORY / ".tidemark" / "jars" / hashlib.sha256(IVY.read_bytes()).hexdigest()[:12]


def java() -> str:
    """Return the path of the Java launcher. Raises UsageError when there is none."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which(str(Path(home) / "bin" / "java")) if home else None
    program = program or shutil.which("java")
    if program is None:
        raise UsageError("Java is missing", remedy="install Java 17 or newer, e.g. openjdk-17-jre-headless")
    return program


def classpath(conf: Conf) -> list[Path]:
    """Return the pinned jars of a configuration. Raises UsageError when they were never fetched."""
    # Not whatever lies in the folder: that would be code that nobody has checked.
    pinned = (folder() / name for name in checksums() if name.startswith(f"{conf}/"))
    jars = sorted(jar for jar in pinned if jar.is_file())
    if not jars:
        raise UsageError(f"the {conf} jars are missing in {folder()}", remedy="./tidemark doctor --repair")
    return jars


def checksums() -> dict[str, str]:
    """Return the expected SHA-256 by `conf/file name`."""
    lines = CHECKSUMS.read_text().splitlines()
    return {name: digest for digest, name in (line.split(maxsplit=1) for line in lines if line)}


def wanted(only: Sequence[str] = ()) -> dict[str, str]:
    """Return the checksums of the jars that must exist: the set-up's and what was fetched since, or `only` some."""
    confs = set(only) or {conf for conf in ("registry", "s3", "yarn") if (folder() / conf).exists()} | set(SET_UP)
    return {name: digest for name, digest in checksums().items() if name.split("/")[0] in confs}


def damaged(only: Sequence[str] = ()) -> list[str]:
    """Return the files of `wanted` that are missing or differ from their checksum."""
    return [name for name, digest in wanted(only).items() if _digest(folder() / name) != digest]


def unpinned(only: Sequence[str] = ()) -> list[str]:
    """Return the files beside those of `wanted` that have no checksum, by `conf/file name`."""
    return _without_checksum(folder(), {name.split("/")[0] for name in wanted(only)})


def _without_checksum(place: Path, confs: Iterable[str]) -> list[str]:
    expected = checksums()
    files = (path for conf in sorted(confs) for path in sorted((place / conf).glob("*")) if path.is_file())
    return [name for name in (path.relative_to(place).as_posix() for path in files) if name not in expected]


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def ensure_jars(progress: Callable[[str], None], only: Sequence[str] = ()) -> None:
    """Fetch what is missing or damaged, of `wanted` or `only` some configurations, and remove what is not pinned.

    An interrupted fetch resumes. Raises UsageError for an unknown configuration and where this user cannot write them,
    ServiceUnreachable when they cannot be fetched, TidemarkError when they differ from their checksums or others come
    with them.
    """
    if unknown := sorted(set(only) - _CONTENTS.keys()):
        raise UsageError(f"no such jars: {', '.join(unknown)}", remedy=f"some of {', '.join(_CONTENTS)}")
    # Who may not write here only needs them as the checkout's owner has fetched them.
    if not damaged(only) and not unpinned(only):
        return
    with _fetching_alone(f"not all jars in {folder()} are as pinned"):
        for name in unpinned(only):
            (folder() / name).unlink(missing_ok=True)
        confs = {name.split("/")[0] for name in damaged(only)}
        for conf in (conf for conf in _CONTENTS if conf in confs):
            progress(f"fetching jars: {_CONTENTS[conf]}")
            _fetch(conf)


def registry_application(progress: Callable[[str], None]) -> Path:
    """Return the folder of the schema registry, fetched and unpacked if needed; raises like `ensure_jars`."""
    (packed,) = (name for name in checksums() if name.startswith("registry/"))
    unpacked = (folder() / packed).with_name("application")
    if unpacked.exists() and _digest(folder() / packed) == checksums()[packed]:
        return unpacked
    with _fetching_alone("the schema registry was never fetched", "./tidemark up registry"):
        if _digest(folder() / packed) != checksums()[packed]:
            progress(f"fetching, once: {_CONTENTS['registry']}")
            _fetch("registry")
        if not unpacked.exists():
            partial = unpacked.with_name("application.partial")
            shutil.rmtree(partial, ignore_errors=True)
            with tarfile.open(folder() / packed) as archive:
                archive.extractall(partial, filter="data")
            partial.rename(unpacked)
    return unpacked


def ensure_fetched(conf: Literal["s3", "yarn"], progress: Callable[[str], None]) -> None:
    """Fetch the jars of a configuration that only some need, once; raises like `ensure_jars`."""
    if (folder() / conf).exists():
        return
    # What the owner has to do is what this user does.
    command = "./tidemark up yarn" if conf == "yarn" else './tidemark sql "SELECT 1" with this TIDEMARK_LAKE'
    with _fetching_alone(f"the {conf} jars were never fetched", command):
        if not (folder() / conf).exists():
            progress(f"fetching, once: {_CONTENTS[conf]}")
            _fetch(conf)


@contextmanager
def _fetching_alone(why: str, *command: str) -> Iterator[None]:
    """Let one process fetch at a time; others that wait find the jars fetched. Raises like `asking_owner`.

    The lock lies in Ivy's cache, which cannot be written to by two: whoever shares the cache shares the lock.
    """
    # Other accounts run what root fetches, whatever root's umask is.
    before = os.umask(0o022)
    try:
        with asking_owner(why, *command):
            _ivy_cache().mkdir(parents=True, exist_ok=True)
            with fasteners.InterProcessLock(_ivy_cache() / _LOCK):
                yield
    finally:
        os.umask(before)


def _ivy_cache() -> Path:
    return folder().parent / "ivy-cache"


def _fetch(conf: str) -> None:
    target = folder() / conf
    fetched = folder().with_name(folder().name + ".partial")
    # What an earlier fetch left that was interrupted or refused.
    shutil.rmtree(fetched, ignore_errors=True)
    command = [java(), "-Xmx512m", *SHORT_LIVED, *_proxy_options()]
    # Such as the certificates of a proxy that reads along.
    command += shlex.split(os.environ.get("TIDEMARK_JVM_OPTIONS", ""))
    command += ["-jar", next((pyspark_home() / "jars").glob("ivy-*.jar")).as_posix()]
    command += ["-settings", str(IVY_SETTINGS), "-ivy", str(IVY), "-cache", str(_ivy_cache())]
    command += ["-confs", conf, "-retrieve", f"{fetched}/[conf]/[artifact]-[revision].[ext]"]
    result = _run_patiently(command)
    expected = {name: digest for name, digest in checksums().items() if name.startswith(f"{conf}/")}
    wrong = [name for name, digest in expected.items() if _digest(fetched / name) != digest]
    if result.returncode:
        raise ServiceUnreachable(
            f"{len(wrong)} of {len(expected)} {conf} jars could not be fetched in {_TRIES} tries: {_reason(result)}",
            remedy="check the network, then start again: it resumes",
        )
    if wrong:
        _refuse(f"{len(wrong)} jars differ from their checksums or are missing: {', '.join(wrong[:3])}", wrong)
    # A POM, which has no checksum, decides what comes with a jar.
    if others := _without_checksum(fetched, [conf]):
        _refuse(f"{len(others)} jars without a checksum came with those of {conf}: {', '.join(others[:3])}")
    if target.exists():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    (fetched / conf).rename(target)
    shutil.rmtree(fetched)


def _refuse(what: str, wrong: Sequence[str] = ()) -> NoReturn:
    """Take the modules of the wrong jars out of Ivy's cache, or all, and raise TidemarkError.

    Ivy would take from there what it has once downloaded, unchecked. What else is there stays for who has no network.
    """
    modules = {jar.parent.parent for name in wrong for jar in _ivy_cache().glob(f"*/*/*/{Path(name).name}")}
    for each in modules or _ivy_cache().iterdir():
        if each.is_dir():
            shutil.rmtree(each)
        elif each.name != _LOCK:
            each.unlink()
    raise TidemarkError(
        what,
        remedy="start again, which downloads them anew; if that fails like this, a proxy or mirror serves other files",
    )


def _proxy_options() -> list[str]:
    """Return Java's options for the proxies of `https_proxy`, `http_proxy` and `no_proxy`, which it does not read.

    Source: https://docs.oracle.com/en/java/javase/17/docs/api/java.base/java/net/doc-files/net-properties.html.
    """
    from urllib.request import getproxies_environment

    named, options = getproxies_environment(), list[str]()
    for scheme in [each for each in ("http", "https") if each in named]:
        proxy = urlsplit(f"//{named[scheme].rpartition('://')[2]}")
        options += [f"-D{scheme}.proxyHost={proxy.hostname}", f"-D{scheme}.proxyPort={proxy.port or 80}"]
    if not options:
        return []
    # Java's list has a star for the names below a domain, and replaces the one by which it asks this machine itself.
    hosts = [each.strip() for each in named.get("no", "").split(",") if each.strip()]
    direct = [name for host in hosts for name in (host.lstrip("."), f"*.{host.lstrip('.')}")]
    return [*options, f"-Dhttp.nonProxyHosts={'|'.join(('localhost', '127.*', '[::1]', *direct))}"]


def _run_patiently(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run Ivy until it has fetched everything: a mirror that must get a large file itself answers late."""
    from tenacity import retry, retry_if_result, stop_after_attempt, wait_exponential

    tries = retry(
        retry=retry_if_result(lambda result: result.returncode != 0),
        stop=stop_after_attempt(_TRIES),
        wait=wait_exponential(min=2, max=30),
        retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
    )
    result: subprocess.CompletedProcess[str] = tries(subprocess.run)(
        command, capture_output=True, text=True, check=False
    )
    return result


def _reason(result: subprocess.CompletedProcess[str]) -> str:
    """Return what Ivy reports about its first failure."""
    lines = [line.strip() for line in (*result.stdout.splitlines(), *result.stderr.splitlines())]
    told = [line for line in lines if "FAILED" in line or "rror" in line or "xception" in line]
    return one_line(told[0])[:200] if told else f"Ivy ended with {result.returncode}"


def main(confs: Sequence[str]) -> int:
    """Fetch the jars of these configurations, or of the set-up; return 0 or the error's exit code."""
    try:
        ensure_jars(lambda line: print(f"tidemark: {line}", file=sys.stderr, flush=True), confs)
    except TidemarkError as error:
        print(f"tidemark: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
