"""A receiver that is away delays no alert on the others: it is waited for once, however many alerts are open."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from dags.watch import watch_everything
from include import alerts
from include.alerts import MOST_FAILURES
from include.alerts.channels import post_webhook
from include.ledger.alerts import Alert, open_alerts
from include.services.process import free_port
from include.times import Interval
from tests.conftest import Home, SetSettings, settings_of
from tests.support.attempts import build_and_register
from tests.support.json_server import answering
from tests.support.receivers import Received, listening, tls_in, trust

pytestmark = pytest.mark.services

PIPELINES = ("auction_bids", "gps_positions", "isp_hits", "nest_cameras")
SINCE = datetime(2026, 11, 20, 5, 20, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def closed(postgres: Home) -> Iterator[Received]:
    """A mail server that works, while Kafka and the webhook are closed ports."""
    with listening() as received:
        away = f"127.0.0.1:{free_port()}"
        channels = {"ALERT_SMTP": received.smtp, "ALERT_EMAIL_TO": "on-call@example.org"}
        channels |= {"ALERT_WEBHOOK": f"http://{away}/hook", "KAFKA_BOOTSTRAP": away}
        with settings_of(postgres, **{f"TIDEMARK_{name}": value for name, value in channels.items()}):
            yield received


def alert(name: str, what: str = "the archive is behind") -> Alert:
    return Alert(f"test/{name}", name, what, "interval 05", SINCE, "look at the stream")


def tries(caplog: pytest.LogCaptureFixture) -> tuple[int, int]:
    """How often Kafka and the webhook were tried in vain since the last call."""
    counted = tuple(sum(f"not sent by {name}" in line for line in caplog.messages) for name in ("kafka", "webhook"))
    caplog.clear()
    return counted[0], counted[1]


def test_channel_is_tried_once_when_it_is_away_and_many_alerts_are_unsent(
    closed: Received, caplog: pytest.LogCaptureFixture
) -> None:
    with alerts.sent_together():
        for number in range(5):
            assert alerts.raise_alert(alert(f"many-{number}"))
        assert closed.mails == []
    assert [mail["Subject"] for mail in closed.mails] == [
        f"[tidemark] many-{number} raised: the archive is behind" for number in range(5)
    ]
    assert tries(caplog) == (1, 1)
    # They stay unsent for the channels that were away.
    assert alerts.send_unsent() == 0
    assert tries(caplog) == (1, 1)
    with alerts.sent_together():
        assert all(alerts.recover(f"test/many-{number}") for number in range(5))
    assert len(closed.mails) == 10
    # No channel that was away has anything to send of an alert that is over.
    assert tries(caplog) == (0, 0)


def test_every_pipeline_is_watched_and_channels_are_tried_once_when_they_are_away(
    closed: Received, caplog: pytest.LogCaptureFixture
) -> None:
    closed.mails.clear()
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    for name in PIPELINES:
        build_and_register(name, Interval(now - 6 * HOUR, now - 5 * HOUR))
    looked = watch_everything(lambda dag, run: {})["pipelines"]
    assert [name for name in PIPELINES if not looked[name]["overdue"]] == []
    assert len(open_alerts("overdue/")) == len(closed.mails) == len(PIPELINES)
    assert tries(caplog) == (1, 1)


def test_alerts_of_a_block_are_sent_when_it_fails(closed: Received) -> None:
    closed.mails.clear()

    def fail_after_one() -> None:
        with alerts.sent_together():
            alerts.raise_alert(alert("half"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_one()
    assert [mail["Subject"] for mail in closed.mails] == ["[tidemark] half raised: the archive is behind"]
    alerts.recover("test/half")


def test_refused_message_holds_back_no_other_when_the_receiver_answers(postgres: Home) -> None:
    with listening() as received, settings_of(postgres, TIDEMARK_ALERT_WEBHOOK=received.webhook):
        received.refused_text = "odd"
        with alerts.sent_together():
            alerts.raise_alert(alert("refused", "an odd error"))
            alerts.raise_alert(alert("taken"))
        assert "taken" in [each["pipeline"] for each in received.posts]
        assert "refused" not in [each["pipeline"] for each in received.posts]
        received.refused_text = ""
        alerts.send_unsent()
        assert "refused" in [each["pipeline"] for each in received.posts]


def test_alert_that_a_receiver_never_takes_holds_back_no_newer_one_when_it_answers(
    postgres: Home, caplog: pytest.LogCaptureFixture
) -> None:
    newer = [f"newer-{number}" for number in range(MOST_FAILURES + 2)]
    with listening() as received, settings_of(postgres, TIDEMARK_ALERT_WEBHOOK=received.webhook):
        received.refused_text, received.refused_status = "SELECT", 403
        with alerts.sent_together():
            alerts.raise_alert(alert("filtered", "near SELECT: no such column"))
            for name in newer:
                alerts.raise_alert(alert(name))
        assert [each["pipeline"] for each in received.posts] == newer
        assert tries(caplog)[1] == 1
        received.refused_text = ""
        with alerts.sent_together():
            assert all(alerts.recover(f"test/{name}") for name in newer)
        assert [each["pipeline"] for each in received.posts[len(newer) :]] == [*newer, "filtered"]
    alerts.recover("test/filtered")


def test_webhook_is_trusted_when_the_machine_trusts_its_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_settings: SetSettings
) -> None:
    tls, certificate = tls_in(tmp_path)
    posted: list[object] = []
    with answering(lambda _, path, body: (posted.append(body["pipeline"]), (200, path))[1], tls) as address:
        set_settings(TIDEMARK_ALERT_WEBHOOK=f"{address}/hook")
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            post_webhook(alert("in-house"))
        trust(monkeypatch, certificate)
        post_webhook(alert("in-house"))
    assert posted == ["in-house"]


@pytest.fixture
def webhook_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other channel: each pass would wait for Kafka, which is away here."""
    monkeypatch.setattr(alerts, "configured_channels", lambda: {"webhook": post_webhook})


@pytest.mark.usefixtures("webhook_only")
@pytest.mark.parametrize("status", [422, pytest.param(403, marks=pytest.mark.slow)])
def test_alerts_that_a_receiver_never_takes_hold_back_no_newer_one_when_they_are_many(
    postgres: Home, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    never = [f"never-{status}-{number}" for number in range(2 * MOST_FAILURES)]
    with listening() as received, settings_of(postgres, TIDEMARK_ALERT_WEBHOOK=received.webhook):
        received.refused_text, received.refused_status = "near SELECT", status
        with alerts.sent_together():
            for name in never:
                alerts.raise_alert(alert(name, "near SELECT: no such column"))
        alerts.send_unsent()
        for number in range(2):
            tries(caplog)
            alerts.raise_alert(alert(f"new-{status}-{number}"))
            assert f"new-{status}-{number}" in [each["pipeline"] for each in received.posts]
            assert tries(caplog)[1] == MOST_FAILURES, "those that it never takes are tried again, but only so many"
            # Its end is not held back, either.
            assert alerts.recover(f"test/new-{status}-{number}")
            assert [each["state"] for each in received.posts[-2:]] == ["raised", "recovered"]
        received.posts.clear()
        received.refused_text = ""
        with alerts.sent_together():
            alerts.send_unsent()
            told = [each["pipeline"] for each in received.posts if each["state"] == "raised"]
            assert sorted(told) == sorted(never), "none is lost, none is sent twice"
            assert all(alerts.recover(f"test/{name}") for name in never)


@pytest.mark.usefixtures("webhook_only")
def test_alert_holds_back_no_newer_one_when_the_receiver_is_away_only_for_it(postgres: Home) -> None:
    with listening() as received, settings_of(postgres, TIDEMARK_ALERT_WEBHOOK=received.webhook):
        received.refused_text, received.refused_status = "near SELECT", 503
        alerts.raise_alert(alert("broken-off", "near SELECT: no such column"))
        assert received.posts == []
        for number in range(2):
            alerts.raise_alert(alert(f"later-{number}"))
            assert [each["pipeline"] for each in received.posts] == [f"later-{each}" for each in range(number + 1)]
        received.refused_text = ""
        alerts.send_unsent()
        assert [each["pipeline"] for each in received.posts][2:] == ["broken-off"]
        with alerts.sent_together():
            assert all(alerts.recover(f"test/{name}") for name in ("broken-off", "later-0", "later-1"))


@pytest.mark.parametrize(("status", "tried"), [(500, MOST_FAILURES), (429, 1), (503, 1)])
def test_receiver_is_tried_a_bounded_number_of_times_when_it_takes_nothing(
    postgres: Home, status: int, tried: int, caplog: pytest.LogCaptureFixture
) -> None:
    untaken = [f"untaken-{number}" for number in range(MOST_FAILURES + 2)]
    with listening() as received, settings_of(postgres, TIDEMARK_ALERT_WEBHOOK=received.webhook):
        received.refused_text, received.refused_status = "the archive is behind", status
        with alerts.sent_together():
            for name in untaken:
                alerts.raise_alert(alert(name))
        assert tries(caplog)[1] == tried
        with alerts.sent_together():
            assert all(alerts.recover(f"test/{name}") for name in untaken)
