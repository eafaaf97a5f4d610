"""A real S3-compatible server (SeaweedFS) with one bucket, installed from the lock file where it is first needed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
from pyarrow import fs

from include.services.process import free_port
from include.settings import write_private
from tests.conftest import Home, wait_for
from tests.support.tool_environment import tool_environment

BUCKET = "tidemark-lake"
HOP_BY_HOP = ("connection", "content-length", "expect", "transfer-encoding")
CONDITIONS = ("if-none-match", "if-match")
NOT_IMPLEMENTED = (
    b"<Error><Code>NotImplemented</Code><Message>A header you provided implies functionality that is not implemented."
    b"</Message></Error>"
)
SIGNATURES = (
    "authorization",
    "content-encoding",
    "x-amz-content-sha256",
    "x-amz-date",
    "x-amz-decoded-content-length",
    "x-amz-sdk-checksum-algorithm",
    "x-amz-trailer",
)
"""Headers of a request about its signature, and about a body in signed chunks."""
PORTS = ("master", "master.grpc", "volume", "volume.grpc", "filer", "filer.grpc", "s3", "s3.grpc")


@dataclass(frozen=True)
class S3Server:
    endpoint: str
    access_key: str = "AKIDCANARY"
    secret_key: str = "canary-of-the-store-5b1f"

    @property
    def environment(self) -> dict[str, str]:
        """Return the settings of a user."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
        }

    def filesystem(self) -> fs.S3FileSystem:
        """Return a client of the store that uses none of the project's code."""
        return fs.S3FileSystem(
            access_key=self.access_key,
            secret_key=self.secret_key,
            endpoint_override=self.endpoint,
            region="us-east-1",
            allow_bucket_creation=True,
        )


@dataclass
class BucketHome(Home):
    """A home whose lake is in the bucket."""

    server: S3Server

    def environment(self, **extra: str) -> dict[str, str]:
        lake = {"TIDEMARK_LAKE": f"s3://{BUCKET}/tidemark", **self.server.environment}
        return super().environment(**{**lake, **extra})


def binary() -> Path:
    """Return the server's program, in an environment of its own, which only its tests need."""
    return tool_environment("s3-server") / "weed"


@dataclass
class RunningServer:
    """The program of a server on loopback, which may be killed and started again with its data, ports and users."""

    folder: Path
    server: S3Server
    ports: dict[str, int]
    knows_users: bool = True
    _process: subprocess.Popen[bytes] | None = None

    @classmethod
    def below(cls, folder: Path, *, knows_users: bool = True) -> RunningServer:
        """Return a server, not started yet, with its data in the folder."""
        ports = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
        return cls(folder, S3Server(f"http://127.0.0.1:{ports['s3']}"), ports, knows_users)

    def start(self, secret_key: str = "") -> None:
        """Start the program and wait until it serves the bucket; `secret_key`: the one it accepts in place of ours."""
        accepted = replace(self.server, secret_key=secret_key or self.server.secret_key)
        with (self.folder / "server.log").open("a") as log:
            process = subprocess.Popen(self._command(accepted), stdout=log, stderr=subprocess.STDOUT, cwd=self.folder)
        self._process = process
        wait_for("the S3 server", lambda: process.poll() is not None or _has_bucket(accepted), 60)
        assert process.poll() is None, (self.folder / "server.log").read_text()[-2000:]

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _command(self, accepted: S3Server) -> list[str]:
        command = [str(binary()), "-logtostderr=true", "server", f"-dir={self.folder}", "-ip=127.0.0.1"]
        # A bucket that does not exist is not made by writing to it, as in AWS.
        command += ["-ip.bind=127.0.0.1", "-filer", "-s3", "-s3.ip.bind=127.0.0.1", "-s3.autoCreateBucket=false"]
        if self.knows_users:
            credentials = [{"accessKey": accepted.access_key, "secretKey": accepted.secret_key}]
            identity = {"name": "lake", "credentials": credentials, "actions": ["Admin", "Read", "Write", "List"]}
            config = self.folder / "s3.json"
            write_private(config, json.dumps({"identities": [identity]}))
            command.append(f"-s3.config={config}")
        command += ["-volume.max=100", "-master.volumeSizeLimitMB=64", "-master.electionTimeout=1s"]
        command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
        for name, port in self.ports.items():
            part, _, grpc = name.partition(".")
            command.append(f"-{part}.port{'.grpc' if grpc else ''}={port}")
        return command


@contextmanager
def serving(folder: Path, *, knows_users: bool = True) -> Iterator[S3Server]:
    """A server on loopback with its data in the folder, until the end of the block; without users it serves anybody."""
    running = RunningServer.below(folder, knows_users=knows_users)
    try:
        running.start()
        yield running.server
    finally:
        running.kill()


@contextmanager
def without_conditions(store: S3Server, *, answers_501: bool = False) -> Iterator[S3Server]:
    """Yield the store like one without conditional puts: `If-None-Match` does not reach it, or is answered with 501.

    It must not have users: a signature would cover this header, so requests are passed on without one.
    """

    class Forgetful(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if "x-amz-decoded-content-length" in self.headers:
                body = _without_chunks(body)
            if answers_501 and any(name.lower() in CONDITIONS for name in self.headers):
                self.send_response(501)
                self.send_header("Content-Length", str(len(NOT_IMPLEMENTED)))
                self.end_headers()
                self.wfile.write(NOT_IMPLEMENTED)
                return
            dropped = (*CONDITIONS, *SIGNATURES, *HOP_BY_HOP)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
            url = store.endpoint + self.path
            answer = clients.request(self.command, url, headers=headers, content=body, timeout=60)
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            length = answer.headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(answer.content))
            self.send_header("Content-Length", length)
            self.end_headers()
            self.wfile.write(answer.content)

        def __getattr__(self, name: str) -> Any:
            # Every method is forwarded: the base class asks for `do_GET` and the like.
            if name.startswith("do_"):
                return self.forward
            raise AttributeError(name)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with httpx.Client() as clients, ThreadingHTTPServer(("127.0.0.1", free_port()), Forgetful) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield replace(store, endpoint=f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


def _without_chunks(body: bytes) -> bytes:
    """Return the content of a body of AWS's chunks: `SIZE[;chunk-signature=…]`, the bytes, until one of no size."""
    content = b""
    while True:
        head, _, body = body.partition(b"\r\n")
        size = int(head.split(b";")[0], 16)
        if not size:
            return content
        content, body = content + body[:size], body[size + 2 :]


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
