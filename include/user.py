"""Who runs this process, as the ledger records it."""

from __future__ import annotations

import getpass
import socket


def user_at_host() -> str:
    """Return this process's user and host, e.g. `airflow@worker-1`."""
    return f"{getpass.getuser()}@{socket.gethostname()}"
