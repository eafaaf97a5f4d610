"""The generator of wiki changes, what the follower learns of an event, and the table that `top` draws."""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from include.cli.live import render
from include.pipelines import load_pipeline
from include.pipelines.spec import AdditiveView, Pipeline, Top
from include.producing.event_stream import EventFacts
from include.producing.generate import messages
from include.producing.messages import wiki_changes
from tests.support.corpora import JSON_CASES

MOMENT = datetime(2026, 11, 20, 5, tzinfo=UTC)


def generated(bad_fraction: float, seed: int = 1) -> list[tuple[Any, ...]]:
    pipeline, span = load_pipeline("wiki_changes"), timedelta(hours=1)
    return list(messages(pipeline, events=3000, seed=seed, bad_fraction=bad_fraction, start=MOMENT, span=span))


def test_changes_are_the_same_only_when_the_seed_is() -> None:
    assert generated(0.1) == generated(0.1)
    assert generated(0.1) != generated(0.1, seed=2)


def test_changes_are_skewed_and_of_all_types_when_they_are_generated() -> None:
    changes = [json.loads(value) for _, _, value, _ in generated(0.0)]
    users = Counter(change["user"] for change in changes if not change["bot"])
    assert users.most_common(1)[0][1] > 20 * sorted(users.values())[0]
    assert {change["type"] for change in changes} == {"edit", "new", "log", "categorize"}
    assert len({change["meta"]["id"] for change in changes}) == len(changes)
    assert any(change["meta"]["domain"] == "canary" for change in changes)
    assert all(change["bot"] == change["user"].endswith("Bot") for change in changes)


def test_message_is_bad_for_its_named_reason_when_it_is_generated_so() -> None:
    bad = [(value, reason) for _, _, value, reason in generated(0.5) if reason]
    assert len({reason for _, reason in bad}) == 11
    for value, reason in bad:
        if reason == "not_utf8":
            with pytest.raises(UnicodeDecodeError):
                value.decode()
        elif reason in ("required_missing", "unsafe_partition_value", "value_too_long"):
            json.loads(value)


def test_facts_are_those_of_the_change_when_it_has_them() -> None:
    key, value = wiki_changes.message(MOMENT, random.Random(2))
    change = json.loads(value)
    facts = wiki_changes.describe_event(value.decode())
    assert facts == EventFacts(change["meta"]["id"], key, MOMENT, is_canary=False)
    assert key == f"{change['wiki']}:{change['title']}".encode()


@pytest.mark.parametrize(
    ("data", "facts"),
    [
        ("", EventFacts()),
        ("null", EventFacts()),
        ("[" * 100_000, EventFacts()),
        ('{"meta": null, "timestamp": true}', EventFacts()),
        ('{"meta": {"id": "", "dt": 5}, "timestamp": 1e99}', EventFacts()),
        ('{"timestamp": 1795150800}', EventFacts(moment=MOMENT)),
        ('{"meta": {"dt": "2026-11-20T06:00:00+01:00"}}', EventFacts(moment=MOMENT)),
        ('{"meta": {"dt": "0001-01-01T00:00:00+23:00"}, "timestamp": 1795150800}', EventFacts(moment=MOMENT)),
        ('{"meta": {"domain": "canary"}}', EventFacts(is_canary=True)),
        ('{"wiki": "w", "title": "\\ud800"}', EventFacts(key=b"w:?")),
    ],
)
def test_fact_is_none_when_the_data_does_not_have_it(data: str, facts: EventFacts) -> None:
    assert wiki_changes.describe_event(data) == facts


def test_description_never_raises_when_texts_are_odd() -> None:
    for path in JSON_CASES:
        text = path.read_bytes().decode("utf-8", "replace")
        assert isinstance(wiki_changes.describe_event(text), EventFacts)
        assert isinstance(wiki_changes.describe_event(f'{{"meta": {text}, "timestamp": {text}}}'), EventFacts)


def test_names_are_shown_uncoloured_when_they_are_hostile() -> None:
    rows = [["[red]x[/red]", False, 9], ["\x1b[31mESC", True, 3]]
    window = {"from": "2026-11-20T05:00:00Z", "to": "2026-11-20T05:10:00Z", "total": 12, "keys": 2, "rows": rows}
    found = {
        "pipeline": "wiki_changes", "title": "Top", "by": ["user", "bot"], "measure": "count", "late": 0, "ahead": 0,
        "updated_at": "2026-11-20T05:11:00Z", "watermark": None, "since": "2026-11-20T05:00:00Z", "windows": [window],
    }  # fmt: skip
    out = io.StringIO()
    Console(file=out, width=120, color_system=None).print(render(found))
    text = out.getvalue()
    assert "[red]x[/red]" in text
    assert "watermark" not in text
    assert "\x1b" not in text
    bars = [line.count("━") for line in text.splitlines() if "━" in line]
    assert bars[0] == 3 * bars[1] == 30
    Console(file=out, width=120).print(render({**found, "watermark": "2026-11-20T05:01:00Z"}))
    assert "updated 2026-11-20T05:11:00Z, watermark 2026-11-20T05:01:00Z" in out.getvalue()


@pytest.mark.parametrize(
    "report", [Top("t", "user_edits", "edits", ("user",)), Top("t", "user_edits", "count", ("window",))]
)
def test_top_is_refused_when_it_does_not_fit_its_view(report: Top) -> None:
    from dataclasses import replace

    from include.errors import UsageError

    pipeline: Pipeline = load_pipeline("wiki_changes")
    assert isinstance(pipeline.views[0], AdditiveView)
    with pytest.raises(UsageError, match="does not fit"):
        replace(pipeline, reports=(report,))
