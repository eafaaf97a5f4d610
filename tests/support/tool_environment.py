"""Programs and libraries that some tests alone need, each in an environment of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from include.settings import REPOSITORY


def tool_environment(group: str) -> Path:
    """Install a dependency group of the lock file, and return its environment's folder of programs."""
    environment = REPOSITORY / ".tidemark" / group
    uv = shutil.which("uv", path=f"{REPOSITORY / '.tidemark' / 'tools' / 'bin'}:{os.environ['PATH']}")
    assert uv, "uv is missing; start ./tidemark once, which installs it"
    subprocess.run(
        [uv, "sync", "--quiet", "--frozen", "--only-group", group, "--python", sys.executable],
        env={**os.environ, "UV_PROJECT_ENVIRONMENT": str(environment)},
        cwd=REPOSITORY,
        check=True,
    )
    return environment / "bin"
