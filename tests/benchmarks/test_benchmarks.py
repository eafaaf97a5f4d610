"""The benchmarks run and do the work they time; their figures are for `./tidemark bench`, not for a verdict here."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytestmark = [pytest.mark.services, pytest.mark.benchmarks]


def test_archive_benchmark_lands_every_record_and_reports_a_ratio() -> None:
    path = Path(__file__).with_name("__main__.py")
    spec = importlib.util.spec_from_file_location("benchmarks_main", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.run("archive", events=5000, rounds=1)
    assert found["records"] == 5000
    assert found["throughput_ratio"]["min"] > 0
