"""The largest keys of a window, as they are written for the command and the page."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

from include.cli.live import render
from include.monitor import exact_json
from include.monitor.live_page import clean_counts
from include.pipelines import load_pipeline
from spark_jobs.live.top import LiveTop

START = datetime(2026, 11, 20, 5, tzinfo=UTC)


def test_decimals_are_written_and_shown_with_all_digits_when_the_measure_is_one(tmp_path: Path) -> None:
    pipeline = load_pipeline("isp_hits")
    report = replace(pipeline.top_report, by=("zipcode",))
    top = LiveTop(pipeline, report, 1, tmp_path / "top.json")
    amounts: dict[tuple[str, ...], Decimal] = {
        ("94103",): Decimal("123456789012345.6789"),
        ("10001",): Decimal("-0.1000"),
    }
    top.counts[START, START + timedelta(minutes=10)] = dict(amounts)
    top.show()
    text = top.result.read_text()
    assert '"rows": [["94103", 123456789012345.6789], ["10001", -0.1000]]' in text
    shown = exact_json.loads(text)
    assert shown["windows"][0]["total"] == Decimal("123456789012345.5789")
    assert "123456789012345.6789" in "".join(map(str, render(shown).renderables[1].columns[1].cells))
    told = json.loads(json.dumps(clean_counts(shown)))
    assert told["windows"][0]["rows"][0] == ["94103", "123456789012345.6789"]
