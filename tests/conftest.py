"""Real services in a home folder of their own, and one Spark session for the tests of transforms."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from tenacity import RetryError, Retrying, retry_if_not_result, stop_after_delay, wait_fixed

REPOSITORY = Path(__file__).resolve().parent.parent

# Short jobs on small machines: the second compiler only costs here. Without it the code cache would be 48 MiB, which a
# whole run's generated classes fill; then calls fail with `NoSuchMethodException: … linkToSpecial`.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-golden", action="store_true", help="write what tests/golden expects anew")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.option.basetemp is None and not hasattr(config, "workerinput"):
        config.option.basetemp = folder_of_this_run()
    # Whatever the caller's settings are, tests never touch the caller's services.
    for name in [name for name in os.environ if name.startswith("TIDEMARK_")]:
        del os.environ[name]
    os.environ.update(TZ="UTC", PYTHONPATH=str(REPOSITORY), PYSPARK_PYTHON=sys.executable)


def folder_of_this_run() -> Path:
    """Where this run's homes lie; those of runs that are over are removed.

    Pytest's own place is closed to other users whenever another run begins, and PostgreSQL, which is another user
    when we are root, ends at once.
    """
    runs = REPOSITORY / ".tidemark" / "tests"
    runs.mkdir(parents=True, exist_ok=True)
    for run in runs.iterdir():
        if not psutil.pid_exists(int(run.name)):
            shutil.rmtree(run, ignore_errors=True)
    return runs / str(os.getpid())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Modules with services take minutes, the others seconds: these fill the gap at the end of a run in parallel.
    items.sort(key=lambda item: item.get_closest_marker("services") is None)


@dataclass
class Home:
    """A home folder with its services, driven through the command as a user would."""

    path: Path

    def environment(self, **extra: str) -> dict[str, str]:
        return {
            **os.environ,
            "TIDEMARK_HOME": str(self.path),
            "TIDEMARK_JVM_OPTIONS": JVM_OPTIONS,
            "TIDEMARK_LEASE_SECONDS": "5",
            "TIDEMARK_ARCHIVE_WAIT": "5s",
            **extra,
        }

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "include.cli", *arguments]

    def start(self, *arguments: str, **extra: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments),
            env=self.environment(**extra),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )

    def run(self, *arguments: str, expect: int | None = 0, **extra: str) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            self.command(*arguments),
            env=self.environment(**extra),
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            timeout=600,
            check=False,
        )
        if expect is not None:
            assert result.returncode == expect, f"{arguments}: {result.returncode}\n{result.stderr[-4000:]}"
        return result

    def json(self, *arguments: str, **options: Any) -> Any:
        return json.loads(self.run(*arguments, **options).stdout)

    def interval(self, pipeline: str, start: datetime, *extra: str, expect: int = 0) -> dict[str, Any]:
        bounds = ["--from", iso(start), "--to", iso(start + timedelta(hours=1))]
        verdict: dict[str, Any] = json.loads(self.run("interval", pipeline, *bounds, *extra, expect=expect).stdout)
        return verdict

    @property
    def services(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json("status", "--json")["services"]
        return found

    @property
    def kafka(self) -> str:
        return str(json.loads((self.path / "services" / "kafka.json").read_text())["address"])

    @property
    def database(self) -> str:
        return str(json.loads((self.path / "services" / "postgres.json").read_text())["address"])

    @property
    def lake(self) -> Path:
        return self.path / "lake"


def iso(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def last_hours(count: int) -> datetime:
    """The start of the hour that lies so many whole hours before the current one."""
    return datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=count)


def wait_for(what: str, condition: Callable[[], Any], seconds: float = 240) -> Any:
    """The condition's first true value, asked for five times a second."""
    asking = Retrying(stop=stop_after_delay(seconds), wait=wait_fixed(0.2), retry=retry_if_not_result(bool))
    try:
        return asking(condition)
    except RetryError:
        raise AssertionError(f"waited {seconds:.0f} s for {what}") from None


def end_of(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """Fresh embedded Kafka and PostgreSQL for one test module."""
    made = Home(tmp_path_factory.mktemp("home"))
    made.run("up")
    yield made
    made.run("down", expect=None)


@contextmanager
def settings_of(home: Home, **extra: str) -> Iterator[Home]:
    """The home, while this process's settings and ledger connection are in it."""
    from include.ledger.database import engine
    from include.settings import settings

    with pytest.MonkeyPatch.context() as patch:
        for name, value in home.environment(**extra).items():
            if name.startswith("TIDEMARK_"):
                patch.setenv(name, value)
        settings.cache_clear()
        engine.cache_clear()
        yield home
        engine().dispose()
    settings.cache_clear()
    engine.cache_clear()


@pytest.fixture(scope="module")
def in_process(home: Home) -> Iterator[Home]:
    """The home, with this process's settings and ledger connection in it."""
    with settings_of(home):
        yield home


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One small local session for all tests of transforms and decoding."""
    from pyspark.sql import SparkSession

    from include.services.jars import classpath

    folder = tmp_path_factory.mktemp("spark")
    jars = [str(jar) for jar in classpath("spark")]
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
        .config("spark.jars", ",".join(jars))
        .config("spark.python.sql.dataFrameDebugging.enabled", "false")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", f"-Duser.timezone=UTC {JVM_OPTIONS}")
        .config("spark.sql.warehouse.dir", str(folder))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
