"""Health checks of the containers, light enough to run every few seconds: no Airflow or Spark import.

check_health.py http URL              the URL answers with success
check_health.py part URL PART         Airflow's health page calls the part healthy
"""

from __future__ import annotations

import json
import sys
from urllib.request import ProxyHandler, build_opener


def answer(url: str) -> bytes:
    """Return the body of the URL. Raise OSError when it does not answer with success."""
    # A proxy of the environment is for addresses outside: these are of the container, or of one beside it.
    with build_opener(ProxyHandler({})).open(url, timeout=8) as response:
        body: bytes = response.read(1_000_000)
    return body


def main(arguments: list[str]) -> int:
    """Return 0 when healthy, else 1, with the reason on standard error."""
    try:
        body = answer(arguments[1])
        if arguments[0] == "part":
            status = (json.loads(body).get(arguments[2]) or {}).get("status")
            if status != "healthy":
                raise OSError(f"{arguments[2]} is {status}")
    except (OSError, ValueError) as error:
        print(f"unhealthy: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
