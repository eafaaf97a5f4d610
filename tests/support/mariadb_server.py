"""A real MariaDB on loopback with data of its own; as root, its package is installed where it is first needed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pymysql
import pytest

from include.services.process import free_port
from tests.conftest import wait_for

PACKAGES = ("mariadb-server-core", "mariadb-client-core")
SECRET = "canary-of-mariadb-77d0"


@dataclass(frozen=True)
class Mariadb:
    port: int

    @property
    def url(self) -> str:
        """The URL as a user writes it."""
        return f"jdbc:mariadb://127.0.0.1:{self.port}/hits"

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """Arguments for an independent client."""
        connection = pymysql.connect(
            host="127.0.0.1", port=self.port, user="writer", password=SECRET, database="hits", charset="utf8mb4"
        )
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                rows = list(cursor.fetchall())
            connection.commit()
            return rows
        finally:
            connection.close()


def _is_there() -> bool:
    return bool(shutil.which("mariadbd") and shutil.which("my_print_defaults"))


def _install() -> None:
    """Install the server. Skips where that is impossible, which fails in continuous integration."""
    if _is_there():
        return
    said = f"no mariadbd, and not root to install it: apt-get install {' '.join(PACKAGES)}"
    if os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *PACKAGES]
        for command in (install, ["apt-get", "update", "-q"], install):
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
            if _is_there():
                return
        said = f"apt-get install {' '.join(PACKAGES)}: {done.stderr.strip()[-300:]}"
    assert not os.environ.get("CI"), said
    pytest.skip(said)


@contextmanager
def serving() -> Iterator[Mariadb]:
    """A server until the end of the block, with the database `hits` and the user `writer`."""
    _install()
    # Below a short path that its own user may enter.
    with TemporaryDirectory(prefix="mariadb-", dir="/tmp") as made:
        folder, port = Path(made), free_port()
        data, socket = folder / "data", folder / "s"
        user = []
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody")
            user = ["--user=nobody"]
        install = [
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={data}",
            "--auth-root-authentication-method=normal",
        ]
        subprocess.run([*install, "--skip-test-db", *user], check=True, capture_output=True, timeout=120)
        init = folder / "init.sql"
        init.write_text(
            "CREATE DATABASE hits CHARACTER SET latin1;\n"
            f"CREATE USER writer@'127.0.0.1' IDENTIFIED BY '{SECRET}';\nGRANT ALL ON hits.* TO writer@'127.0.0.1';\n"
        )
        init.chmod(0o644)
        command = ["mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={socket}", f"--port={port}", *user]
        command += ["--bind-address=127.0.0.1", "--skip-name-resolve", "--innodb-buffer-pool-size=16M"]
        command += [f"--pid-file={folder / 'pid'}", f"--init-file={init}"]
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        server = Mariadb(port)

        def answers() -> bool:
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            try:
                return bool(server.ask("SELECT 1"))
            except pymysql.MySQLError:
                return False

        try:
            wait_for("MariaDB to answer", answers, 60)
            yield server
        finally:
            process.terminate()
            process.wait(60)
