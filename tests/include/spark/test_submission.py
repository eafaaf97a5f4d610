"""What a Spark application is started with."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from include.environment import foreign
from include.errors import UsageError
from include.pipelines import load_pipeline
from include.settings import settings
from include.spark.compiled_jars import LOG_STORES
from include.spark.jars import pyspark_home
from include.spark.submission import (
    AVRO_LIMITS,
    DELTA,
    LOGGING,
    OWN_SPARK_SUBMIT,
    SparkSubmission,
    stream_submission,
    submission,
)
from tests.conftest import SetSettings

pytestmark = pytest.mark.usefixtures("empty_home")

NAMELESS = 2**31 - 12345
"""An id of no user."""


@pytest.mark.parametrize("delta", [True, False])
def test_delta_s_jars_are_passed_only_when_an_application_needs_them(delta: bool) -> None:
    conf = submission("stream", name="stream", delta=delta).conf
    assert ("delta-spark" in conf["spark.jars"]) is delta
    assert "spark-sql-kafka" in conf["spark.jars"]
    assert (conf.keys() >= DELTA.keys()) is delta
    # The home's lake is on a disk.
    assert conf.get("spark.delta.logStore.file.impl") == (LOG_STORES["file"] if delta else None)
    assert ("LinkingLogStore" in conf["spark.jars"]) is delta


@pytest.mark.parametrize(("pipeline", "delta"), [("gps_positions", True), ("nest_cameras", False)])
def test_stream_gets_delta_s_jars_only_when_its_pipeline_declares_the_table(pipeline: str, delta: bool) -> None:
    resolved = stream_submission(load_pipeline(pipeline), "--until-caught-up")
    assert resolved.arguments == ("--pipeline", pipeline, "--until-caught-up")
    assert resolved.name == f"stream {pipeline}"
    assert ("delta-spark" in resolved.conf["spark.jars"]) is delta


@pytest.mark.parametrize("master", ["local[*]", "spark://host:7077", "k8s://https://host:6443"])
def test_driver_and_executors_have_utc_and_a_locale_of_utf_8(master: str, set_settings: SetSettings) -> None:
    set_settings(TIDEMARK_SPARK_MASTER=master, TIDEMARK_SPARK_IMAGE="tidemark")
    resolved = submission("build_interval", name="build")
    assert resolved.env["TZ"] == "UTC"
    assert resolved.conf["spark.executorEnv.TZ"] == "UTC"
    assert resolved.env["LC_ALL"] == resolved.conf["spark.executorEnv.LC_ALL"] == "C.UTF-8"


def test_avro_s_limits_are_those_of_driver_and_executors() -> None:
    """They end with a record that says it is longer than their memory."""
    conf = submission("stream", name="stream").conf
    assert set(AVRO_LIMITS.split()) <= set(conf["spark.driver.extraJavaOptions"].split())
    assert set(AVRO_LIMITS.split()) <= set(conf["spark.executor.extraJavaOptions"].split())
    lengths = [int(each.rpartition("=")[2]) for each in AVRO_LIMITS.split()]
    assert min(lengths) >= load_pipeline("gps_positions").decoder.max_bytes


def test_spark_submit_of_the_settings_is_used_and_refused_when_it_is_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "spark-submit"
    program.write_text("#!/bin/sh\n")
    monkeypatch.setenv("TIDEMARK_SPARK_SUBMIT", str(program))
    with pytest.raises(UsageError, match=r"TIDEMARK_SPARK_SUBMIT.*name the"):
        settings()
    program.chmod(0o755)
    assert submission("stream", name="stream").command()[0] == str(program)


def test_spark_of_this_python_is_started_when_the_shell_exports_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_settings: SetSettings
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark-3.5"))
    environment = submission("stream", name="stream").env
    assert environment["SPARK_HOME"] == str(pyspark_home())
    asked = [str(OWN_SPARK_SUBMIT), "--version"]
    told = subprocess.run(asked, env={**os.environ, **environment}, capture_output=True, text=True, check=True).stderr
    assert f"version {version('pyspark')}" in told
    # One of the settings brings its own.
    program = tmp_path / "spark-submit"
    program.touch(mode=0o755)
    set_settings(TIDEMARK_SPARK_SUBMIT=str(program))
    assert "SPARK_HOME" not in submission("stream", name="stream").env


def test_nothing_of_another_cluster_is_on_the_class_path_when_the_shell_is_set_up_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hive-site.xml would lead to another catalog, and a folder makes the class archive invalid."""
    for name in (*foreign.OF_OTHER_CLUSTERS, *foreign.OF_OTHER_METASTORES):
        monkeypatch.setenv(name, str(tmp_path))
    environment = {**os.environ, **submission("run_sql", name="sql").env, "SPARK_PRINT_LAUNCH_COMMAND": "1"}
    asked = [str(OWN_SPARK_SUBMIT), "--version"]
    started = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True).stderr
    assert "Spark Command: " in started
    assert str(tmp_path) not in started
    assert not any(Path(environment[name]).exists() for name in foreign.OF_OTHER_METASTORES)


def test_driver_is_one_of_this_machine_when_the_shell_is_set_up_for_another_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark refuses the first four, and its JVM a second garbage collector; its files would lie elsewhere."""
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:15002")
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    monkeypatch.setenv("DEPLOY_MODE", "cluster")
    monkeypatch.setenv("SPARK_LOCAL_HOSTNAME", "nowhere.example")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:+UseG1GC")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "elsewhere"))
    job = tmp_path / "job.py"
    job.write_text("from pyspark.sql import SparkSession\nprint(SparkSession.builder.getOrCreate().range(5).count())")
    monkeypatch.setattr(SparkSubmission, "application", str(job))
    started = submission("run_sql", name="sql", short=True)
    environment = {**os.environ, **started.env}
    done = subprocess.run(started.command(), env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr
    assert not (tmp_path / "elsewhere").exists()


def test_options_of_the_shell_for_a_driver_are_kept_when_it_is_of_a_cluster(set_settings: SetSettings) -> None:
    """Its certificates, what Kerberos needs, or the name of its pod."""
    wanted = {"SPARK_SUBMIT_OPTS": "-Djavax.net.ssl.trustStore=/etc/trust", "SPARK_LOCAL_HOSTNAME": "driver.pods"}
    set_settings(**wanted, TIDEMARK_SPARK_MASTER="spark://host:7077")
    submission("run_sql", name="sql")
    assert wanted.items() <= os.environ.items()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TIDEMARK_SPARK_MASTER", "k8s://https://host:6443"),
        ("TIDEMARK_SPARK_MASTER", "yarn"),
        ("TIDEMARK_LAKE", "hdfs://cluster/lake"),
    ],
)
def test_configuration_of_the_cluster_is_kept_when_something_needs_it(
    tmp_path: Path, set_settings: SetSettings, variable: str, value: str
) -> None:
    set_settings(HADOOP_CONF_DIR=str(tmp_path), TIDEMARK_SPARK_IMAGE="tidemark", **{variable: value})
    assert submission("run_sql", name="sql").env.get("HADOOP_CONF_DIR", str(tmp_path)) == str(tmp_path)


def test_workers_import_own_code_when_the_working_folder_has_code_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "__init__.py").write_text("raise ImportError('of another checkout')")
    environment = {**os.environ, **submission("stream", name="stream").env}
    # As Spark starts its workers, in the driver's working folder.
    subprocess.run([sys.executable, "-m", "include.waiting"], env=environment, cwd=tmp_path, check=True)


def test_driver_is_refused_when_its_user_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Hadoop refuses it, with a stack trace."""
    monkeypatch.setattr(os, "geteuid", lambda: NAMELESS)
    with pytest.raises(UsageError, match=f"the user id {NAMELESS} has no entry in /etc/passwd.*add one"):
        submission("stream", name="stream")


def test_shipped_file_decides_when_a_driver_logs() -> None:
    options = submission("stream", name="stream").conf["spark.driver.extraJavaOptions"].split()
    (named,) = (each for each in options if each.startswith("-Dlog4j2.configurationFile="))
    assert named.partition("=")[2] == LOGGING.as_uri()
    pairs = [line.split(" = ") for line in LOGGING.read_text().splitlines() if line and not line.startswith("#")]
    names = {key.split(".")[1] for key, _ in pairs if key.startswith("logger.")}
    assert {f"logger.{name}.{part}" for name in names for part in ("name", "level")} <= {key for key, _ in pairs}
    assert dict(pairs)["rootLogger.level"] == "warn"


@pytest.mark.parametrize(
    ("heap", "third"),
    [("1g", 2**30 // 3), ("1536m", 512 * 2**20), ("3000000K", 1000000 * 2**10)],
)
def test_young_generation_is_a_third_of_the_heap_when_a_driver_starts(
    set_settings: SetSettings, heap: str, third: int
) -> None:
    set_settings(TIDEMARK_DRIVER_MEMORY=heap)

    def options(*, short: bool) -> list[str]:
        conf = submission("stream", name="stream", short=short).conf
        return [each for each in conf["spark.driver.extraJavaOptions"].split() if each.startswith("-XX:NewSize")]

    for short in (True, False):
        assert options(short=short) == [f"-XX:NewSize={third}"]
