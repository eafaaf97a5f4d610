"""Write the `.env` of `docker-compose.yml`: fresh random secrets and the published ports, mode 0600.

    python include/deploy/generate_env.py [--force] [--bucket] [--name NAME] [PATH]

It needs nothing but Python, so that it runs where only Docker is installed. An existing file is kept:
the databases that were created with its passwords would not open with others. `--bucket` has Compose
start an S3 server, with a bucket for the lake. `--name` is that of Compose's project: a second checkout on
one machine needs another one, or it takes over the containers and volumes of the first.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import sys
from base64 import urlsafe_b64encode
from pathlib import Path

DEFAULT = Path(__file__).resolve().parents[2] / ".env"

NAME = "tidemark"
"""Of Compose's project: its containers, volumes and image have it."""

PORTS = {
    "AIRFLOW_PORT": 8080,
    "KAFKA_PORT": 9094,
    "POSTGRES_PORT": 5433,
    "REGISTRY_PORT": 8085,
    "SPARK_MASTER_UI_PORT": 8086,
    "PROMETHEUS_PORT": 9090,
    "GRAFANA_PORT": 3000,
}
"""Ports published on this machine's loopback address; change them in `.env`."""


def make_secrets() -> dict[str, str]:
    """Return a fresh value for every secret of the compose file, URL-safe where it becomes part of a URL."""
    return {
        "POSTGRES_SUPERUSER_PASSWORD": secrets.token_hex(24),
        "TIDEMARK_DB_PASSWORD": secrets.token_hex(24),
        "REGISTRY_DB_PASSWORD": secrets.token_hex(24),
        "KAFKA_CLUSTER_ID": urlsafe_b64encode(b"\x40" + secrets.token_bytes(15)).decode().rstrip("="),
        "AIRFLOW_FERNET_KEY": urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "AIRFLOW_API_SECRET_KEY": secrets.token_hex(32),
        "AIRFLOW_JWT_SECRET": secrets.token_hex(48),
        "AIRFLOW_PASSWORDS": json.dumps({"admin": secrets.token_urlsafe(15)}),
        "MONITOR_TOKEN": secrets.token_hex(32),
        "GRAFANA_PASSWORD": secrets.token_urlsafe(18),
    }


def bucket_variables() -> dict[str, str]:
    """Return what starts the compose file's own S3 server and puts the lake there, with a fresh secret."""
    return {
        "COMPOSE_PROFILES": "bucket",
        "TIDEMARK_LAKE": "s3a://tidemark/lake",
        "AWS_ENDPOINT_URL": "http://s3:8333",
        "AWS_ACCESS_KEY_ID": "tidemark",
        "AWS_SECRET_ACCESS_KEY": secrets.token_hex(24),
    }


def environment(*, bucket: bool = False, name: str = NAME) -> str:
    """Return the text of the file; single quotes keep Compose from reading `$` or `#` in a value."""
    lines = ["# Made by include/deploy/generate_env.py. Secrets: keep it 0600 and out of version control."]
    lines += [f"COMPOSE_PROJECT_NAME='{name}'"]
    lines += [f"{name}='{value}'" for name, value in make_secrets().items()]
    lines += ["", "# Ports on 127.0.0.1"]
    lines += [f"{name}={port}" for name, port in PORTS.items()]
    if bucket:
        lines += ["", "# The lake in a bucket of the S3 server that the profile starts"]
        lines += [f"{name}='{value}'" for name, value in bucket_variables().items()]
    return "\n".join(lines) + "\n"


def write_environment(path: Path, *, force: bool = False, bucket: bool = False, name: str = NAME) -> None:
    """Write the file with mode 0600. Raise FileExistsError when it exists and `force` is not given."""
    if path.exists() and not force:
        raise FileExistsError(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(environment(bucket=bucket, name=name))
    temporary.replace(path)


def _project(text: str) -> str:
    """Return a name that Compose takes, also as that of an image. Raise ValueError for any other text."""
    if not re.fullmatch("[a-z0-9]+((__?|-+)[a-z0-9]+)*", text):
        raise ValueError(text)
    return text


def main(arguments: list[str] | None = None) -> int:
    """Write the file and return 0, or 64 when it exists and `--force` was not given."""
    parser = argparse.ArgumentParser(description="Write the .env of docker-compose.yml with fresh secrets.")
    parser.add_argument("path", nargs="?", type=Path, default=DEFAULT)
    parser.add_argument("--force", action="store_true", help="replace an existing file and its secrets")
    parser.add_argument("--bucket", action="store_true", help="start an S3 server, and have the lake in its bucket")
    parser.add_argument("--name", type=_project, default=NAME, help="name of Compose's project, one for each checkout")
    options = parser.parse_args(arguments)
    try:
        write_environment(options.path, force=options.force, bucket=options.bucket, name=options.name)
    except FileExistsError:
        print(
            f"{options.path} exists and was kept — --force replaces it, but databases created with its "
            "passwords will not open with new ones (docker compose down --volumes removes all data of the project "
            "that it names)",
            file=sys.stderr,
        )
        return 64
    print(f"wrote {options.path} (0600); Airflow's password for admin is AIRFLOW_PASSWORDS in it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
