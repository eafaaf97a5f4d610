"""Liveness of a Spark driver in a container, by the process's command line.

python -m include.deploy.check_driver PID

A stream is alive while its pipeline's lease is held; if another driver took it, this one ends by itself. For any other
driver, its process is all there is to check. A ledger that does not answer says nothing about the driver.
"""

from __future__ import annotations

import sys
from pathlib import Path

from include.errors import ServiceUnreachable
from include.ledger.streams import writers


def streamed_pipeline(command: list[str]) -> str | None:
    """Return the pipeline of a stream's command line; None for any other command line."""
    streams = any(part.endswith("/stream.py") for part in command) or "stream" in command
    if streams and "--pipeline" in command[:-1]:
        return command[command.index("--pipeline") + 1]
    return command[command.index("stream") + 1] if "stream" in command[:-1] else None


def main(arguments: list[str]) -> int:
    """Return 0 when the driver is alive, else 1, with the reason on standard error."""
    command = Path(f"/proc/{arguments[0]}/cmdline").read_bytes().decode(errors="replace").split("\0")
    pipeline = streamed_pipeline(command)
    try:
        if pipeline is not None and writers.live_writer(pipeline) is None:
            print(f"unhealthy: nobody holds the lease of {pipeline}", file=sys.stderr)
            return 1
    except ServiceUnreachable as error:
        print(error, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
