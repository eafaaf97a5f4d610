"""The verb `monitor`: the web pages alone, on loopback, for whoever has the token."""

from __future__ import annotations

import secrets
import signal
from pathlib import Path
from typing import Annotated

import typer

from include.cli.output import progress
from include.errors import UsageError
from include.user import user_at_host

LEAST_TOKEN = 20
"""Characters of a token that is given in a file."""


def register(app: typer.Typer) -> None:
    """Add the verb of this module to the command."""
    app.command()(monitor)


def monitor(
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="port on 127.0.0.1; 0 takes a free one")] = 8090,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="file with the token; default: a new one each time")
    ] = None,
) -> None:
    """Serve the web pages and /metrics on this machine until Ctrl-C.

    The address is printed once, with the token that opens it.
    """
    from include.monitor.live_page import serving
    from include.monitor.web.alone import app_alone

    ends = {signal.SIGINT, signal.SIGTERM}
    # Before the server's thread begins: it inherits that they are left to this one.
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    token = secrets.token_urlsafe(32) if token_file is None else _read_token(token_file)
    with serving(app_alone(token, user_at_host()), port) as address:
        print(address if token_file else f"{address}?token={token}", flush=True)
        progress("Ctrl-C ends it")
        signal.sigwait(ends)


def _read_token(path: Path) -> str:
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise UsageError(f"the token cannot be read: {path}: {error.strerror}") from error
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable():
        raise UsageError(f"{path}: a token has {LEAST_TOKEN} or more ASCII characters", remedy="openssl rand -hex 32")
    return token
