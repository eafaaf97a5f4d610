"""What a Spark application is started with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from include.settings import settings
from include.spark_submit import DELTA, submission


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path))
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.mark.parametrize("delta", [True, False])
def test_delta_and_its_jars_are_there_only_for_applications_that_need_them(delta: bool) -> None:
    conf = submission("stream", name="stream", delta=delta).conf
    assert ("delta-spark" in conf["spark.jars"]) is delta
    assert "spark-sql-kafka" in conf["spark.jars"]
    assert (conf.keys() >= DELTA.keys()) is delta
