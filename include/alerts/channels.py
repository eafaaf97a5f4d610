"""The channels of alerts: always a Kafka topic, e-mail and a webhook if they are set."""

from __future__ import annotations

import json
import smtplib
import ssl
from collections.abc import Mapping
from html import escape
from typing import Literal

import httpx
from httpx import codes

from include import kafka
from include.alerts.mail import SECONDS, send_email
from include.alerts.message import message_of
from include.errors import MessageRefused, one_line
from include.ledger.alerts import Alert
from include.ledger.alerts.noted import Send
from include.settings import settings

ALERTS = "tidemark-alerts"
"""Topic of the alerts; key: pipeline, value: JSON object (`message_of`)."""


def configured_channels() -> Mapping[str, Send]:
    """Return the channels of this process's settings, by name."""
    current = settings()
    channels: dict[str, Send] = {"kafka": send_message}
    if current.alert_smtp is not None and current.alert_email_to:
        channels["email"] = send_email
    if current.alert_webhook is not None:
        channels["webhook"] = post_webhook
    return channels


Failure = Literal["refused", "answered", "away"]
"""Whether a receiver refused this message only, answered otherwise, or takes none at present."""

_ABOUT_THE_MESSAGE = {codes.BAD_REQUEST, codes.REQUEST_ENTITY_TOO_LARGE, codes.UNPROCESSABLE_ENTITY}
"""Answers of a web server that takes other messages."""

_NOT_NOW = {codes.TOO_MANY_REQUESTS, codes.SERVICE_UNAVAILABLE}
"""Answers of a web server that takes no message at present."""

_SMTP_CLOSING = 421


def failure_of(error: Exception) -> Failure:
    """Return what a channel's error says about the next message.

    An answer with another status may be about this message's text, which a filter dislikes, or about every message.
    """
    match error:
        case httpx.HTTPStatusError(response=response) if response.status_code in _ABOUT_THE_MESSAGE:
            return "refused"
        case httpx.HTTPStatusError(response=response) if response.status_code not in _NOT_NOW:
            return "answered"
        case smtplib.SMTPDataError(smtp_code=code) if code != _SMTP_CLOSING:
            return "refused" if code >= 500 else "answered"
        case MessageRefused():
            return "refused"
    return "away"


def send_message(alert: Alert) -> None:
    """Write an alert into the topic. Raises ServiceUnreachable, MessageRefused."""
    kafka.create_topic(ALERTS, 1)
    kafka.send(ALERTS, [(alert.pipeline.encode(), json.dumps(message_of(alert), sort_keys=True).encode())])


def post_webhook(alert: Alert) -> None:
    """Post an alert as JSON; `text` is one line for chat rooms. Raises httpx's errors, even for a refusal.

    In `text` alone `&`, `<` and `>` are escaped: in a chat room they would make links and mentions of what data says.
    """
    address = settings().alert_webhook
    assert address is not None
    body = message_of(alert)
    where = f"{alert.place}, since {body['since']}; {body['ledger']}, {body['lake']}"
    text = f"{alert.pipeline} {alert.state}: {alert.what} ({where}). {alert.todo}"
    line = escape(one_line(text, 2000), quote=False)
    # As for mail, the machine's authorities, to which an organisation adds its own; httpx has a list of others.
    trusted = ssl.create_default_context()
    response = httpx.post(address.get_secret_value(), json={**body, "text": line}, timeout=SECONDS, verify=trusted)
    response.raise_for_status()
