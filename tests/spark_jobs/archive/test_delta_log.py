"""Who commits a version of a Delta table on a disk when two drivers write it at once."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from include.errors import UsageError
from include.pipelines import load_pipeline
from include.spark.compiled_jars import LOG_STORES, log_store_jars
from include.spark.jars import classpath
from spark_jobs.archive.delta import check_store
from tests.conftest import wait_for

OWN, OTHER = "own\n", "another driver's\n"


class LogStore:
    """The log store of a lake on a disk, in the session's JVM, which has no jar of Delta."""

    def __init__(self, spark: Any) -> None:
        self._jvm, self._new_array = spark._jvm, spark.sparkContext._gateway.new_array
        self._configuration = spark._jsc.hadoopConfiguration()
        jars = [*classpath("delta"), *log_store_jars("file:///lake")]
        urls = self._array(self._jvm.java.net.URL, *(self._jvm.java.net.URI(jar.as_uri()).toURL() for jar in jars))
        thread = self._jvm.java.lang.Thread.currentThread()
        loader = self._jvm.java.net.URLClassLoader(urls, thread.getContextClassLoader())
        (made_of_configuration,) = loader.loadClass(LOG_STORES["file"]).getConstructors()
        self._store = made_of_configuration.newInstance(self._array(self._jvm.java.lang.Object, self._configuration))

    def write(self, file: Path, lines: Path, *, overwrite: bool = False) -> str:
        """Write the lines of a file, or of a pipe as they come; return the error's class, or nothing."""
        path = self._jvm.java.nio.file.Path.of(str(lines), self._array(self._jvm.java.lang.String))
        actions = self._jvm.java.nio.file.Files.lines(path).iterator()
        try:
            self._store.write(self._path(file), actions, overwrite, self._configuration)
        except Py4JJavaError as error:
            return str(error.java_exception.getClass().getName())
        return ""

    def read(self, file: Path) -> str:
        """Return a file's first line with its line break, by Hadoop, which compares its checksum."""
        return f"{self._store.read(self._path(file), self._configuration).next()}\n"

    def _path(self, file: Path) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(file.as_uri())

    def _array(self, kind: Any, *values: Any) -> Any:
        array = self._new_array(kind, len(values))
        for at, value in enumerate(values):
            array[at] = value
        return array


@pytest.fixture(scope="module")
def log_store(spark: Any) -> LogStore:
    return LogStore(spark)


def test_commit_is_refused_when_another_driver_s_comes_while_it_is_written(log_store: LogStore, tmp_path: Path) -> None:
    log, pipe, ended = tmp_path / "_delta_log", tmp_path / "pipe", list[str]()
    commit = log / f"{3:020}.json"
    os.mkfifo(pipe)
    driver = threading.Thread(target=lambda: ended.append(log_store.write(commit, pipe)))
    driver.start()
    with pipe.open("w") as lines:
        wait_for("the commit to be written", lambda: list(log.glob(".*.tmp")), 30)
        commit.write_text(OTHER)
        lines.write(OWN)
    driver.join()
    assert ended == ["java.nio.file.FileAlreadyExistsException"]
    assert [(each.name, each.read_text()) for each in log.iterdir()] == [(commit.name, OTHER)]


def test_commit_is_read_when_a_checksum_of_another_one_was_left(log_store: LogStore, tmp_path: Path) -> None:
    lines, commit, hint = (tmp_path / name for name in ("lines", f"{3:020}.json", "_last_checkpoint"))
    lines.write_text(OTHER)
    # Hadoop writes a checksum beside what Delta may overwrite.
    assert [log_store.write(file, lines, overwrite=True) for file in (commit, hint)] == ["", ""]
    commit.unlink()
    lines.write_text(OWN)
    assert [log_store.write(commit, lines), log_store.write(hint, lines, overwrite=True)] == ["", ""]
    assert [log_store.read(file) for file in (commit, hint)] == [OWN, OWN]


def test_stream_is_refused_when_the_lake_s_disk_has_no_hard_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    nothing: Any = None
    pipeline = load_pipeline("gps_positions")
    check_store(nothing, pipeline)
    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(UsageError, match=r"the disk of file:///.* has no hard links"):
        check_store(nothing, pipeline)
