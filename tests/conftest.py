"""Real services in a home folder of their own, and one Spark session for the tests of transforms."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import psycopg2
import pytest
from confluent_kafka import Producer
from fasteners import InterProcessLock

from include import waiting
from include.services.process import running
from include.spark.kept import KEPT_CLASSES
from include.spark.submission import AVRO_LIMITS, FIRST_COMPILER
from tests.support.browser import headless_chromium
from tests.support.cpu_seconds import CpuSeconds
from tests.support.shared_services import SharedServices
from tests.support.turns import WORKERS, OneWaits, in_turn
from tests.support.warm_python import WarmPython
from tests.support.warm_spark import WarmJvm

REPOSITORY = Path(__file__).resolve().parent.parent

# Short jobs on small machines: the second compiler only costs here. The code cache that the first one gets by itself
# is filled by the classes that a whole run generates; then calls fail with `NoSuchMethodException: … linkToSpecial`.
JVM_OPTIONS = FIRST_COMPILER

# For JVMs that serve many tests: they hold the code generated for all of them, which each small collection copies.
LASTING_JVM_OPTIONS = f"{JVM_OPTIONS} -XX:NewSize=400m -XX:MetaspaceSize=512m {AVRO_LIMITS}"

# In a worker of pytest-xdist the main module has no file. Spark Connect, which Great Expectations imports, mistakes
# that for a run of doctests and ends the process.
if not hasattr(sys.modules["__main__"], "__file__"):
    sys.modules["__main__"].__file__ = pytest.__file__

_HOMES = "TESTS_HOMES"
"""The environment variable that names the folder of homes."""

_ROOM_IN_MEMORY = 14 * 2**30
"""Bytes of memory that have to be available for homes in memory: they take some 5 GB, and services and Spark 9."""

_SERVICES = {"up", "down", "kafka", "postgres", "registry"}
"""Arguments of commands that start no service which starts drivers."""

_WITHOUT_DRIVER = {"setup-database", "status", "produce", "pipelines", "ranges", "lag", "verify", "doctor"}
"""Verbs that start no driver, unless they repair something."""

LONG_TIMEOUT = 2400
"""Seconds after which a test of the long tier counts as hung: some run the DAG three times, on a busy machine."""

DURATIONS = REPOSITORY / "tests" / "durations.json"
"""Seconds of each test of the long tier, for splitting it into parts; `--store-durations` rewrites it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-golden", action="store_true", help="write what tests/golden expects anew")
    parser.addoption("--write-pictures", action="store_true", help="write include/docs/images anew")
    parser.addoption(
        "--cpu-seconds",
        metavar="COUNT",
        type=int,
        help="tell which so many modules and tests took most CPU seconds, of services and Spark too",
    )
    parser.addoption("--cpu-seconds-file", metavar="FILE", type=Path, help="write all tests' CPU seconds as JSON")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        # Workers inherit it.
        os.environ[_HOMES] = str(_folder_of_homes(of_long_tier=config.option.markexpr != "not slow"))
        if config.option.basetemp is None:
            config.option.basetemp = folder_of_this_run()
    # Whatever the caller's settings are, tests never touch the caller's services.
    for name in [name for name in os.environ if name.startswith("TIDEMARK_")]:
        del os.environ[name]
    os.environ.update(TZ="UTC", LC_ALL="C.UTF-8", PYTHONPATH=str(REPOSITORY), PYSPARK_PYTHON=sys.executable)
    # Compiled once, not by each of a run's thousand processes, whatever the caller's setting is.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    longest, file = config.getoption("--cpu-seconds"), config.getoption("--cpu-seconds-file")
    if longest is not None or file is not None:
        config.pluginmanager.register(CpuSeconds(longest or 0, file))


def pytest_report_header(config: pytest.Config) -> str | None:
    """Print how long the long tier takes before it starts."""
    if config.option.markexpr != "slow":
        return None
    timed = json.loads(DURATIONS.read_text())
    minutes, workers = sum(timed.values()) / 60, config.getoption("numprocesses") or 1
    return (
        f"long tier: {len(timed)} timed tests took {minutes:.0f} min one after the other on two busy cores, so about "
        f"{minutes / workers:.0f} min with {workers} modules at a time; cut it in parts with --splits N --group I"
    )


def _folder_of_homes(*, of_long_tier: bool) -> Path:
    """Return where homes lie: in memory if there is plenty, on the disk if not, and those of the long tier.

    Tests make and delete hundreds of thousands of small files, which some file systems are slow at.
    """
    in_memory = Path("/dev/shm")
    has_room = min(psutil.virtual_memory().available, shutil.disk_usage(in_memory).free) > _ROOM_IN_MEMORY
    if of_long_tier or not has_room:
        return REPOSITORY / ".tidemark" / "tests"
    return in_memory / f"tidemark-tests-{os.getuid()}"


def homes() -> Path:
    """Return the folder below which the homes of all tests lie, of other runs too."""
    return Path(os.environ[_HOMES])


def folder_of_this_run() -> Path:
    """Return the folder of this run's homes; those of ended runs are removed.

    Pytest closes its own folder to other users whenever another run begins, and PostgreSQL, which is another user when
    we are root, would end at once.
    """
    runs = homes()
    runs.mkdir(parents=True, exist_ok=True)
    for run in runs.iterdir():
        if not psutil.pid_exists(int(run.name)):
            shutil.rmtree(run, ignore_errors=True)
    return runs / str(os.getpid())


def pytest_unconfigure() -> None:
    for warm in (warm_jvm, warm_python):
        if warm.cache_info().currsize:
            warm().end()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return the scheduler of a run with as many workers as `./tidemark test` has; with fewer, it is pytest-xdist's."""
    has_all = config.getoption("dist") == "loadfile" and (config.getoption("numprocesses") or 0) >= WORKERS
    return OneWaits(config, log) if has_all else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector away from what is imported: it would walk all of it, time and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marks: dict[Path, set[str]] = {}
    for item in items:
        marks.setdefault(item.path, set()).update(mark.name for mark in item.iter_markers())
    order = {module: turn for turn, module in enumerate(in_turn(marks))}
    items.sort(key=lambda item: order[item.path])
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT))


@dataclass
class Home:
    """A home folder with its services, driven through the command as a user would.

    With `own_drivers`, each of its Spark applications starts a JVM of its own, as in production.
    """

    path: Path
    own_drivers: bool = field(default=False, kw_only=True)

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

    def run(
        self, *arguments: str, expect: int | None = 0, cwd: Path = REPOSITORY, **extra: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, as a fork of the tests' Python process, with its drivers in the tests' JVM.

        Both start as new processes where one of them is killed or paused at a named place.
        """
        if {"TIDEMARK_CRASH_AT", "TIDEMARK_PAUSE_AT"}.intersection(extra):
            command, environment = self.command(*arguments), self.environment(**extra)
            result = subprocess.run(
                command, env=environment, capture_output=True, text=True, cwd=cwd, timeout=600, check=False
            )
        else:
            drivers = {} if self.own_drivers or _starts_no_driver(arguments) else warm_jvm().environment()
            result = warm_python().run(self.command(*arguments)[1:], self.environment(**drivers, **extra), cwd)
        if expect is not None:
            assert result.returncode == expect, f"{arguments}: {result.returncode}\n{result.stderr[-4000:]}"
        return result

    def json(self, *arguments: str, **options: Any) -> Any:
        return json.loads(self.run(*arguments, **options).stdout)

    def interval(self, pipeline: str, start: datetime, *extra: str, expect: int = 0, **settings: str) -> dict[str, Any]:
        bounds = ["--from", iso(start), "--to", iso(start + timedelta(hours=1))]
        done = self.run("interval", pipeline, *bounds, *extra, expect=expect, **settings)
        verdict: dict[str, Any] = json.loads(done.stdout)
        return verdict

    def produce(self, pipeline: str, events: int, start: datetime, span: str, *, bad: float = 0, seed: int = 1) -> None:
        """Write generated messages to the pipeline's topic; `bad` is the share of invalid ones."""
        bounds = ("--start", iso(start), "--span", span, "--bad-fraction", str(bad), "--seed", str(seed))
        assert self.json("produce", pipeline, "--events", str(events), *bounds)["delivered"] == events

    def end(self, *names: str) -> None:
        """End the services, or these, at once; they and their data are not needed any more."""
        if not names and (self._state("airflow") or self._state("yarn")):
            self.run("down", expect=None)
        ended = []
        for name in names or ("registry", "kafka", "postgres"):
            if service := running(self._state(name)):
                # PostgreSQL would leave shared memory behind.
                service.send_signal(signal.SIGQUIT if name == "postgres" else signal.SIGKILL)
                ended.append(service)
        psutil.wait_procs(ended, timeout=30)

    def _state(self, name: str) -> dict[str, Any]:
        file = self.path / "services" / f"{name}.json"
        state: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return state

    @property
    def services(self) -> dict[str, Any]:
        """What `status` tells of the services: it asks each of them, so whoever knows that one runs asks `address`."""
        found: dict[str, Any] = self.json("status", "--json")["services"]
        return found

    def address(self, service: str) -> str:
        """Where a service that was started listens."""
        return str(self._state(service)["address"])

    def process_id(self, service: str) -> int:
        return int(self._state(service)["pid"])

    @property
    def kafka(self) -> str:
        return self.address("kafka")

    def producer(self, **options: str | int) -> Producer:
        """Return a producer whose records lie in the order in which they were sent.

        Without idempotence, a refused batch (a new topic's leader is not known at once) is sent again after batches
        that were on their way meanwhile.
        """
        return Producer({"bootstrap.servers": self.kafka, "enable.idempotence": True, "log_level": 0, **options})

    @property
    def database(self) -> str:
        return str(self._state("postgres")["address"])

    def ledger(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query of the ledger; none for a statement that gives none."""
        return self.rows("ledger", query, *values)

    def rows(self, database: str, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query of one of the databases, as `ledger` does."""
        with psycopg2.connect(self.database, dbname=database) as connection, connection.cursor() as cursor:
            # Without values, a percent sign in the query is one.
            cursor.execute(query, values or None)
            return cursor.fetchall() if cursor.description else []

    @property
    def lake(self) -> Path:
        return self.path / "lake"


@cache
def warm_jvm() -> WarmJvm:
    """This process's JVM for the Spark applications of its tests."""
    return WarmJvm(folder_of_this_run() / f"jvm-{os.getpid()}", LASTING_JVM_OPTIONS, warm_python())


@cache
def warm_python() -> WarmPython:
    """This process's Python process for the commands of its tests."""
    return WarmPython(folder_of_this_run() / f"python-{os.getpid()}")


def _starts_no_driver(arguments: tuple[str, ...]) -> bool:
    without = arguments[0] in _WITHOUT_DRIVER and "--repair" not in arguments
    return without or _SERVICES.issuperset(arguments)


def iso(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def last_hours(count: int) -> datetime:
    """Return the start of the hour that is `hours` whole hours before the current one."""
    return datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=count)


def wait_for(what: str, condition: Callable[[], Any], seconds: float = 240, *, every: float = 0.2) -> Any:
    """Return the condition's first true value, checking it again after as many seconds."""
    found = waiting.wait_for(condition, seconds=seconds, every=every)
    assert found, f"waited {seconds:.0f} s for {what}"
    return found


def lives(process: psutil.Process) -> bool:
    """Whether it runs; one that has ended may stay in the table of processes until its parent asks for it."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def end_of(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """One headless Chromium for all tests of pages."""
    with headless_chromium() as chrome:
        yield chrome


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What drivers log. Not by `caplog`: what other tests configure may pass a record on twice."""
    messages: list[str] = []
    listening = logging.Handler()
    listening.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tidemark").addHandler(listening)
    yield messages
    logging.getLogger("tidemark").removeHandler(listening)


@pytest.fixture
def browser(chromium: Any) -> Iterator[Any]:
    """The Chromium at an empty page, before and after: a page goes on asking its server, and logs when that is gone."""
    chromium.get("about:blank")
    for log in ("browser", "performance"):
        chromium.get_log(log)
    yield chromium
    chromium.get("about:blank")


@pytest.fixture
def take_picture(request: pytest.FixtureRequest) -> Callable[[Any, str], bytes]:
    """Returns what a browser shows, as PNG; with `--write-pictures` it is the docs' picture of that name."""

    def take(browser: Any, name: str) -> bytes:
        picture = b64decode(browser.get_screenshot_as_base64())
        if request.config.getoption("--write-pictures"):
            (REPOSITORY / "include" / "docs" / "images" / f"{name}.png").write_bytes(picture)
        return picture

    return take


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A home whose Kafka and PostgreSQL were once started, given all databases and schemas, and stopped."""
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        folder = folder.parent
    path, is_ready = folder / "prepared", folder / "prepared.ready"
    with InterProcessLock(folder / "prepared.lock"):
        if not is_ready.exists():
            made = Home(path)
            made.run("up")
            made.run("down")
            is_ready.touch()
    return path


@pytest.fixture(scope="session")
def new_home(tmp_path_factory: pytest.TempPathFactory, prepared: Path) -> Callable[..., Home]:
    """Makes unused homes; `up` starts their services without setting them up first."""

    def make(path: Path | None = None, **options: Any) -> Home:
        path = path or tmp_path_factory.mktemp("home")
        # Copied unchanged, with their owners.
        subprocess.run(["cp", "-a", *map(str, prepared.iterdir()), str(path)], check=True)
        services = path / "services"
        # Ports are for one of them only; PostgreSQL's file has the password, too.
        (services / "kafka.json").unlink()
        state = json.loads((services / "postgres.json").read_text())
        (services / "postgres.json").write_text(json.dumps({**state, "port": None}))
        client = services / "kafka.client.properties"
        client.write_text(client.read_text().replace(str(prepared), str(path)))
        return Home(path, **options)

    return make


@pytest.fixture(scope="session")
def shared_services(new_home: Callable[..., Home], prepared: Path) -> Iterator[SharedServices]:
    """This process's Kafka and PostgreSQL, for modules that neither stop nor configure them."""
    services = SharedServices(new_home, prepared)
    yield services
    services.end()


@pytest.fixture(scope="module")
def clean_home(
    new_home: Callable[..., Home], request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., AbstractContextManager[Home]]:
    """Makes the module's home, in which nothing has happened, with those services running."""
    has_own_drivers = request.node.get_closest_marker("own_drivers") is not None

    @contextmanager
    def make(*services: str) -> Iterator[Home]:
        if has_own_drivers or has_own_services(request):
            made = new_home(own_drivers=has_own_drivers)
            made.run("up", *services)
            yield made
            made.end()
            return
        shared: SharedServices = request.getfixturevalue("shared_services")
        made, failed = Home(tmp_path_factory.mktemp("home")), request.session.testsfailed
        shared.lend(made.path, *services)
        yield made
        made.end("registry")
        shared.give_back(spoiled=request.session.testsfailed > failed)

    return make


def has_own_services(request: pytest.FixtureRequest) -> bool:
    """Return whether the module declares it, or has a test of the long tier in this run: such tests kill services."""
    return request.node.get_closest_marker("own_services") is not None or any(
        item.path == request.path and item.get_closest_marker("slow") for item in request.session.items
    )


@pytest.fixture(scope="module")
def home(clean_home: Callable[..., AbstractContextManager[Home]]) -> Iterator[Home]:
    """Embedded Kafka and PostgreSQL for one test module."""
    with clean_home("kafka", "postgres") as made:
        yield made


@contextmanager
def settings_of(home: Home, **extra: str) -> Iterator[Home]:
    """The home, while this process's settings and ledger connection are in it."""
    from include.ledger.database import engine
    from include.settings import settings

    with pytest.MonkeyPatch.context() as patch:
        for name, value in home.environment(**extra).items():
            if name.startswith("TIDEMARK_"):
                patch.setenv(name, value)
        # Sending a mail sets it. It is unset afterwards, or each `doctor` of later modules would read all DAGs.
        patch.setenv("AIRFLOW_HOME", str(home.path / "airflow"))
        patch.delenv("AIRFLOW_HOME")
        settings.cache_clear()
        # A thread that an earlier module left may have begun to read them before they changed, and keeps what it read.
        while settings() != settings.__wrapped__():
            settings.cache_clear()
        engine.cache_clear()
        yield home
        engine().dispose()
    settings.cache_clear()
    engine.cache_clear()


SetSettings = Callable[..., None]
"""Takes variables of the environment by name."""


@pytest.fixture
def set_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[SetSettings]:
    """Sets variables of this process, or unsets them, and lets its settings be read again, now and after the test."""
    from include.settings import settings

    def change(**variables: str | None) -> None:
        for name, value in variables.items():
            if value is None:
                monkeypatch.delenv(name)
            else:
                monkeypatch.setenv(name, value)
        settings.cache_clear()

    yield change
    # What ends after this, as a lease that a fixture took, reads the others' settings.
    monkeypatch.undo()
    settings.cache_clear()


@pytest.fixture
def empty_home(tmp_path: Path, set_settings: SetSettings) -> Path:
    """This process's home, in which no service was ever started."""
    set_settings(TIDEMARK_HOME=str(tmp_path))
    return tmp_path


@pytest.fixture
def own_lake(tmp_path: Path, set_settings: SetSettings) -> Path:
    """This process's lake, an empty folder without services."""
    set_settings(TIDEMARK_LAKE=tmp_path.as_uri())
    return tmp_path


@pytest.fixture(scope="module")
def in_process(home: Home) -> Iterator[Home]:
    """The home, with this process's settings and ledger connection in it."""
    with settings_of(home):
        yield home


@pytest.fixture(scope="module")
def postgres(clean_home: Callable[..., AbstractContextManager[Home]]) -> Iterator[Home]:
    """An embedded PostgreSQL that this process itself talks to."""
    with clean_home("postgres") as made, settings_of(made):
        yield made


@pytest.fixture(scope="session")
def short_folder() -> Iterator[str]:
    """A folder for sockets, whose paths have at most 107 bytes; a run's own folder may be longer."""
    with TemporaryDirectory(prefix="tidemark-") as folder:
        yield folder


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, short_folder: str) -> Iterator[Any]:
    """One small local session for all tests of transforms and decoding."""
    from pyspark.sql import SparkSession

    from include.spark import class_archive
    from include.spark.jars import classpath
    from include.spark.submission import SCHEDULING
    from spark_jobs.spark.session import keep_classes, share_class_loader

    folder = tmp_path_factory.mktemp("spark")
    jars = [str(jar) for jar in classpath("spark")]
    options = ("-Duser.timezone=UTC -XX:+UseSerialGC", LASTING_JVM_OPTIONS, *class_archive.options())
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
        .config("spark.jars", ",".join(jars))
        .config("spark.python.sql.dataFrameDebugging.enabled", "false")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config(map={**KEPT_CLASSES, **SCHEDULING})
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraClassPath", str(class_archive.driver_jar()))
        .config("spark.driver.extraJavaOptions", " ".join(options))
        .config("spark.sql.warehouse.dir", str(folder))
        # Each result is fetched through a socket that takes one connection. At a port, a client of another test that
        # tries again may be that one.
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.python.unix.domain.socket.dir", short_folder)
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    share_class_loader(session.sparkContext)
    keep_classes(session.sparkContext)
    yield session
    session.stop()
