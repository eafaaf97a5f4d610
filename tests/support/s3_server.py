"""A real S3-compatible server (SeaweedFS) with one bucket, installed from the lock file where it is first needed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyarrow import fs

from include.services.process import free_port
from include.settings import write_private
from tests.conftest import wait_for
from tests.support.tool_environment import tool_environment

BUCKET = "tidemark-lake"
PORTS = ("master", "master.grpc", "volume", "volume.grpc", "filer", "filer.grpc", "s3", "s3.grpc")


@dataclass(frozen=True)
class S3Server:
    endpoint: str
    access_key: str = "AKIDCANARY"
    secret_key: str = "canary-of-the-store-5b1f"

    @property
    def environment(self) -> dict[str, str]:
        """What a user sets."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
        }

    def filesystem(self) -> fs.S3FileSystem:
        """An own client of the store, made of nothing of the project's."""
        return fs.S3FileSystem(
            access_key=self.access_key,
            secret_key=self.secret_key,
            endpoint_override=self.endpoint,
            region="us-east-1",
            allow_bucket_creation=True,
        )


def binary() -> Path:
    """The server's program, in an environment of its own: who runs no test of it need not have it."""
    return tool_environment("s3-server") / "weed"


@contextmanager
def serving(folder: Path) -> Iterator[S3Server]:
    """A server on loopback with its data in the folder, until the end of the block."""
    ports = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
    server = S3Server(f"http://127.0.0.1:{ports['s3']}")
    credentials = [{"accessKey": server.access_key, "secretKey": server.secret_key}]
    identity = {"name": "lake", "credentials": credentials, "actions": ["Admin", "Read", "Write", "List"]}
    config = folder / "s3.json"
    write_private(config, json.dumps({"identities": [identity]}))
    command = [str(binary()), "-logtostderr=true", "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += ["-filer", "-s3", "-s3.ip.bind=127.0.0.1", f"-s3.config={config}", "-volume.max=100"]
    command += ["-master.volumeSizeLimitMB=64", "-master.electionTimeout=1s", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    for name, port in ports.items():
        part, _, grpc = name.partition(".")
        command.append(f"-{part}.port{'.grpc' if grpc else ''}={port}")
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    try:
        wait_for("the S3 server", lambda: process.poll() is not None or _has_bucket(server), 60)
        assert process.poll() is None, (folder / "server.log").read_text()[-2000:]
        yield server
    finally:
        process.kill()
        process.wait()


def _free_ports(count: int) -> list[int]:
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return sorted(found)


def _has_bucket(server: S3Server) -> bool:
    try:
        server.filesystem().create_dir(BUCKET)
    except OSError:
        return False
    return True
