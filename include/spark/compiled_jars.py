"""Java jars that Spark's interfaces require: the user's decoder with the class that calls it, and Delta log stores.

Each class of ours is one source file beside this module, compiled by the compiler that Spark ships. The launcher and
images call `python -m include.spark.compiled_jars`, which compiles all: drivers on a cluster and executors compile
nothing. Elsewhere each is compiled when it is first needed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from include.errors import TidemarkError, UsageError, asking_owner, one_line
from include.pipelines.spec import KafkaDeserializer
from include.pipelines.spec.decoders import Decoder
from include.settings import REPOSITORY
from include.spark.jars import SHORT_LIVED, classpath, java, pyspark_home

DESERIALIZERS = Path(__file__).with_name("KafkaDeserializers.java")
CLASS = "tidemark.KafkaDeserializers"

LOG_STORES = {"s3a": "tidemark.ConditionalLogStore", "file": "tidemark.LinkingLogStore"}
"""The classes of the log stores of Delta tables, by the scheme of the lake's URI."""

FOLDER = REPOSITORY / ".tidemark" / "classes"
"""Where the compiled jars are."""

_COMPILER = "org.codehaus.commons.compiler.samples.CompilerDemo"
"""The command line of Janino."""


def decoder_jars(decoder: Decoder | None) -> list[Path]:
    """Return the jars that decoding needs; none unless the decoder is Java.

    Raises UsageError when the user's jar is missing.
    """
    if not isinstance(decoder, KafkaDeserializer):
        return []
    _content(decoder)
    return [decoder.jar.resolve(), _compiled(DESERIALIZERS)]


def log_store_jars(lake_uri: str) -> list[Path]:
    """Return the jars with the log store of Delta tables in a lake; none where Delta's own is exclusive, as on HDFS."""
    name = LOG_STORES.get(lake_uri.partition("://")[0])
    return [_log_store_jar(name)] if name else []


def _log_store_jar(name: str) -> Path:
    return _compiled(_log_store_source(name), classpath("delta"))


def _log_store_source(name: str) -> Path:
    return Path(__file__).with_name(f"{name.rpartition('.')[2]}.java")


def jars_content(decoder: KafkaDeserializer) -> list[str]:
    """Return the SHA-256 of the user's jar, and of the class that calls it. Raises UsageError when it is missing."""
    return [hashlib.sha256(each).hexdigest() for each in (_content(decoder), DESERIALIZERS.read_bytes())]


def _content(decoder: KafkaDeserializer) -> bytes:
    try:
        return decoder.jar.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the jar of {decoder.class_name} cannot be read: {decoder.jar}: {error.strerror}",
            remedy="put it there, or correct the decoder's jar",
        ) from None


def compile_all() -> None:
    """Compile each class of ours that is not there, and let all accounts read the jars that this user owns.

    Raises UsageError where this user cannot write, or without jars.
    """
    for jar in (_compiled(DESERIALIZERS), *map(_log_store_jar, LOG_STORES.values())):
        # An earlier version compiled it as its account's umask was.
        if _is_kept(jar):
            jar.chmod(0o644)


def lacking() -> list[str]:
    """Return the names of the jars with classes of ours that are missing, or not readable.

    Those that this user owns have to be readable to all accounts, others to this user.
    """
    jars = map(_jar_of, (DESERIALIZERS, *map(_log_store_source, LOG_STORES.values())))
    return [jar.name for jar in jars if not os.access(jar, os.R_OK) or _is_kept(jar)]


def _is_kept(jar: Path) -> bool:
    """Return whether this user owns the jar, and other accounts cannot read it."""
    now = jar.stat()
    return now.st_uid == os.geteuid() and now.st_mode & 0o044 != 0o044


def _jar_of(source: Path) -> Path:
    return FOLDER / f"{source.stem}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}.jar"


def _compiled(source: Path, beside: Sequence[Path] = ()) -> Path:
    """Return the jar with the class of a source file, compiled if this user cannot read one.

    Raises UsageError when it cannot write it either.
    """
    jar = _jar_of(source)
    if os.access(jar, os.R_OK):
        return jar
    # Other accounts load what root compiles, whatever root's umask is.
    before = os.umask(0o022)
    try:
        with asking_owner(f"{jar} is missing or not readable"):
            FOLDER.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=FOLDER) as made:
                compile_java(source, Path(made) / jar.name, beside)
                (Path(made) / jar.name).replace(jar)
    finally:
        os.umask(before)
    return jar


def compile_java(source: Path, jar: Path, beside: Sequence[Path] = ()) -> None:
    """Compile a source file into a jar with the classes of Spark, of Kafka and of jars beside these.

    Raises TidemarkError when it does not compile. The compiler, Janino, supports neither lambdas nor generic types.
    """
    compiler = [*pyspark_home().glob("jars/janino-*.jar"), *pyspark_home().glob("jars/commons-compiler-*.jar")]
    known = os.pathsep.join(map(str, [*sorted(pyspark_home().glob("jars/*.jar")), *classpath("spark"), *beside]))
    with tempfile.TemporaryDirectory() as classes:
        options = ["-classpath", known, "-encoding", "UTF-8", "-g", "-d", classes, str(source)]
        command = [java(), *SHORT_LIVED, "-cp", os.pathsep.join(map(str, compiler)), _COMPILER, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        made = sorted(Path(classes).rglob("*.class"))
        # Janino's command returns 0 even when it fails.
        if done.returncode or not made:
            raise TidemarkError(f"{source.name} does not compile: {one_line(done.stdout + done.stderr)[:500]}")
        with zipfile.ZipFile(jar, "w") as packed:
            for each in made:
                # With a fixed time: the same source gives the same jar.
                packed.writestr(zipfile.ZipInfo(str(each.relative_to(classes))), each.read_bytes())


def main() -> int:
    """Compile every class of ours; return 0 or the error's exit code."""
    try:
        compile_all()
    except TidemarkError as error:
        print(f"tidemark: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
