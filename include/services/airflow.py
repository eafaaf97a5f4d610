"""The embedded Airflow: its four parts under one process, on the embedded (or configured) PostgreSQL, loopback only.

`python -m include.services.airflow` is that process. It replaces `airflow standalone`, which opens log servers on every
interface at fixed ports, and leaves its parts running when SIGTERM or SIGKILL ends it.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlencode

import psutil

from include.environment import foreign
from include.errors import ServiceUnreachable, UsageError
from include.services import copies, postgres, process
from include.services.process import ServiceStatus
from include.settings import PAST_PROXY, REPOSITORY, settings, write_private
from include.spark.jars import pyspark_home

USER = "admin"

ARCHIVE_WAIT = "10m"
"""How long its intervals wait where nobody says it: a run may begin while the stream is still starting."""

_STARTS = 3
"""How often Airflow is started at most while other programs take its port."""

_THEIRS = ("AIRFLOW_CONN_", "AIRFLOW_VAR_", "AIRFLOW__SECRETS__", "AIRFLOW__WORKERS__SECRETS_BACKEND")
"""Airflow's own variables that the embedded one takes over: connections, variables and where else to find them."""

_AIRFLOW = (sys.executable, "-P", "-m", "airflow")
"""Airflow's command: the program of that name beside Python has the folder in which it was installed in its first line,
which may have been moved or copied since. The working folder, which may be another checkout, is not imported from."""

# Task logs are read from this machine's disk, so the log servers are not needed.
PARTS = (["api-server"], ["scheduler", "--skip-serve-logs"], ["dag-processor"], ["triggerer", "--skip-serve-logs"])


def _kept(name: str, make: str) -> str:
    """Return the secret in a 0600 file of Airflow's home; `make` is written to it the first time."""
    path = settings().home / "airflow" / name
    if not path.exists():
        write_private(path, make)
    return path.read_text()


def password() -> str:
    """Return the password of the user `admin`, created the first time."""
    passwords: dict[str, str] = json.loads(_kept("passwords.json", json.dumps({USER: secrets.token_urlsafe(12)})))
    return passwords[USER]


def airflow_environment(port: int | None = None) -> dict[str, str]:
    """Return the complete environment of every Airflow process of this home folder."""
    current = settings()
    home = current.home / "airflow"
    home.mkdir(parents=True, exist_ok=True)
    password()
    port = port or process.read_state("airflow").get("port")
    metadata = current.database("airflow")
    # asyncpg takes libpq's words about TLS only in an address of its own.
    tls = {name: each for name, each in metadata.query.items() if name.startswith("ssl")}
    of_asyncpg = metadata.set(
        drivername="postgresql+asyncpg", query={"dsn": f"postgresql://?{urlencode(tls)}"} if tls else {}
    )
    fernet = _kept("fernet.key", urlsafe_b64encode(secrets.token_bytes(32)).decode())
    jwt = _kept("jwt.secret", secrets.token_hex(48))
    airflow = {
        # Another folder may link to this one, and hold DAGs beside it that are scheduled on Tidemark's assets.
        "CORE__DAGS_FOLDER": os.environ.get("AIRFLOW__CORE__DAGS_FOLDER") or str(REPOSITORY / "dags"),
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__PLUGINS_FOLDER": str(REPOSITORY / "include" / "airflow" / "plugins"),
        "CORE__PARALLELISM": os.environ.get("AIRFLOW__CORE__PARALLELISM") or "4",
        "CORE__FERNET_KEY": fernet,
        "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        "CORE__DEFAULT_TIMEZONE": "utc",
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
        "API__HOST": "127.0.0.1",
        "API__PORT": str(port),
        "API__BASE_URL": f"http://127.0.0.1:{port}",
        "API__WORKERS": "1",
        "API__SECRET_KEY": _kept("api.secret", secrets.token_hex(32)),
        "API_AUTH__JWT_SECRET": jwt,
        "DATABASE__SQL_ALCHEMY_CONN": metadata.render_as_string(hide_password=False),
        "DATABASE__SQL_ALCHEMY_CONN_ASYNC": of_asyncpg.render_as_string(hide_password=False),
        "DAG_PROCESSOR__REFRESH_INTERVAL": "30",
        "DAG_PROCESSOR__PARSING_PROCESSES": "1",
        # A file that changed is read at once. Reading all of them every 30 s took most of an idle Airflow's CPU time.
        "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "180",
        # A file that is not read in time loses its DAGs until the next time, and no run of them can begin. On a machine
        # that Spark keeps busy, the defaults of 30 and 50 s are not enough.
        "CORE__DAGBAG_IMPORT_TIMEOUT": "180",
        "DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "240",
        # One reading that fails, as of a process that was killed, does not make a file's DAGs vanish, either.
        "DAG_PROCESSOR__STALE_DAG_THRESHOLD": "900",
        "SCHEDULER__ENABLE_HEALTH_CHECK": "False",
        # A task that a killed scheduler or worker left is tried again after minutes; by default five, for each of both.
        "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "60",
        "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "120",
        # Otherwise a scheduler whose database stalls for half a minute takes itself for dead and its tasks for orphans.
        "SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "180",
        # Runs that wait for a person leave room for the streams, which it watches, too.
        "TRIGGERER__CAPACITY": "10000",
        # Otherwise a task's try is lost when the API server needs more than five seconds, as on a busy small machine.
        "WORKERS__EXECUTION_API_TIMEOUT": "30",
        "USAGE_DATA_COLLECTION__ENABLED": "False",
        "LOGGING__LOGGING_LEVEL": "INFO",
        "LOGGING__BASE_LOG_FOLDER": str(current.home / "logs" / "airflow"),
    }
    # Its Spark provider takes a name only, not a path.
    own = [str(current.spark_submit.parent)] if current.spark_submit else []
    others = {name: each for name, each in os.environ.items() if name.startswith(_THEIRS) or name[:8] != "AIRFLOW_"}
    return {
        **others,
        **{f"AIRFLOW__{key}": value for key, value in airflow.items()},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(
            {
                "conn_type": "spark",
                "host": current.spark_master,
                "extra": {"spark-binary": "spark-submit", "deploy-mode": current.spark_deploy_mode},
            }
        ),
        "TIDEMARK_HOME": str(current.home),
        "TIDEMARK_ARCHIVE_WAIT": os.environ.get("TIDEMARK_ARCHIVE_WAIT") or ARCHIVE_WAIT,
        # Its parts and its tasks ask its API server.
        **foreign.no_proxy(os.environ),
        # Its tasks submit with the Spark that is installed here, whatever the caller's shell exports.
        **({} if current.spark_submit else {"SPARK_HOME": str(pyspark_home())}),
        "PYTHONPATH": str(REPOSITORY),
        "PATH": os.pathsep.join([*own, str(Path(sys.executable).parent), os.environ["PATH"]]),
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
    }


def up() -> None:
    """Start Airflow and wait until all its parts are healthy. Raise ServiceUnreachable when they are not in 180 s."""
    process.end_left_over("airflow")
    copies.check_no_other_airflow()
    preferred = process.read_state("airflow").get("port") or 8080
    for start in range(1, _STARTS + 1):
        port = process.free_port(preferred)
        try:
            _start(port)
        except ServiceUnreachable:
            # Airflow listens half a minute after its port was found free: another program may have taken it meanwhile.
            has_ended = process.running(process.read_state("airflow")) is None
            if start == _STARTS or not has_ended or process.free_port(port) == port:
                raise
        else:
            return


def _start(port: int) -> None:
    command = [sys.executable, "-P", "-m", "include.services.airflow"]
    started = process.start_detached("airflow", command, airflow_environment(port))
    address = f"http://127.0.0.1:{port}"
    process.write_started("airflow", started, address=address, port=port)
    # Two services that start at the same time may have found the same port free.
    process.wait_until("airflow", lambda: process.listens(started, port) and not unhealthy_parts(address), started, 180)
    ensure_pool(address)


def ensure_pool(address: str) -> None:
    """Create the pool of Spark drivers; one that exists keeps its slots, and a line says if these are too few."""
    from include.services.spark import pool

    pool.ensure(address, _login())


def lack_of_slots(address: str) -> tuple[str, str] | None:
    """Return whose Spark drivers wait for ever, or that Airflow does not say it, and what to do; None for nobody's."""
    from include.services.spark import pool

    try:
        return pool.lack_of_slots(address, _login())
    except ServiceUnreachable as error:
        return error.message, error.remedy


def paused_of(address: str, dags: Iterable[str]) -> list[str]:
    """Return those of the DAGs that are paused; none when Airflow does not answer, which has an error of its own."""
    from include.services.spark import pool

    try:
        with pool.logged_in(address, _login(), "show") as client:
            answers = {name: client.get(f"/api/v2/dags/{name}") for name in dags}
    except ServiceUnreachable:
        return []
    # One that Airflow has not read yet is not there.
    return [name for name, answer in answers.items() if answer.is_success and answer.json()["is_paused"]]


def _login() -> dict[str, str]:
    return {"username": USER, "password": password()}


def unhealthy_parts(address: str) -> list[str]:
    """Return the parts of Airflow that do not report to be healthy; `api-server` alone when it does not answer."""
    import httpx

    try:
        with httpx.Client(timeout=5, mounts=PAST_PROXY) as client:
            parts = client.get(f"{address}/api/v2/monitor/health").json()
    except (httpx.HTTPError, json.JSONDecodeError):
        return ["api-server"]
    wanted = ("metadatabase", "scheduler", "triggerer", "dag_processor")
    return [name for name in wanted if (parts.get(name) or {}).get("status") != "healthy"]


def status() -> ServiceStatus:
    """Return address and health of the embedded Airflow; a healthy one has all its parts healthy."""
    state = process.read_state("airflow")
    running = process.running(state)
    if running is None:
        return ServiceStatus(state.get("address", ""), False, None)
    missing = unhealthy_parts(state["address"])
    detail = f"not healthy: {', '.join(missing)}" if missing else f"user {USER}, password in {_password_file()}"
    return ServiceStatus(state["address"], not missing, running.pid, detail=detail)


def _password_file() -> Path:
    return settings().home / "airflow" / "passwords.json"


def run_command(arguments: Sequence[str]) -> NoReturn:
    """Become Airflow's command, in the environment of the embedded Airflow.

    Raises UsageError when that was never started: the command would work on an empty database of its own.
    """
    if not process.read_state("airflow"):
        raise UsageError(
            f"no Airflow was ever started by Tidemark in {settings().home}",
            remedy="./tidemark up airflow; for an Airflow of your own, its command airflow in its environment",
        )
    environment = airflow_environment()
    # `airflow db shell` starts psql, which this machine may not have.
    environment["PATH"] += f"{os.pathsep}{postgres.folder_of_binaries()}"
    os.execve(_AIRFLOW[0], [*_AIRFLOW, *arguments], environment)


def down() -> None:
    """Stop Airflow with all its parts. Drivers of streams run detached: `supervisor.down` stops them."""
    process.stop_service("airflow")
    process.end_left_over("airflow")


def serve() -> int:
    """Run Airflow's parts until SIGTERM; when one of them ends, end the others and return 1."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if subprocess.run([*_AIRFLOW, "db", "migrate"], check=False).returncode:
        return 1
    # When this process is killed, the kernel ends the parts.
    together = ["setpriv", "--pdeathsig", "TERM", *_AIRFLOW]
    parts: list[psutil.Popen] = []
    try:
        # In here: it may be asked to end while they are started.
        parts.extend(psutil.Popen([*together, *part], stdin=subprocess.DEVNULL) for part in PARTS)
        ended, code = os.wait()
        name = next((part[0] for part, each in zip(PARTS, parts, strict=True) if each.pid == ended), "a part")
        print(f"airflow {name} ended (status {code}): ending the others", flush=True)
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # asked twice, it still ends all of these
        _end(parts, 20)
        # A scheduler that was killed leaves its workers, which hold its connection and thereby rows that it had locked:
        # every later scheduler would pass over their runs.
        _end([each for each in process.session_of(os.getpid()) if each.pid != os.getpid()], 5)


def _end(processes: Sequence[psutil.Process], seconds: float) -> None:
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.terminate()
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    for survivor in alive:
        with suppress(psutil.NoSuchProcess):
            survivor.kill()


if __name__ == "__main__":
    sys.exit(serve())
