"""Alerts as e-mail, sent by Airflow's SMTP provider: in Airflow's tasks and in a command's process alike."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from include.alerts.message import message_of
from include.errors import UsageError, one_line
from include.settings import settings

if TYPE_CHECKING:
    from airflow.providers.smtp.hooks.smtp import SmtpHook
    from airflow.sdk import Connection

    from include.ledger.alerts import Alert

SECONDS = 10
"""How long a mail server may take."""

_KEPT_LIMITS = {"retry_limit": 1}
"""The provider's extras where a connection that Airflow keeps has none: by its own default, 5, it waits 3 minutes for a
server that hangs, nearly as long as a task `watch` may take."""

_SENDER = "tidemark@localhost"
_AS_LIBRARY = "_AIRFLOW__AS_LIBRARY"
_WORDS = {"true": True, "false": False}


def send_email(alert: Alert) -> None:
    """Send an alert. Raises UsageError for a connection that is not known, OSError and the provider's errors."""
    current = settings()
    with _hook() as smtp:
        smtp.send_email_smtp(
            to=[each.strip() for each in current.alert_email_to.split(",") if each.strip()],
            from_email=current.alert_email_from or smtp.from_email or _SENDER,
            # A header ends at a line's end, so quoted text is reduced to one line.
            subject=one_line(f"[tidemark] {alert.pipeline} {alert.state}: {alert.what}", 150),
            html_content=_as_html(alert),
        )


def _as_html(alert: Alert) -> str:
    from markupsafe import Markup

    row = Markup('<tr><th align="left" valign="top">{}</th><td>{}</td></tr>')
    rows = (row.format(name, one_line(str(value), 2000)) for name, value in message_of(alert).items())
    return "<table>\n{}\n</table>\n".format("\n".join(rows))


def _hook() -> SmtpHook:
    """Return the provider's hook for the mail server of the settings.

    Importing it and Airflow takes a second, so only sending a mail does that.
    """
    # Outside of Airflow, importing it creates its home folder.
    os.environ.setdefault("AIRFLOW_HOME", str(settings().home / "airflow"))
    # As a program it would also write this process's log in its own way, to standard output, where JSON goes. What
    # this process starts later may be that program.
    as_it_was = os.environ.get(_AS_LIBRARY)
    os.environ[_AS_LIBRARY] = "true"
    try:
        from airflow.providers.smtp.hooks.smtp import SmtpHook
        from airflow.sdk.exceptions import AirflowNotFoundException
    finally:
        if as_it_was is None:
            del os.environ[_AS_LIBRARY]
        else:
            os.environ[_AS_LIBRARY] = as_it_was

    class Hook(SmtpHook):
        @classmethod
        def get_connection(cls, conn_id: str) -> Connection:  # noqa: ARG003
            address = settings().alert_smtp
            assert address is not None
            url = address.get_secret_value()
            if not url.startswith("airflow://"):
                return connection_of(url)
            name = urlsplit(url).netloc
            try:
                kept = SmtpHook.get_connection(name)
            except AirflowNotFoundException:
                raise UsageError(
                    f"Airflow's connection {name} of TIDEMARK_ALERT_SMTP is not known here",
                    remedy=f"{settings().airflow_command()} connections add {name} …, or AIRFLOW_CONN_{name.upper()}; "
                    "outside of Airflow the DAG watch sends the mail",
                ) from None
            kept.extra = json.dumps(_KEPT_LIMITS | kept.extra_dejson)
            return kept

    return Hook()


def connection_of(url: str) -> Connection:
    """Return the connection of a mail server's URL; parameters of the URL are the provider's extras.

    A password is sent over TLS only, unless the URL has `disable_tls=true`.
    """
    from airflow.sdk import Connection
    from airflow.sdk.log import mask_secret

    scheme, _, rest = url.partition("://")
    connection = Connection.from_uri(f"smtp://{rest}", conn_id="tidemark_alerts")
    is_encrypted = scheme == "smtps"
    extras: dict[str, Any] = {
        "disable_ssl": not is_encrypted,
        "disable_tls": is_encrypted or not connection.password,
        "timeout": SECONDS,
        # The alert is kept, and the next process that looks sends it.
        "retry_limit": 0,
    }
    extras |= {name: _WORDS.get(str(value).lower(), value) for name, value in connection.extra_dejson.items()}
    connection.extra = json.dumps(extras)
    if connection.password:
        mask_secret(connection.password)
    return connection
