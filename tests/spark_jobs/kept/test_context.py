"""What one application leaves in a JVM that stays does not reach the next one."""

from __future__ import annotations

from typing import Any

import pytest

from spark_jobs.kept import context

pytestmark = pytest.mark.spark


def test_jvm_logs_warnings_when_the_application_before_has_switched_its_log_off(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    jvm = spark._jvm
    log4j, properties = jvm.org.apache.logging.log4j, jvm.java.lang.System.getProperties()
    before, own = log4j.LogManager.getRootLogger().getLevel(), dict(properties)
    # The session of the tests goes on in this JVM.
    monkeypatch.setattr(context, "end_left_context", lambda _: False)
    spark.sparkContext.setLogLevel("OFF")
    try:
        context.prepare({name: value for name, value in own.items() if name.startswith("spark.")})
        assert str(log4j.LogManager.getRootLogger().getLevel()) == "WARN"
    finally:
        spark.sparkContext.setLogLevel(str(before))
