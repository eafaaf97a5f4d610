"""Grafana's dashboard and Prometheus's alerts name metrics and labels that exist, and Prometheus knows where to ask."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from include import kafka
from include.cli.monitor import monitor
from include.errors import ServiceUnreachable
from include.ledger.completeness import Completeness, PartitionCompleteness
from include.ledger.database import engine
from include.ledger.intervals.states import IntervalState
from include.ledger.streams.overview import ReasonCount, StreamOverview
from include.ledger.streams.progress import QueryProgress
from include.ledger.streams.writers import LiveWriter
from include.ledger.totals import IntervalCount
from include.monitor.lag import Lag
from include.monitor.ledger_patience import ANSWER_SECONDS, READ_SECONDS, within
from include.monitor.missing import MissingSummary
from include.monitor.streams import metrics
from include.monitor.streams.broker import BrokerView
from include.monitor.streams.gauges import QUERY, REPORTED_AT, WAITS, Observed
from include.monitor.streams.metrics import Scrape, as_text, metrics_text
from include.monitor.streams.state import QueryLag, assess
from include.offsets import TopicPartition
from include.pipelines import load_pipeline
from include.processes import ProcessIdentity, ProcessOnHost
from include.services.process import free_port
from include.settings import settings

DEPLOY = Path(__file__).resolve().parents[3] / "include" / "deploy"
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
RULES = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "tidemark.json").read_text())
EXPRESSIONS = [rule["expr"] for rule in RULES] + [
    target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]
]


def observed(*queries: QueryProgress, is_live: bool = True) -> Observed:
    """What is read of a stream with all features, whose driver took its lease an hour ago."""
    writer = LiveWriter(ProcessOnHost("host", ProcessIdentity(1)), 7, NOW - timedelta(hours=1), NOW, "local-1")
    known = StreamOverview("nest_cameras", NOW, writer if is_live else None, 7, NOW, 0, "first", NOW, 100, 3)
    lag = Lag("nest_cameras", "archive", "nest-logs", 0, 5, 9)
    state = assess(load_pipeline("nest_cameras"), known, BrokerView((lag,), NOW - timedelta(seconds=2), "steady", NOW))
    missing = MissingSummary("nest_cameras", 1, None, None, 2)
    complete = Completeness("nest_cameras", NOW - timedelta(hours=1), NOW)
    parts = [PartitionCompleteness(TopicPartition("nest-logs", 0), "id", NOW, 5)]
    return Observed(
        state,
        [lag],
        {each.query: each for each in queries},
        [ReasonCount("malformed", 3)],
        [ReasonCount("malformed", 1)],
        0,
        missing,
        complete,
        parts,
        {"totals": (7, 5)},
        timedelta(hours=1),
        timedelta(minutes=20),
        NOW - timedelta(days=1),
    )


def told(query: str, at: datetime = NOW) -> QueryProgress:
    return QueryProgress(query, 1, at, 1, 1.0, 1.0, 1.0, {"addBatch": 1.0}, at - timedelta(hours=1), 1, 1)


def samples(scrape: Scrape) -> list[Sample]:
    return [each for family in text_string_to_metric_families(as_text(scrape).decode()) for each in family.samples]


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Return the labels of every metric that a stream with all features exports."""
    intervals = [IntervalCount("nest_cameras", each, 1, NOW) for each in IntervalState]
    found: dict[str, set[str]] = {}
    for sample in samples(Scrape([observed(told("archive"))], intervals, {"nest_cameras": 1}, 1000, 2)):
        found.setdefault(sample.name, set()).update(sample.labels)
    return found


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\btidemark_\w+", expression))


def selectors(expression: str) -> Iterator[tuple[str, str]]:
    for name, labels in re.findall(r"(tidemark_\w+)\{([^}]*)\}", expression):
        for label in re.findall(r"(\w+)\s*[=!]~?", re.sub(r'"[^"]*"', "", labels)):
            yield name, label


def test_metric_exists_with_its_labels_when_dashboard_or_alert_uses_it(exported: dict[str, set[str]]) -> None:
    assert len(EXPRESSIONS) >= 25
    for expression in EXPRESSIONS:
        assert names_in(expression) <= exported.keys(), expression
        for name, label in selectors(expression):
            # Prometheus gives each sample its target.
            assert label in exported[name] | {"instance"}, f"{name} has no label {label}: {expression}"


def test_rule_compares_metrics_of_one_installation_when_prometheus_reads_several() -> None:
    matches = [each for rule in RULES for each in re.findall(r"\b(?:on|by) \(([^)]+)\)", rule["expr"])]
    assert len(matches) >= 5
    assert set(matches) == {"job, instance, pipeline"}


def test_dashboard_shows_one_installation_when_prometheus_reads_several() -> None:
    choice, pipelines = DASHBOARD["templating"]["list"]
    assert (choice["name"], choice["multi"], choice["includeAll"]) == ("instance", False, False)
    assert choice["query"]["query"] == "label_values(tidemark_ledger_up, instance)"
    shown = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    for each in (*shown, pipelines["query"]["query"]):
        assert len(names_in(each)) == each.count('{instance="$instance"'), each


def test_installation_that_is_down_is_told_once_when_no_other_one_is_there() -> None:
    # Another installation's would let `absent` be silent.
    [down] = [rule["expr"] for rule in RULES if rule["alert"] == "TidemarkPagesDown"]
    [job] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    is_down = f'up{{job="{job["job_name"]}"}} == 0'
    # Its own metrics are then absent, too, and `or` keeps both, whose labels differ.
    assert down == f"{is_down} or (absent(tidemark_ledger_up) == 1 unless on () {is_down})"


@pytest.mark.parametrize(
    ("every", "age", "waits"),
    [
        (timedelta(hours=1), timedelta(minutes=75), False),
        (timedelta(hours=1), timedelta(minutes=85), True),
        (timedelta(hours=24), timedelta(hours=24, minutes=15), False),
        (timedelta(hours=24), timedelta(hours=24, minutes=25), True),
    ],
)
def test_alert_waits_for_the_deadline_when_intervals_are_longer_than_hours(
    every: timedelta, age: timedelta, waits: bool
) -> None:
    [rule] = [each for each in RULES if each["alert"] == "TidemarkNothingRegistered"]
    since_last, limit = rule["expr"].split(" and ")[0].split(" > ")
    # Without the second, a pipeline whose intervals never began would have no sample to compare.
    begins = ("last_registered_interval_end", "first_commit")
    begin = " or on (job, instance, pipeline) ".join(f"tidemark_{each}_timestamp_seconds" for each in begins)
    assert since_last == f"time() - ({begin})"
    values = {"tidemark_interval_seconds": every, "tidemark_registered_within_seconds": timedelta(minutes=20)}
    terms = re.findall(r"tidemark_\w+|\d+", limit)
    seconds = sum(values[each].total_seconds() if each in values else float(each) for each in terms)
    assert (age.total_seconds() > seconds) is waits


def test_failed_interval_wakes_nobody_when_the_next_retry_may_mend_it() -> None:
    text = (DEPLOY.parents[1] / "dags" / "intervals.py").read_text(encoding="utf-8")
    [longest_wait] = re.findall(r'"max_retry_delay": timedelta\(minutes=(\d+)\)', text)
    [rule] = [each for each in RULES if each["alert"] == "TidemarkIntervalFailed"]
    [waits] = re.findall(r"^(\d+)m$", rule.get("for", "0m"))
    # The next try waits for a slot, too.
    assert int(waits) > int(longest_wait) + 3


def test_label_exists_when_a_text_quotes_it(exported: dict[str, set[str]]) -> None:
    for rule in RULES:
        labels = set.intersection(*(exported[name] for name in names_in(rule["expr"])))
        assert set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) <= labels, rule["alert"]
        assert rule["annotations"]["remedy"], rule["alert"]
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            wanted = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert wanted <= set.union(*(exported[name] for name in names_in(target["expr"]))), panel["title"]


def test_gauge_is_on_the_dashboard_or_in_an_alert_when_a_stream_exports_it(exported: dict[str, set[str]]) -> None:
    used = set().union(*map(names_in, EXPRESSIONS))
    beside = {
        "tidemark_committed_offset", "tidemark_end_offset", "tidemark_missing_offsets",
        "tidemark_stream_fencing_token", "tidemark_stream_generation", "tidemark_broker_seen_timestamp_seconds",
        "tidemark_query_progress_timestamp_seconds", "tidemark_partition_complete_until_timestamp_seconds",
        "tidemark_quarantined_records_total",
    }  # fmt: skip
    assert exported.keys() - used - {name for name in exported if name.endswith("_created")} == beside


def test_metric_is_documented_when_it_is_exported(exported: dict[str, set[str]]) -> None:
    page = (DEPLOY.parent / "docs" / "monitor.md").read_text()
    rows = re.findall(r"^\| `(tidemark_\w+)` \| ([\w, ]*) ?\|", page, re.MULTILINE)
    documented = {name: set(labels.replace(",", " ").split()) for name, labels in rows}
    assert documented == {name: labels for name, labels in exported.items() if not name.endswith("_created")}


def test_values_of_a_query_are_exported_only_when_the_driver_that_lives_measured_them() -> None:
    before = NOW - timedelta(hours=2)
    both = [observed(told("archive"), told("hourly_counts", before))]
    values = QUERY.keys() - {REPORTED_AT}
    for name in (*values, "tidemark_query_part_seconds"):
        assert [s.labels["query"] for s in samples(Scrape(both)) if s.name == name] == ["archive"], name
    dead = samples(Scrape([observed(told("archive"), is_live=False)]))
    assert {s.name for s in dead if s.name.startswith("tidemark_query_")} - WAITS.keys() == {REPORTED_AT}
    [at] = [s.value for s in dead if s.name == REPORTED_AT]
    assert at == NOW.timestamp()


def test_wait_is_exported_for_each_query_when_it_is_known() -> None:
    each = observed()
    lags = (QueryLag("archive", 0, 0), QueryLag("hourly_counts", 9, 1, 700.0), QueryLag("by_hour", 9, 1, None))
    state = replace(each.state, lag=replace(each.state.lag, queries=lags))
    waits = samples(Scrape([replace(each, state=state)]))
    assert {s.labels["query"]: s.value for s in waits if s.name in WAITS} == {"archive": 0, "hourly_counts": 700}


def test_records_are_shown_when_they_are_the_first_of_their_reason() -> None:
    # The first sample of a series is no increase, and a reason has no series before its first record.
    counted = {name for each in EXPRESSIONS if "increase(" in each or "rate(" in each for name in names_in(each)}
    assert counted == {"tidemark_alerts_total"}
    [panel] = [each for each in DASHBOARD["panels"] if "by reason" in each["title"]]
    [target] = panel["targets"]
    recent = [s for s in samples(Scrape([observed()])) if s.name in names_in(target["expr"])]
    assert [(s.labels["reason"], s.value) for s in recent] == [("malformed", 1)]


@pytest.mark.parametrize(("refused", "counted"), [(1, 7), (2, None)])
def test_messages_about_alerts_are_counted_unless_the_broker_answers_about_no_pipeline(
    monkeypatch: pytest.MonkeyPatch, refused: int, counted: int | None
) -> None:
    monkeypatch.setattr(kafka, "describe_topics", lambda topics: {})
    monkeypatch.setattr(kafka, "offset_bounds", lambda topic_partitions: {TopicPartition("tidemark-alerts", 0): (0, 7)})
    seen = observed()
    error = replace(seen, state=replace(seen.state, lag=replace(seen.state.lag, error="a right is missing")))
    assert metrics._alerts([error] * refused + [seen] * (2 - refused)) == counted


def test_alert_about_alerts_claims_no_more_than_messages_when_some_are_of_ends() -> None:
    [rule] = [each for each in RULES if each["alert"] == "TidemarkOperatorsTold"]
    assert "messages about alerts, ends included" in rule["annotations"]["summary"]


def test_pipeline_can_be_chosen_on_the_dashboard_when_its_declaration_is_refused() -> None:
    _, choice = DASHBOARD["templating"]["list"]
    scrape = Scrape(open_alerts={"refused": 1})
    [name] = names_in(choice["query"]["query"])
    assert [s.labels["pipeline"] for s in samples(scrape) if s.name == name] == ["refused"]


def test_prometheus_asks_the_right_address_when_the_pages_listen() -> None:
    (job,) = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    compose = yaml.safe_load((DEPLOY.parents[1] / "docker-compose.yml").read_text())["services"]
    command = compose["monitor"]["command"]
    port = command[command.index("--port") + 1]
    assert job["static_configs"] == [{"targets": [f"127.0.0.1:{port}"]}]
    assert job["authorization"]["credentials_file"] == command[command.index("--token-file") + 1]
    assert compose["prometheus"]["network_mode"] == compose["monitor"]["network_mode"]
    assert monitor.__defaults__ is None or str(port) == str(monitor.__defaults__[0])


def test_one_sample_reports_it_when_the_ledger_is_away() -> None:
    assert [(s.name, s.value) for s in samples(Scrape(is_ledger_up=False))] == [("tidemark_ledger_up", 0)]


def test_prometheus_waits_longer_than_the_pages_do_when_the_ledger_hangs() -> None:
    configured = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["global"]
    timeout, interval = (int(configured[name].removesuffix("s")) for name in ("scrape_timeout", "scrape_interval"))
    assert ANSWER_SECONDS + READ_SECONDS < timeout <= interval


@pytest.fixture
def ledger_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets the ledger's address until the test ends; nothing of it is remembered afterwards."""

    def set_address(address: str) -> None:
        monkeypatch.setenv("TIDEMARK_DATABASE_URL", address)
        forget()

    def forget() -> None:
        settings.cache_clear()
        engine.cache_clear()

    yield set_address
    monkeypatch.undo()
    forget()


def test_metrics_tell_that_the_ledger_is_down_when_it_listens_and_never_answers(
    ledger_at: Callable[[str], None],
) -> None:
    with closing(socket.create_server(("127.0.0.1", free_port()))) as silent:
        ledger_at(f"postgresql://nobody:x@127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        text = metrics_text([load_pipeline("isp_hits")]).decode()
        took = time.monotonic() - began
    assert "tidemark_ledger_up 0.0" in text
    assert took < 8


def test_metrics_tell_that_the_ledger_is_down_when_a_query_hangs(ledger_at: Callable[[str], None]) -> None:
    ledger_at("postgresql://nobody:x@127.0.0.1:1")
    released = threading.Event()
    with pytest.raises(ServiceUnreachable, match="no answer within"):
        within(0.1, released.wait)
    released.set()
    assert within(5, lambda: 7) == 7
