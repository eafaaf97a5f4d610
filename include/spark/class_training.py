"""Makes the class archive (`include/spark/class_archive.py`) by running Spark once over generated records.

`python -m include.spark.class_training` is called by the launcher at set-up. It needs no service, and nothing
depends on it: without the archive every Spark application only starts slower.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from include.errors import TidemarkError, asking_owner, one_line
from include.settings import REPOSITORY
from include.spark import class_archive
from include.spark.driver_lines import DriverLines, first_error
from include.spark.submission import submission

_PATIENCE = 300
"""Seconds that the training may take on a slow machine."""

_TRAIN = "train"
"""Argument with which the module runs the training itself."""


def ensure_class_archive(progress: Callable[[str], None]) -> bool:
    """Make the archive unless it exists, and return whether it exists now.

    Raises UsageError where this user may not write it.
    """
    if class_archive.find():
        return True
    progress("preparing Spark's classes, once: this saves a quarter of every later start of Spark")
    with asking_owner("Spark's classes are not prepared"):
        failure = _make_archive()
    if failure:
        progress(f"Spark's classes could not be prepared, its applications only start slower without them: {failure}")
    return not failure


def _make_archive() -> str:
    """Make the archive, and return why it could not be made; empty when it was."""
    place = class_archive.folder()
    place.mkdir(parents=True, exist_ok=True)
    partial = place / f"partial-{os.getpid()}"
    try:
        # Not in the system's folder, from which nothing can be run on some hosts: Spark unpacks libraries in it.
        with tempfile.TemporaryDirectory(prefix="training-", dir=place, ignore_cleanup_errors=True) as folder:
            failure = _train(Path(folder), partial)
        if failure or not partial.exists():
            return failure or "Java has not written them"
        class_archive.keep(partial)
    finally:
        partial.unlink(missing_ok=True)
    return ""


def _train(folder: Path, archive: Path) -> str:
    """Run Spark over generated records in a process of its own, and return why it failed; empty when it did not."""
    environment = {
        **os.environ,
        # In a folder of its own: whatever the home holds is neither read nor written.
        "TIDEMARK_HOME": str(folder),
        "TIDEMARK_LAKE": "",
        "TIDEMARK_SPARK_MASTER": "local[2]",
        "TIDEMARK_JVM_OPTIONS": f'"-XX:ArchiveClassesAtExit={archive}"',
        "PYTHONPATH": str(REPOSITORY),
    }
    with subprocess.Popen(
        [sys.executable, "-m", "include.spark.class_training", _TRAIN],
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as training:
        try:
            output, _ = training.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            return f"it took longer than {_PATIENCE} s"
        finally:
            # All of its processes: they would write on in a folder that goes.
            if training.poll() is None:
                os.killpg(training.pid, signal.SIGKILL)
    return _reason(output, training.returncode) if training.returncode else ""


def _reason(output: str, code: int) -> str:
    """Return what the driver said last of its own, else the first error that Java or Spark named."""
    lines = DriverLines()
    for line in output.splitlines():
        lines.note(line)
    return one_line(lines.own or first_error(output, f"it ended with exit code {code}"))


def _become_training() -> None:
    """Replace this process by the Spark application, with the settings of its environment."""
    job = submission("train_classes", name="class training", short=True)
    command = job.command()
    os.execve(command[0], command, {**os.environ, **job.env})


def main(argv: list[str]) -> int:
    """Make the archive, or with `train` run the training; return 0 even on failure, as all works without it."""
    try:
        if argv == [_TRAIN]:
            _become_training()
        # A set-up that fails ends this: what lies in the checkout by then goes first.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        ensure_class_archive(lambda line: print(f"tidemark: {line}", file=sys.stderr, flush=True))
    except (TidemarkError, OSError) as error:
        print(f"tidemark: Spark's classes could not be prepared: {error}", file=sys.stderr)
        return 1 if argv else 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
