"""Which lines of a Spark application reach a log: its own, not those of the JVM, of Hive and of `spark-submit`."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.spark.driver_lines import DriverLines, newest_lines
from tests.conftest import SetSettings

NOISE = [
    "WARNING: Using incubator modules: jdk.incubator.vector",
    "OpenJDK 64-Bit Server VM warning: Sharing is only supported for boot loader classes",
    "[0.013s][warning][cds] shared class paths mismatch",
    "Spark-Submit cmd: spark-submit --conf spark.jars=/a.jar",
    "10:11:12 WARN HiveConf: HiveConf of name hive.stats.jdbc.timeout does not exist",
    "2026-11-20T10:11:13Z WARN TaskSetManager: Lost task 0.0",
    "\tat org.apache.spark.Task.run(Task.scala:1)",
    "Caused by: java.io.IOException",
]
OWN = [
    "tidemark: nest_cameras: validating and registering",
    "2026-11-20T10:11:14Z ERROR Executor: no space left",
    "Traceback (most recent call last):",
    '  File "a.py", line 1, in <module>',
]


def test_foreign_lines_are_held_back_when_the_driver_has_not_failed() -> None:
    lines = DriverLines()
    assert [each for each in [NOISE[0], OWN[0], *NOISE[1:], *OWN[1:]] if lines.passes(each)] == OWN
    assert list(lines.held) == NOISE


@pytest.mark.parametrize("time", ["", "2026-11-20T10:11:14Z "])
def test_error_keeps_its_interval_when_a_time_leads_its_line_or_none_does(time: str) -> None:
    lines = DriverLines()
    said = "gps_positions: 2026-11-20T05:00:00Z/2026-11-20T06:00:00Z was built --from 2026-11-20T05:00:00Z --to"
    lines.note(f"tidemark: {time}{said}\n")
    assert lines.own == said


def test_warnings_of_spark_pass_when_the_application_is_a_stream() -> None:
    lines = DriverLines(shows_warnings=True)
    assert [each for each in NOISE if lines.passes(each)] == NOISE[4:]


def test_wait_for_a_core_is_told_once_when_the_cluster_has_none_free() -> None:
    waits = (
        "2026-11-20T10:11:{}Z WARN TaskSchedulerImpl: Initial job has not accepted any resources; check your cluster UI"
    )
    first, *repeated = [waits.format(second) for second in (15, 30, 45)]
    lines = DriverLines()
    assert [each for each in [NOISE[4], first, *repeated, OWN[0]] if lines.passes(each)] == [first, OWN[0]]
    assert list(lines.held) == [NOISE[4], *repeated]


def test_every_line_passes_when_somebody_debugs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_DEBUG", "1")
    assert all(map(DriverLines().passes, [*NOISE, *OWN]))
    monkeypatch.setenv("TIDEMARK_DEBUG", "0")
    assert not all(map(DriverLines().passes, [*NOISE, *OWN]))


@pytest.mark.parametrize(
    ("said", "code", "shown"),
    [
        # The driver's last line is its error, and comes last again.
        ([*NOISE, OWN[0], "tidemark: No space left on device"], 1, [*NOISE, "tidemark: No space left on device"]),
        ([OWN[0], "tidemark: No space left on device"], 1, []),
        # It was killed after a line of progress.
        ([*NOISE, OWN[0]], 137, [*NOISE, OWN[0]]),
        # The driver never started.
        (NOISE, 1, NOISE),
        (["Traceback (most recent call last):", *NOISE], 1, NOISE),
        # The exit code identifies it.
        (NOISE, 6, []),
    ],
)
def test_what_was_held_back_is_shown_before_the_last_line_when_the_exit_code_says_nothing(
    said: list[str], code: int, shown: list[str]
) -> None:
    lines = DriverLines()
    for line in said:
        lines.passes(line)
    assert list(lines.reasons(code)) == shown


def test_last_own_line_is_known_when_others_follow_it() -> None:
    lines = DriverLines()
    assert lines.own == ""
    for line in ("tidemark: isp_hits: hits-0 [1, 2) is gone — restore it\n", *NOISE, "Killed"):
        lines.passes(line)
    assert lines.own == "isp_hits: hits-0 [1, 2) is gone — restore it"
    lines.passes("tidemark: 2026-11-20T10:11:15Z isp_hits: it is back\n")
    assert lines.own == "isp_hits: it is back"


def test_live_driver_s_lines_are_masked_or_not_shown_when_they_hold_a_secret(
    empty_home: Path, monkeypatch: pytest.MonkeyPatch, set_settings: SetSettings
) -> None:
    monkeypatch.setenv("OF_A_TOKEN", "canary-7d1e")
    written = b"one canary-7d1e\n\njdbc:postgresql://u:canary@h\n"
    assert newest_lines(written, "a.log") == ["one ********", "jdbc:postgresql://u:********@h"]
    set_settings(TIDEMARK_JDBC_PROPERTIES=str(empty_home / "gone.properties"))
    [shown] = newest_lines(written, "a.log")
    assert shown.startswith("the log is not shown: TIDEMARK_JDBC_PROPERTIES: ")
    assert newest_lines(b"\n", "a.log") == []
