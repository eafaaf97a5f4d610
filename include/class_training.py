"""Makes the class archive (`include/services/class_archive.py`) by running Spark once over generated records.

`python -m include.class_training` is called by the launcher at set-up. It needs no service, and nothing depends on
it: without the archive every Spark application only starts slower.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from include.errors import TidemarkError
from include.services import class_archive
from include.settings import settings
from include.spark_submit import submission

_PATIENCE = 300
"""Seconds that the training may take on a slow machine."""


def ensure_class_archive(progress: Callable[[str], None]) -> bool:
    """Make the archive unless it is there; whether it is there now."""
    if class_archive.find():
        return True
    progress("preparing Spark's classes, once: a quarter off every later start of Spark")
    class_archive.folder().mkdir(parents=True, exist_ok=True)
    partial = class_archive.folder() / f"partial-{os.getpid()}"
    try:
        with tempfile.TemporaryDirectory(prefix="tidemark-training-", ignore_cleanup_errors=True) as folder:
            ended_well = _train(Path(folder), partial)
        if not ended_well or not partial.exists():
            progress("Spark's classes could not be prepared: its applications start without, only slower")
            return False
        class_archive.keep(partial)
    finally:
        partial.unlink(missing_ok=True)
    return True


def _train(folder: Path, archive: Path) -> bool:
    # In a folder of its own: whatever the home holds is neither read nor written.
    own = {"TIDEMARK_HOME": str(folder), "TIDEMARK_LAKE": "", "TIDEMARK_SPARK_MASTER": "local[2]"}
    before = {name: os.environ.get(name) for name in (*own, "TIDEMARK_JVM_OPTIONS")}
    os.environ.update(own, TIDEMARK_JVM_OPTIONS=f'"-XX:ArchiveClassesAtExit={archive}"')
    settings.cache_clear()
    try:
        job = submission("train_classes", name="class training", short=True)
        done = subprocess.run(
            job.command(),
            env={**os.environ, **job.env},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
        )
        return done.returncode == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        settings.cache_clear()


def main() -> int:
    """Make the archive; always 0, for everything works without it."""
    try:
        ensure_class_archive(lambda line: print(f"tidemark: {line}", file=sys.stderr, flush=True))
    except (TidemarkError, OSError) as error:
        print(f"tidemark: Spark's classes could not be prepared: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
