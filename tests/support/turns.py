"""The order of a parallel run's modules, and which worker takes which: two cores shall be busy to its end.

Most modules keep a core busy with Spark; others wait for services, timeouts and processes for most of their time. Three
workers share those that work, and the fourth has those that wait: it needs neither a Spark session nor the tests' JVM,
so it takes little memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

TESTS = Path(__file__).resolve().parent.parent

WORKERS = 4
"""With at least so many workers, one of them has the modules that wait."""

FIRST = (
    "end_to_end/test_airflow.py",
    "end_to_end/test_main_job.py",
    "faults/test_many_kills.py",
    "spark_jobs/reconciliation/test_seeded_corruptions.py",
    "benchmarks/test_benchmarks.py",
)
"""The longest modules that work: a run shall not end with one of them alone."""

WAITING = (
    "include/alerts/test_outages.py",
    "include/intervals/test_pinning_of_history.py",
    "include/services/test_services.py",
    "include/monitor/streams/test_view_watch.py",
    "include/spark/test_kubernetes.py",
    "include/intervals/test_pinning.py",
    "spark_jobs/streaming/test_heartbeat.py",
    "include/spark/test_jars.py",
    "include/monitor/streams/test_broker.py",
    "include/kafka/test_fenced_producer.py",
    "include/ledger/test_patience.py",
    "include/producing/test_follower.py",
    "include/proof/test_proofs.py",
    "include/intervals/test_topics_that_left.py",
    "include/intervals/test_odd_timestamps.py",
    "include/intervals/test_truncated_logs.py",
    "include/services/test_java_properties.py",
    "include/ledger/streams/test_writers.py",
    "include/services/test_process.py",
    "include/ledger/streams/test_patient_lines.py",
    "include/airflow/test_drivers.py",
    "include/services/test_copied_home.py",
    "include/ledger/test_database.py",
    "include/producing/test_event_stream.py",
    "include/kafka/test_refused_transactions.py",
    "include/monitor/streams/test_failures_metric.py",
    "include/streams/test_line_feeds.py",
    "include/kafka/test_refused_requests.py",
    "include/streams/test_folder_feed.py",
)
"""Modules that mostly wait, and use no Spark in the tests' own JVM or session, the longest first."""


def in_turn(marks: dict[Path, set[str]]) -> list[Path]:
    """Return the modules with these marks in the order in which a parallel run begins them."""
    first = [module for name in (*FIRST, *WAITING) if (module := TESTS / name) in marks]
    others = [module for module in marks if module not in first]
    spark = [module for module in others if "spark" in marks[module]]
    services = [module for module in others if module not in spark and "services" in marks[module]]
    # Those that keep a core busy all the time lie evenly between those whose drivers and services begin and end.
    mixed = sorted((place / len(kind), module) for kind in (spark, services) for place, module in enumerate(kind))
    # The shortest fill the gap at the end.
    placed = {*first, *spark, *services}
    return [*first, *(module for _, module in mixed), *(module for module in others if module not in placed)]


class OneWaits(LoadFileScheduling):
    """Gives the last worker the modules that wait, and the others those only when no others are left."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        waits = node.gateway.id == f"gw{WORKERS - 1}"
        chosen = [scope for scope in self.workqueue if _waits(scope) == waits]
        # After them, the worker that waits takes the last ones, which are short and need no services.
        last = [*self.workqueue][-1]
        self.workqueue.move_to_end(chosen[0] if chosen else last if waits else next(iter(self.workqueue)), last=False)
        super()._assign_work_unit(node)


def _waits(scope: str) -> bool:
    return scope.removeprefix("tests/") in WAITING
