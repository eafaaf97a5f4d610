"""The jars of a decoder that is Java: the user's, and the class that calls it.

That class (`KafkaDeserializers.java`) is compiled when it is first needed, by the compiler that Spark ships.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import zipfile
from pathlib import Path

from include.errors import TidemarkError, UsageError, one_line
from include.pipelines.spec import KafkaDeserializer
from include.pipelines.spec.decoders import Decoder
from include.settings import REPOSITORY
from include.spark.jars import classpath, java, pyspark_home

SOURCE = Path(__file__).with_name("KafkaDeserializers.java")
CLASS = "tidemark.KafkaDeserializers"

_COMPILER = "org.codehaus.commons.compiler.samples.CompilerDemo"
"""The command line of Janino."""


def decoder_jars(decoder: Decoder | None) -> list[Path]:
    """Return the jars that decoding takes; none unless the decoder is Java.

    Raises UsageError when the user's jar is missing.
    """
    if not isinstance(decoder, KafkaDeserializer):
        return []
    _content(decoder)
    return [decoder.jar.resolve(), _compiled()]


def jars_content(decoder: KafkaDeserializer) -> list[str]:
    """Return the SHA-256 of the user's jar, and of the class that calls it. Raises UsageError when it is missing."""
    return [hashlib.sha256(each).hexdigest() for each in (_content(decoder), SOURCE.read_bytes())]


def _content(decoder: KafkaDeserializer) -> bytes:
    try:
        return decoder.jar.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the jar of {decoder.class_name} cannot be read: {decoder.jar}: {error.strerror}",
            remedy="put it there, or correct the decoder's jar",
        ) from None


def _compiled() -> Path:
    source = SOURCE.read_bytes()
    folder = REPOSITORY / ".tidemark" / "classes"
    jar = folder / f"deserializers-{hashlib.sha256(source).hexdigest()[:12]}.jar"
    if not jar.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as made:
            compile_java(SOURCE, Path(made) / jar.name)
            (Path(made) / jar.name).replace(jar)
    return jar


def compile_java(source: Path, jar: Path) -> None:
    """Compile a source file into a jar with Spark's and Kafka's classes. Raises TidemarkError when it does not compile.

    The compiler is Janino: it knows no lambdas and no generic types.
    """
    compiler = [*pyspark_home().glob("jars/janino-*.jar"), *pyspark_home().glob("jars/commons-compiler-*.jar")]
    known = os.pathsep.join(map(str, [*sorted(pyspark_home().glob("jars/*.jar")), *classpath("spark")]))
    with tempfile.TemporaryDirectory() as classes:
        options = ["-classpath", known, "-encoding", "UTF-8", "-g", "-d", classes, str(source)]
        command = [java(), "-cp", os.pathsep.join(map(str, compiler)), _COMPILER, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        made = sorted(Path(classes).rglob("*.class"))
        # Janino's command ends with 0 also when it fails.
        if done.returncode or not made:
            raise TidemarkError(f"{source.name} does not compile: {one_line(done.stdout + done.stderr)[:500]}")
        with zipfile.ZipFile(jar, "w") as packed:
            for each in made:
                # With a fixed time: the same source gives the same jar.
                packed.writestr(zipfile.ZipInfo(str(each.relative_to(classes))), each.read_bytes())
