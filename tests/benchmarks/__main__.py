"""`./tidemark bench [NAME]`: runs benchmarks on services of their own and prints their ratios as JSON."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
BENCHMARKS = ("archive",)


def run(name: str, events: int, rounds: int) -> dict[str, Any]:
    """One benchmark on fresh embedded services; its JSON result."""
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-", ignore_cleanup_errors=True) as folder:
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("TIDEMARK_")},
            "TIDEMARK_HOME": folder,
            "TIDEMARK_DRIVER_MEMORY": "3g",
            "PYTHONPATH": str(REPOSITORY),
            "TZ": "UTC",
        }
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "include.cli"]
        quiet = {"env": environment, "cwd": REPOSITORY, "stdout": subprocess.DEVNULL, "check": True}
        try:
            subprocess.run([*command, "up"], **quiet)  # type: ignore[call-overload]
            produce = ["produce", "nest_cameras", "--events", str(events), "--bad-fraction", "0.01"]
            subprocess.run([*command, *produce], **quiet)  # type: ignore[call-overload]
            arguments = ["--rounds", str(rounds), "--result", str(result)]
            script = Path(__file__).with_name(f"{name}_throughput.py")
            subprocess.run([sys.executable, str(script), *arguments], **quiet)  # type: ignore[call-overload]
            found: dict[str, Any] = json.loads(result.read_text())
            return found
        finally:
            subprocess.run([*command, "down"], env=environment, cwd=REPOSITORY, check=False, stderr=subprocess.DEVNULL)


def main() -> None:
    """Arguments to JSON on standard output."""
    parser = argparse.ArgumentParser(prog="./tidemark bench", description=__doc__)
    parser.add_argument("name", nargs="?", choices=BENCHMARKS)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    names = [arguments.name] if arguments.name else list(BENCHMARKS)
    print(json.dumps({name: run(name, arguments.events, arguments.rounds) for name in names}, indent=2))


if __name__ == "__main__":
    main()
