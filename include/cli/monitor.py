"""`monitor`, the web pages alone for whoever has the token, and the group `alerts`."""

from __future__ import annotations

import os
import secrets
import signal
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from include.cli import AsJson
from include.cli.output import console, print_facts, print_json, progress, suggest
from include.errors import TidemarkError, UsageError
from include.ledger.alerts import DISMISSED, Alert, latest_alerts, open_alerts
from include.monitor.open_alerts import dismiss_command
from include.monitor.text import duration
from include.pipelines import load_pipeline
from include.processes import user_at_host
from include.times import format_time

LATEST = 50
"""How many alerts are listed with those that are over."""

LEAST_TOKEN = 20
"""Least characters of a token in a file."""

alerts = typer.Typer(
    help="Alerts to operators: list the open ones, and dismiss those that nobody will resolve.", no_args_is_help=True
)


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
    # Before the server's thread begins: it inherits the mask, so that these signals reach this thread only.
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    token = secrets.token_urlsafe(32) if token_file is None else _read_token(token_file)
    with serving(app_alone(token, user_at_host()), port) as address:
        print(address if token_file else f"{address}?token={token}", flush=True)
        progress("Ctrl-C ends it")
        signal.sigwait(ends)
    # Python would wait for the thread of a reading that hangs, and the signals stay blocked.
    os._exit(0)


@alerts.command(name="list")
def list_alerts(
    pipeline: Annotated[str, typer.Argument(metavar="[PIPELINE]", help="name of a declared pipeline")] = "",
    everything: Annotated[bool, typer.Option("--all", help="the latest 50, including those that are over")] = False,
    as_json: AsJson = False,
) -> None:
    """Alerts that are open, oldest first: what, where, since when, what to do, and the key to dismiss each."""
    name = _name_of(pipeline) if pipeline else ""
    if everything:
        alerts = latest_alerts(name, LATEST)
    else:
        alerts = [each for each in open_alerts() if name in ("", each.pipeline)]
    if as_json:
        print_json([{"key": each.key, **each.as_json()} for each in alerts])
        return
    if not alerts:
        console.print("there was no alert" if everything else "no alert is open")
        return
    now = datetime.now(UTC)
    for each in alerts:
        print_facts(_facts(each, now))
        console.print()
    if not everything:
        suggest(dismiss_command(alerts[0]))


def _name_of(pipeline: str) -> str:
    """Return the name of a declared pipeline, or of one that has had an alert: its declaration may be refused, or gone.

    Raises UsageError.
    """
    try:
        return load_pipeline(pipeline).name
    except TidemarkError:
        with suppress(TidemarkError):
            if latest_alerts(pipeline, 1):
                return pipeline
        raise


def _facts(alert: Alert, now: datetime) -> dict[str, object]:
    over = {"over at": format_time(alert.over_at)} if alert.over_at else {}
    dismissed = {name.replace("_", " "): alert.facts[name] for name in DISMISSED if name in alert.facts}
    return {
        "key": alert.key,
        "pipeline": alert.pipeline,
        "what": alert.what,
        "where": alert.extent,
        "since": f"{format_time(alert.since)}, {duration(now - alert.since)} ago",
        "to do": alert.todo,
        **over,
        **dismissed,
    }


@alerts.command()
def dismiss(
    key: Annotated[str, typer.Argument(metavar="KEY", help="key of an open alert")],
    why: Annotated[str, typer.Option("--reason", help="why, in words; it is recorded and sent")],
) -> None:
    """Close an alert whose end no check will find; who and why is recorded, and sent on its channels."""
    # The channels take longer to import than a list takes.
    from include import alerts

    alerts.dismiss(key, by=user_at_host(), reason=why)
    progress(f"dismissed: {key}")


def _read_token(path: Path) -> str:
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise UsageError(f"the token cannot be read: {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        token = ""
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable():
        raise UsageError(f"{path}: a token has {LEAST_TOKEN} or more ASCII characters", remedy="openssl rand -hex 32")
    return token
