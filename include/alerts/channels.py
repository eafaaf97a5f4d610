"""The channels that alerts go out by: a Kafka topic always, e-mail and a webhook where they are set."""

from __future__ import annotations

import json
import smtplib
from collections.abc import Mapping
from email.message import EmailMessage

import httpx
from sqlalchemy.engine import make_url

from include import kafka
from include.errors import one_line
from include.ledger.alerts import Alert, Tell
from include.settings import settings

ALERTS = "tidemark-alerts"
"""Topic of the alerts; key: pipeline, value: JSON object (`Alert.as_json`)."""

_SECONDS = 10.0
"""How long a receiver may take."""


def configured_channels() -> Mapping[str, Tell]:
    """Return the channels of this process's settings, by name."""
    current = settings()
    channels: dict[str, Tell] = {"kafka": send_message}
    if current.alert_smtp is not None and current.alert_email_to:
        channels["email"] = send_email
    if current.alert_webhook is not None:
        channels["webhook"] = post_webhook
    return channels


def send_message(alert: Alert) -> None:
    """Write an alert into the topic. Raises ServiceUnreachable."""
    kafka.create_topic(ALERTS, 1)
    kafka.send(ALERTS, [(alert.pipeline.encode(), json.dumps(alert.as_json(), sort_keys=True).encode())])


def send_email(alert: Alert) -> None:
    """Send an alert as a plain text. Raises OSError and smtplib's errors."""
    current = settings()
    assert current.alert_smtp is not None
    server = make_url(current.alert_smtp.get_secret_value())
    client = smtplib.SMTP_SSL if server.drivername == "smtps" else smtplib.SMTP
    with client(server.host or "", server.port or 0, timeout=_SECONDS) as smtp:
        if server.drivername == "smtp" and smtp.has_extn("starttls"):
            smtp.starttls()
        if server.username:
            smtp.login(server.username, server.password or "")
        smtp.send_message(_email(alert, current.alert_email_from, current.alert_email_to))


def _email(alert: Alert, sender: str, receivers: str) -> EmailMessage:
    message = EmailMessage()
    # A header ends at a line's end: what is quoted is one line.
    message["Subject"] = one_line(f"[tidemark] {alert.pipeline} {alert.state}: {alert.what}", 150)
    message["From"], message["To"] = sender, receivers
    message.set_content("\n".join(f"{name}: {one_line(str(value), 2000)}" for name, value in alert.as_json().items()))
    return message


def post_webhook(alert: Alert) -> None:
    """Post an alert as JSON; `text` is one line for chat rooms. Raises httpx's errors, also for a refusal."""
    address = settings().alert_webhook
    assert address is not None
    body = alert.as_json()
    text = f"{alert.pipeline} {alert.state}: {alert.what} ({alert.place}, since {body['since']}). {alert.todo}"
    response = httpx.post(address.get_secret_value(), json={**body, "text": one_line(text, 2000)}, timeout=_SECONDS)
    response.raise_for_status()
