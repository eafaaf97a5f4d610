"""Send an attempt's lineage to the receiver in the settings, if any; an interval neither waits nor fails for it."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from include.intervals.verdict import Verdict
from include.ledger.intervals import attempts
from include.pipelines.spec import Pipeline
from include.settings import settings

if TYPE_CHECKING:
    from openlineage.client.transport import Transport

_SECONDS = 5.0
"""How long a receiver may take."""

_log = logging.getLogger(__name__)


def send_lineage(pipeline: Pipeline, attempt: int, verdict: Verdict) -> int:
    """Send the events of an attempt that has ended, and return how many were sent: none if no receiver is set.

    A receiver that cannot be reached is logged; announcing the attempt again sends the same events again.
    """
    current = settings()
    if current.openlineage_url is None:
        return 0
    # Imported here, because most processes have nothing to send.
    from include.intervals.reporting.lineage_events import AttemptTold, events_of

    sent = 0
    try:
        times = attempts.attempt_times(attempt)
        told = AttemptTold(pipeline, attempt, verdict, *times, current.lake_uri, current.kafka_address())
        transport = _transport(current.openlineage_url.get_secret_value())
        with closing(transport):
            for event in events_of(told):
                transport.emit(event)
                sent += 1
    except Exception as error:
        # Whatever a receiver does: what was registered stays registered. Its address may be in the text of the error.
        _log.warning("%s: lineage of attempt %d was not taken: %s", pipeline.name, attempt, type(error).__name__)
    return sent


def _transport(url: str) -> Transport:
    from openlineage.client.transport.file import FileConfig, FileTransport
    from openlineage.client.transport.http import ApiKeyTokenProvider, HttpConfig, HttpTransport

    parts = urlsplit(url)
    if parts.scheme == "file":
        return FileTransport(FileConfig(log_file_path=url, append=True))
    address = parts._replace(netloc=parts.netloc.rpartition("@")[2], path="").geturl()
    config = HttpConfig(url=address, endpoint=parts.path.strip("/") or "api/v1/lineage", timeout=_SECONDS)
    # By default it tries six times, each with this timeout.
    config.retry = {"total": 1}
    if parts.password:
        config.auth = ApiKeyTokenProvider({"api_key": unquote(parts.password)})
    return HttpTransport(config)
