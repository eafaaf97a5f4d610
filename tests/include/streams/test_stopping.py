"""The stream of a pipeline whose declaration is gone: it is found, watched and stopped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from include.airflow import streams
from include.airflow.progress import Progress
from include.errors import AnotherWriter
from include.ledger.database import session
from include.ledger.models import Writer
from include.ledger.streams import writers
from include.streams.generations import no_stream
from include.streams.stopping import undeclared_streams
from include.times import parse_time
from tests.conftest import Home, settings_of
from tests.support.leases import held_lease

pytestmark = [pytest.mark.services]

NAME = "removed_pipeline"


@pytest.fixture
def lease(postgres: Home) -> Iterator[writers.Lease]:
    """The lease of a driver whose pipeline was removed meanwhile."""
    # Nobody renews it, and commands take their time.
    with settings_of(postgres, TIDEMARK_LEASE_SECONDS="600"), held_lease(NAME) as held:
        yield held


def test_stream_is_asked_to_stop_when_its_pipeline_is_no_longer_declared(postgres: Home, lease: writers.Lease) -> None:
    assert not writers.renew(lease)
    assert "asked to stop" in postgres.run("stream", NAME, "--stop").stderr
    assert writers.renew(lease)
    writers.release(lease)
    assert "no driver is running" in postgres.run("stream", NAME, "--stop").stderr


def test_name_is_refused_when_nothing_was_ever_streamed_under_it(postgres: Home) -> None:
    assert "unknown pipeline 'no_such'" in postgres.run("stream", "no_such", "--stop", expect=64).stderr
    assert "unknown pipeline" in postgres.run("stream", NAME, expect=64).stderr


def test_doctor_names_the_stream_and_its_end_when_its_pipeline_is_removed(postgres: Home, lease: writers.Lease) -> None:
    command = f"./tidemark stream {NAME} --stop"
    findings = json.loads(postgres.run("doctor", "--json", expect=1).stdout)["findings"]
    [found] = [each for each in findings if NAME in each["what"]]
    assert (found["ok"], found["remedy"]) == (False, command)
    assert lease.holder in found["what"]


def test_status_names_the_stream_and_its_end_when_its_pipeline_is_removed(postgres: Home, lease: writers.Lease) -> None:
    # Those of declared pipelines, over lines too, are not named.
    held = [writers.acquire(name) for name in ("isp_hits", "isp_hits_files")]
    [told] = postgres.json("status", "--json")["undeclared_streams"]
    assert (told["pipeline"], told["holder"]) == (NAME, lease.holder)
    assert parse_time(told["since"]) <= datetime.now(UTC)
    said = " ".join(postgres.run("status").stdout.split())
    assert f"{NAME}: a stream of this name runs, and no such pipeline is declared" in said
    assert f"./tidemark stream {NAME} --stop" in said
    assert "isp_hits: a stream" not in said
    for each in (*held, lease):
        writers.release(each)
    assert postgres.json("status", "--json")["undeclared_streams"] == []
    assert NAME not in postgres.run("status").stdout


def test_remedy_pauses_the_dag_first_when_a_command_needs_the_lease(postgres: Home, lease: writers.Lease) -> None:
    # A stream that is only stopped, Airflow starts again at once.
    remedy = (
        f"stop it first: pause stream__{NAME} if Airflow runs it (a Deployment of Kubernetes: scale it to 0), then "
        f"`./tidemark stream {NAME} --stop`, and repeat this when it has ended"
    )
    with pytest.raises(AnotherWriter) as refused, no_stream(NAME, "adopt"):
        pass
    assert refused.value.remedy == remedy
    with settings_of(postgres, TIDEMARK_LEASE_SECONDS="2"), pytest.raises(AnotherWriter) as waited:
        writers.acquire(NAME)
    assert waited.value.remedy == remedy


def test_command_is_named_and_not_asked_to_stop_when_it_holds_the_lease(postgres: Home) -> None:
    with (
        settings_of(postgres, TIDEMARK_LEASE_SECONDS="600"),
        no_stream(NAME, "erase") as lease,
        settings_of(postgres, TIDEMARK_LEASE_SECONDS="2"),
    ):
        said = postgres.run("stream", NAME, "--stop").stderr
        assert "no driver is running: the command erase holds the lease" in said
        with pytest.raises(AnotherWriter) as refused, no_stream(NAME, "adopt"):
            pass
        with pytest.raises(AnotherWriter) as waited:
            writers.acquire(NAME)
        assert NAME not in writers.live_drivers()
        assert undeclared_streams() == []
        assert not writers.renew(lease), "nobody has asked it to stop"
    for each in (refused.value, waited.value):
        assert each.message.startswith("the command erase holds this pipeline's lease: ")
        assert each.remedy == "wait for it to end, then repeat this"
    # The next holder is a driver.
    assert noted_command() == ""
    with held_lease(NAME) as driver:
        assert NAME in writers.live_drivers()
        # Older code leaves the note of a command that was killed.
        noted_command("erase")
        writers.renew(driver, "local-1")
        assert NAME in writers.live_drivers()
        assert writers.request_stop(NAME)


def noted_command(new: str | None = None) -> str:
    with session() as ledger:
        row = ledger.get_one(Writer, NAME)
        row.command = row.command if new is None else new
        return row.command


def test_declared_streams_and_those_of_lines_are_not_named_when_they_run(lease: writers.Lease) -> None:
    held = [writers.acquire(name) for name in ("isp_hits", "isp_hits_files", "isp_hits_socket")]
    assert set(writers.live_writers()) == {each.pipeline for each in (lease, *held)}
    assert [each.pipeline for each in undeclared_streams()] == [NAME]
    for each in held:
        writers.release(each)


def test_trigger_watches_the_driver_when_its_pipeline_is_removed(
    lease: writers.Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_LOOK_AT_PROGRESS", 0.0)
    assert streams.look_at_progress(NAME, Progress(), 0.0, "") is None

    async def watch() -> object:
        events = streams.StreamTrigger(NAME, "", poll_seconds=0.1).run()
        coming = asyncio.ensure_future(anext(events))
        done, _ = await asyncio.wait([coming], timeout=3)
        assert not done, coming
        await asyncio.to_thread(writers.release, lease)
        return (await asyncio.wait_for(coming, 60)).payload

    assert asyncio.run(watch()) == {"event": "released"}
