"""A copy of the checkout with other code in it, run against the same services."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import REPOSITORY, Home


@dataclass
class Checkout:
    path: Path
    home: Home

    def edit(self, file: str, old: str, new: str) -> None:
        text = (self.path / file).read_text()
        assert old in text
        (self.path / file).write_text(text.replace(old, new))

    def run(self, *arguments: str, expect: int | None = 0, **extra: str) -> subprocess.CompletedProcess[str]:
        return self.home.run(*arguments, expect=expect, cwd=self.path, PYTHONPATH=str(self.path), **extra)

    def start(self, *arguments: str, **extra: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.home.command(*arguments),
            env=self.home.environment(PYTHONPATH=str(self.path), **extra),
            cwd=self.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def json(self, *arguments: str, **options: Any) -> Any:
        return json.loads(self.run(*arguments, **options).stdout)


@dataclass
class HomeOfCheckout(Home):
    """A home whose commands run the code of a copied checkout."""

    code: Path = Path()

    def start(self, *arguments: str, **extra: str) -> subprocess.Popen[str]:
        return Checkout(self.code, self).start(*arguments, **extra)

    def run(
        self, *arguments: str, expect: int | None = 0, cwd: Path | None = None, **extra: str
    ) -> subprocess.CompletedProcess[str]:
        code = cwd or self.code
        return super().run(*arguments, expect=expect, cwd=code, **{"PYTHONPATH": str(code), **extra})


def copy_checkout(path: Path, home: Home) -> Checkout:
    path.mkdir(parents=True)
    for name in ("include", "spark_jobs", "expectations", "dags", "pyproject.toml"):
        subprocess.run(["cp", "-r", str(REPOSITORY / name), str(path)], check=True)
    if (REPOSITORY / ".tidemark").exists():
        (path / ".tidemark").symlink_to(REPOSITORY / ".tidemark")
    return Checkout(path, home)
