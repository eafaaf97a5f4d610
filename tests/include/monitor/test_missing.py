"""Intervals that nobody built are told by doctor, status and metrics, with the command that builds them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from include.intervals.missing import missing_in_order
from include.intervals.pinning import pin_interval
from include.ledger.intervals.missing import missing_intervals
from include.monitor.history.calendar import read_calendar
from include.monitor.missing import building_commands, summarize_missing
from include.monitor.streams.metrics import metrics_text
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline
from include.times import format_time, hourly
from tests.conftest import Home
from tests.support import attempts
from tests.support.topic_log import HOUR, START, Log, hour

pytestmark = pytest.mark.services

PIPELINE = "nest_cameras"
FIRST, END = format_time(START), format_time(START + 4 * HOUR)
SUMMARY = {"pipeline": PIPELINE, "count": 4, "from": FIRST, "to": END, "offsets": 3}


NEVER_BEGUN = "gps_positions"


@pytest.fixture(scope="module")
def clean(in_process: Home) -> list[dict[str, Any]]:
    """Return what status lists as missing before anything is pinned."""
    listed: list[dict[str, Any]] = in_process.json("status", "--json")["missing"]
    return listed


@pytest.fixture(scope="module")
def log(in_process: Home, clean: list[dict[str, Any]]) -> Log:
    """Four hours, pinned on the way to the last one, of which none was built."""
    made = Log(load_pipeline(PIPELINE))
    made.create(2)
    made.send(0, 0.1, 2.1, 3.1)
    made.archive()
    made.pin(0)
    made.pin(3)
    return made


def test_status_lists_intervals_when_they_are_missing(log: Log, clean: list[dict[str, Any]], in_process: Home) -> None:
    assert clean == []
    assert in_process.json("status", "--json")["missing"] == [SUMMARY]
    assert f"{PIPELINE}: intervals that were never built: 4 from {FIRST} to {END}" in in_process.run("status").stdout


def test_status_says_until_when_tables_are_complete(log: Log, in_process: Home) -> None:
    waits = {"state": "pinned", "from": FIRST, "to": format_time(START + HOUR)}
    told = {"pipeline": PIPELINE, "from": None, "until": None, "waits_for": waits}
    assert in_process.json("status", "--json")["complete"] == [told]
    assert f"{PIPELINE}: complete until no time yet; waits for {FIRST} to " in in_process.run("status").stdout


def test_status_answers_when_the_ledger_cannot_be_read(log: Log, in_process: Home) -> None:
    in_process.ledger("ALTER TABLE intervals RENAME TO elsewhere")
    try:
        unread = in_process.json("status", "--json")
    finally:
        in_process.ledger("ALTER TABLE elsewhere RENAME TO intervals")
    assert unread["missing"] is None
    assert unread["services"]["postgres"]["healthy"] is True
    down = in_process.json("status", "--json", TIDEMARK_DATABASE_URL="postgresql://nobody:x@127.0.0.1:1")
    assert (down["missing"], down["complete"]) == (None, None)
    assert down["services"]["postgres"]["healthy"] is False


def test_metrics_count_intervals_when_they_are_missing(log: Log, in_process: Home) -> None:
    text = in_process.run("lag", PIPELINE, "--metrics").stdout
    values = {each.name: each.samples[0].value for each in text_string_to_metric_families(text)}
    assert (values["tidemark_missing_intervals"], values["tidemark_missing_offsets"]) == (4, 3)
    # Zero is exported, too: an alert needs it.
    text = in_process.run("lag", "isp_hits", "--metrics").stdout
    samples = {each.name: each.samples for each in text_string_to_metric_families(text)}
    assert [(s.labels, s.value) for s in samples["tidemark_missing_intervals"]] == [({"pipeline": "isp_hits"}, 0)]


def test_doctor_names_the_commands_when_intervals_are_missing(log: Log, in_process: Home) -> None:
    examined = in_process.run("doctor", "--json", expect=None)
    findings = json.loads(examined.stdout)["findings"]
    [note] = [each for each in findings if each["notice"]]
    assert note["ok"]
    assert "never built: 4" in note["what"]
    first_end, last = format_time(START + HOUR), format_time(START + 3 * HOUR)
    assert note["remedy"] == (
        f"./tidemark interval {PIPELINE} --from {FIRST} --to {first_end} builds the first; airflow backfill create "
        f"--dag-id interval__{PIPELINE} --from-date {FIRST} --to-date {last} --reprocess-behavior completed "
        "--dag-run-conf '{}' builds 4"
    )
    # Missing intervals are not an error.
    assert examined.returncode == (0 if all(each["ok"] for each in findings) else 1)
    assert f"note {PIPELINE}: intervals that were never built: 4" in in_process.run("doctor", expect=None).stdout


def test_backfill_is_by_the_verb_when_the_home_has_an_airflow(log: Log, in_process: Home) -> None:
    state = in_process.path / "services" / "airflow.json"
    state.write_text(json.dumps({"address": "http://127.0.0.1:1", "port": 1, "pid": None}))
    try:
        assert "; ./tidemark airflow backfill create --dag-id" in building_commands(load_pipeline(PIPELINE))
    finally:
        state.unlink()


@dataclass(frozen=True)
class Run:
    """A run of the interval's DAG, and its other runs in Airflow, in the form of a task's context."""

    run_type: str
    known: tuple[str, ...] = ()
    queued: tuple[datetime, ...] = ()
    dag_id: str = f"interval__{PIPELINE}"
    logical_date: datetime = START + 4 * HOUR
    data_interval_start: datetime = START + 4 * HOUR
    data_interval_end: datetime = START + 5 * HOUR

    def get_dr_count(
        self,
        dag_id: str,
        logical_dates: Sequence[datetime] = (),
        run_ids: Sequence[str] = (),
        states: Sequence[str] = (),
    ) -> int:
        return len({*run_ids} & {*self.known}) + ("queued" in states) * len({*logical_dates} & {*self.queued})

    def builds(self, pipeline: Pipeline, build_missing: int | None = None) -> list[str]:
        """The starts of the intervals that it triggers runs for."""
        from include.airflow.tasks import runs_of_missing

        context = {"dag_run": self, "ti": self, "params": {"build_missing": build_missing}}
        return [each["conf"]["from"] for each in runs_of_missing(pipeline, context)]


def test_run_builds_the_oldest_ones_when_some_are_declared_or_requested(log: Log) -> None:
    begins = [format_time(START + n * HOUR) for n in range(4)]
    declared = replace(log.pipeline, schedule=hourly(build_missing=2))
    assert Run("scheduled").builds(declared) == begins[:2]
    # Those that have had a run of their own are not triggered for ever, and do not keep the others waiting.
    assert Run("scheduled", known=(f"missing__{begins[0]}",)).builds(declared) == begins[1:3]
    # Nor are those that the schedule is about to build.
    assert Run("scheduled", queued=(START + HOUR,)).builds(declared) == [begins[0], begins[2]]
    assert Run("scheduled").builds(log.pipeline) == []
    # The runs that it triggers, and those of a backfill, trigger none.
    assert Run("manual").builds(declared) == Run("backfill").builds(declared) == []
    assert Run("manual").builds(log.pipeline, build_missing=9) == begins
    assert Run("scheduled").builds(declared, build_missing=0) == []


def test_unpinned_time_comes_last_and_without_a_backfill_when_it_is_missing(in_process: Home) -> None:
    years = -4 * 365 * 24
    log = Log(load_pipeline("isp_hits"))
    log.create(1)
    log.send(0, *(years + each for each in range(100)), 0.1, 1.1)
    log.archive()
    pin_interval(log.pipeline, hour(1), pinned_by="test")
    pin_interval(log.pipeline, hour(years + 2), pinned_by="test")
    stretches = missing_intervals(log.pipeline.name)
    unpinned = [each for each in stretches if each.pinned is None and each.from_time]
    assert unpinned
    assert sum(each.offsets for each in stretches) == summarize_missing(log.pipeline).offsets == 102
    assert summarize_missing(log.pipeline).count > -years - 24
    # The pinned hour, not the years before it.
    assert building_commands(log.pipeline).startswith("./tidemark interval isp_hits --from ")
    pinned = next(each for each in stretches if each.pinned)
    assert pinned.from_time is not None
    assert f"--from {format_time(pinned.from_time)} " in building_commands(log.pipeline)
    # Built last, too, and from their next record on.
    in_order = [hour(n) for n in (years, years + 1, years + 2, 1, years + 3)]
    assert list(islice(missing_in_order(log.pipeline), 5)) == in_order


def test_metrics_tell_until_when_tables_are_complete(in_process: Home) -> None:
    pipeline = "wiki_changes"
    for number in (0, 1):
        attempts.build_and_register(pipeline, attempts.hour(number))
    attempts.begin_attempt(pipeline, attempts.hour(2))
    text = metrics_text([load_pipeline(pipeline)]).decode()
    samples = {each.name: [(s.labels, s.value) for s in each.samples] for each in text_string_to_metric_families(text)}
    until = attempts.hour(1).to_time.timestamp()
    assert samples["tidemark_complete_until_timestamp_seconds"] == [({"pipeline": pipeline}, until)]
    by_partition = samples["tidemark_partition_complete_until_timestamp_seconds"]
    assert by_partition
    assert {labels["pipeline"] for labels, _ in by_partition} == {pipeline}
    assert {value for _, value in by_partition} == {until}


def hours_since(first: datetime, until: datetime) -> int:
    """How many whole hours have ended since the start of one."""
    return (until - first) // HOUR


def test_time_since_the_first_record_is_missing_when_no_interval_was_ever_begun(in_process: Home) -> None:
    declared = load_pipeline(NEVER_BEGUN)
    log = Log(declared)
    log.create(1)
    log.send(0, 0.1, 1.1)
    log.archive()
    assert summarize_missing(declared).count == 0, "its first interval is not due yet"
    first = START - 2 * HOUR
    in_process.ledger(
        f"UPDATE micro_batches SET committed_at = '{format_time(first + HOUR / 2)}' WHERE pipeline = '{NEVER_BEGUN}'",
    )
    grace = declared.schedule.registered_within
    before = datetime.now(UTC)
    [told] = [each for each in in_process.json("status", "--json")["missing"] if each["pipeline"] == NEVER_BEGUN]
    after = datetime.now(UTC)
    assert (told["from"], told["offsets"]) == (format_time(first), 2)
    # An hour may end while the command runs.
    assert told["count"] in {hours_since(first, at - grace) for at in (before, after)}
    examined = json.loads(in_process.run("doctor", "--json", expect=None).stdout)["findings"]
    [note] = [each for each in examined if each["notice"] and NEVER_BEGUN in each["what"]]
    command = f"./tidemark interval {NEVER_BEGUN} --from {format_time(first)} --to {format_time(first + HOUR)}"
    assert note["remedy"] == f"unpause the DAG interval__{NEVER_BEGUN}; {command} builds the first"
    text = metrics_text([declared]).decode()
    samples = {each.name: [(s.labels, s.value) for s in each.samples] for each in text_string_to_metric_families(text)}
    labels = {"pipeline": NEVER_BEGUN}
    assert samples["tidemark_first_commit_timestamp_seconds"] == [(labels, (first + HOUR / 2).timestamp())]
    assert samples["tidemark_last_registered_interval_end_timestamp_seconds"] == []
    now = datetime.now(UTC)
    strips = read_calendar([declared], now=now).strips
    assert {strip.counts["due"] for strip in strips} == {hours_since(first, now)}
