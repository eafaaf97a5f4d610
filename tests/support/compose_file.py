"""The compose file as Compose's own parser understands it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

import pytest

from tests.conftest import REPOSITORY

COMPOSE = REPOSITORY / "docker-compose.yml"
# The library that `docker compose` parses with, for machines without the plugin.
COMPOSE_CONFIG = REPOSITORY / "tests" / "include" / "deploy" / "compose_config"


def parser() -> list[str]:
    """The command of a real Compose parser that prints the resolved model as JSON."""
    docker = shutil.which("docker")
    if docker and subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode == 0:
        return [docker, "compose", "--file", str(COMPOSE), "config", "--format", "json"]
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if go:
        return [go, "-C", str(COMPOSE_CONFIG), "run", ".", str(COMPOSE)]
    pytest.skip("neither the docker compose plugin nor Go (for compose-go) is installed")


def parse(command: list[str], environment: Mapping[str, str | None]) -> subprocess.CompletedProcess[str]:
    """Run the parser with these variables and those that it needs itself."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "GOPROXY", "GOFLAGS", "GOCACHE") if name in os.environ}
    variables = {name: value for name, value in environment.items() if value is not None}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**kept, **variables},
        cwd=REPOSITORY,
        timeout=300,
    )
