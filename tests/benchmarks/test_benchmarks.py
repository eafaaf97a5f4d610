"""The benchmarks run and do the work they time; their figures are for `./tidemark bench`, not for a verdict here."""

from __future__ import annotations

import pytest

from include.pipelines import load_pipeline, pipeline_names
from include.spark_submit import FIRST_COMPILER
from tests.benchmarks import archive, batches, flags, pipelines, reads

pytestmark = [pytest.mark.services, pytest.mark.benchmarks]


def test_archive_benchmark_lands_every_record_and_reports_a_ratio() -> None:
    found = archive.run(events=5000, rounds=1, TIDEMARK_JVM_OPTIONS=FIRST_COMPILER)
    assert found["records"] == 5000
    assert found["rows"]["bare"] == found["rows"]["bare_in_our_session"] >= found["rows"]["tidemark"] > 0
    assert found["throughput_ratio"]["min"] > 0
    assert found["in_our_session"]["cpu_ratio"]["min"] > 0


@pytest.mark.slow
def test_micro_batch_benchmark_compares_drivers_with_few_and_many_micro_batches_behind_them() -> None:
    found = batches.run(past=(2, 30), measured=6, rounds=1)
    assert len(found["milliseconds"]["young"]) == len(found["milliseconds"]["old"]) == 1
    assert found["cost_ratio"]["min"] > 0


@pytest.mark.slow
def test_interval_reads_hardly_more_from_the_broker_than_its_ranges_hold() -> None:
    # A count of bytes and no time, so it may be judged here.
    found = reads.run()
    assert found["sent_ratio"]["first_run"] <= 1.1, found
    assert found["sent_ratio"]["rerun"] <= 1.1, found


@pytest.mark.slow
@pytest.mark.parametrize("name", pipeline_names())
def test_costs_of_a_pipeline_are_told_for_each_of_its_queries(name: str) -> None:
    found = pipelines.run([name], events=2000, rounds=1)[name]
    assert found["records"] == 2000
    assert found["rows"]["bare"] == found["rows"]["bare_in_our_session"] >= found["rows"]["tidemark"] > 0
    assert found["events_per_cpu_second"] > 0
    assert set(found["speed_events_per_cpu_second"]) == {view.name for view in load_pipeline(name).views}
    assert found["interval"]["cpu_seconds"] > 0


@pytest.mark.slow
def test_flag_benchmark_measures_every_bid_on_each_way() -> None:
    found = flags.run(rates={50: 100}, warm_up=3)
    assert set(found["milliseconds"]) == {"echo", "real_time", "micro_batch"}
    assert all(way["50"]["missing"] == 0 for way in found["milliseconds"].values())
    assert found["milliseconds"]["real_time"]["50"]["p50"] < found["milliseconds"]["micro_batch"]["50"]["p50"]
