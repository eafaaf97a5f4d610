"""The first start of a stream under a name, or with a table, that another pipeline had: it is refused."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from include.errors import UsageError
from include.ledger.streams.generations import StreamGeneration
from include.pipelines import load_pipeline
from include.pipelines.spec import JdbcTable, Pipeline
from include.serving import live_rows
from include.streams import start

NEST = load_pipeline("nest_cameras")
VIEW = NEST.views[0].name
SERVED = replace(NEST, views=(replace(NEST.views[0], sinks=(JdbcTable(),)),))
TABLE = SERVED.view_table(SERVED.views[0])


class Created(Exception):
    """The first thing that a start changes."""


@dataclass
class Known:
    """What ledger and PostgreSQL have of the pipeline's name and of its table."""

    lines: str | None = None
    """Which pipeline was read from lines under the name."""
    topics: dict[str, str] = field(default_factory=dict)
    """Those that micro-batches were read from."""
    generation: StreamGeneration | None = None
    versions: dict[str, int] = field(default_factory=dict)
    has_batch: bool = False


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Known:
    found = Known()
    for check in ("check_lake", "check_event_time", "check_storage_early", "check_references", "check_watched_things"):
        monkeypatch.setattr(start, check, lambda *_: None)
    for passed in ("check_sources", "keep_references", "check_only_ledger", "check_own_topics"):
        monkeypatch.setattr(start, passed, lambda *_: None)
    monkeypatch.setattr(start, "check_compacted_topics", lambda _: None)
    monkeypatch.setattr(start, "describe_source", lambda _: {})
    monkeypatch.setattr(start, "topics_back", lambda _: [])
    monkeypatch.setattr(start.kafka, "create_topic", lambda *_: True)
    monkeypatch.setattr(start.micro_batches, "stored_topics", lambda _: found.topics)
    monkeypatch.setattr(start.lines, "declared_under", lambda _: found.lines)
    monkeypatch.setattr(live_rows.generations, "current", lambda _: found.generation)
    monkeypatch.setattr(live_rows, "has_batch_since", lambda *_: found.has_batch)
    monkeypatch.setattr(
        live_rows, "_versions", lambda tables: {each: found.versions[each] for each in tables if each in found.versions}
    )

    def create(_: Pipeline) -> None:
        raise Created

    monkeypatch.setattr(start, "create_written_topics", create)
    return found


def test_stream_is_refused_when_another_pipeline_was_read_from_lines_by_its_name_before_it_archived_anything(
    known: Known,
) -> None:
    known.lines = "nest"
    with pytest.raises(UsageError, match="nest was read from lines under the name nest_cameras"):
        start.begin(NEST)
    # It went on beside the lines before this was refused.
    known.topics = {"nest-cameras": "id"}
    with pytest.raises(Created):
        start.begin(NEST)


def test_stream_is_refused_when_its_view_never_ran_and_another_pipeline_wrote_the_served_table(known: Known) -> None:
    known.versions = {TABLE: 7}
    for known.generation in (None, StreamGeneration(NEST.name, 0, {}, {})):
        with pytest.raises(UsageError, match=f"the table {TABLE} of serving was written before the view {VIEW}"):
            start.begin(SERVED)
    # Without the table nobody asks for it.
    with pytest.raises(Created):
        start.begin(replace(SERVED, views=(replace(SERVED.views[0], sinks=()),)))


RUNS = {
    "has no table yet": Known(generation=StreamGeneration(NEST.name, 0, {}, {})),
    "was killed before its first commit": Known(
        generation=StreamGeneration(NEST.name, 0, {}, {VIEW: "{}"}), versions={TABLE: 7}
    ),
    "was killed after its base": Known(
        generation=(third := StreamGeneration(NEST.name, 3, {}, {})), versions={TABLE: third.version(-1)}
    ),
    "has committed in an earlier generation": Known(
        generation=third, versions={TABLE: third.version(7)}, has_batch=True
    ),
}


@pytest.mark.parametrize("case", RUNS)
def test_stream_goes_on_when_its_view_wrote_the_served_table_or_nobody_did(known: Known, case: str) -> None:
    vars(known).update(vars(RUNS[case]))
    with pytest.raises(Created):
        start.begin(SERVED)
