"""When the base of a speed view counts: without ledger or lake."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from include.errors import AnotherWriter, TidemarkError
from include.ledger.archive.micro_batches import BatchCommit
from include.ledger.streams.generations import StreamGeneration
from include.ledger.streams.writers import Lease
from include.offsets import OffsetRange, TopicPartition
from include.pipelines import load_pipeline
from include.streams import start
from include.streams.start import StreamStart
from include.versions import view_version
from spark_jobs.streaming import speed_base
from spark_jobs.streaming.speed_base import Bases, load_base
from tests.conftest import wait_for

PIPELINE = load_pipeline("nest_cameras")
VIEW = PIPELINE.views[0]
FIRST, GENERATION = (StreamGeneration(PIPELINE.name, number, {}, {}) for number in (0, 3))
FACTS = {VIEW.name: {"transform sightings": "of this code"}}
TP = TopicPartition("nest-logs", 0)


class Made:
    """What was made of a base, in order, and what the ledger and the lake have."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[str] = []
        self.commits: list[tuple[Lease, BatchCommit]] = []
        self.locations: set[str] = set()
        self.archived = {TP: 9}
        self.counted: dict[TopicPartition, int] = {}
        """Where the view was in an earlier generation."""
        self.has_started = False
        self.damage = ""
        self.crashes = False
        self.now = 0.0
        self.slow = 0
        """How long the next read takes, s, and how many offsets are archived meanwhile."""
        self.read_between: list[tuple[Any, Any]] = []
        ledger = SimpleNamespace(
            token_of=lambda query_id, batch_id: self.commits[-1][0].token if self.commits else None,
            positions=lambda pipeline, query="archive": self.counted if query == VIEW.name else self.archived,
            stored_topics=lambda pipeline: {"nest-logs": "id"},
            move_query=self.commit,
        )
        lake = SimpleNamespace(delete=self.delete, list_entries=self.entries)
        monkeypatch.setattr(speed_base, "micro_batches", ledger)
        monkeypatch.setattr(speed_base, "lake", lake)
        monkeypatch.setattr(speed_base, "StoredBase", self.stored_base())
        monkeypatch.setattr(start.generations, "note_start", self.note)
        monkeypatch.setattr(speed_base, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(speed_base, "_archived", self.read)
        monkeypatch.setattr(speed_base, "_aggregate", lambda *_: "aggregated")
        monkeypatch.setattr(speed_base, "declared_measures", lambda _, __, values: values)
        monkeypatch.setattr(speed_base, "first_committed_offsets", lambda pipeline: {TP: 2})
        monkeypatch.setattr(speed_base, "has_started", lambda *_: self.has_started)
        monkeypatch.setattr(speed_base, "checkpoint_uri", lambda generation, query: f"g{generation.number}/{query}")

    def read(self, _: Any, __: Any, before: Any, ends: Any) -> None:
        """Read what was archived in between, for a while in which the archive query goes on."""
        self.read_between.append((before, ends))
        if self.slow:
            self.archived, self.now = {TP: ends[TP] + self.slow}, self.now + self.slow
            self.slow //= 10

    def entries(self, folder: str, *, recursive: bool) -> list[SimpleNamespace]:
        """List what lies in a folder; beside the bases, a view whose name begins alike."""
        others = {f"{folder}/{VIEW.name}", f"{folder}/{VIEW.name}_2.base-1"}
        return [SimpleNamespace(name=each.removeprefix(f"{folder}/")) for each in {*self.locations, *others}]

    def delete(self, location: str) -> None:
        self.steps.append(f"deleted {location}")
        self.locations.discard(location)

    def commit(self, lease: Lease, batch: BatchCommit) -> None:
        self.steps.append("committed")
        self.commits.append((lease, batch))

    def note(self, generation: StreamGeneration, query: str, facts: Any, began_at: Any) -> None:
        assert (generation, facts, began_at) == (GENERATION, FACTS[query], {})
        self.steps.append(f"noted {query}")

    def stored_base(self) -> Any:
        def write(values: Any, location: str) -> None:
            assert location not in self.locations or len(self.read_between) > 1
            self.steps.append(f"written {location}")
            self.locations.add(location)

        def of(spark: Any, view: Any, location: str) -> Any:
            gone = "" if location in self.locations else "there is no such folder"
            return SimpleNamespace(location=location, every=lambda: location, damage=lambda: gone or self.damage)

        of.write = write  # type: ignore[attr-defined]
        return of

    def replace(self, values: Any, version: int) -> None:
        """Take the base's values, as the view's target."""
        assert version == GENERATION.version(-1)
        self.steps.append(f"emitted {values}")
        self.now += 4000.0
        if self.crashes:
            raise RuntimeError("killed")

    def load(self, token: int, generation: StreamGeneration = GENERATION) -> Any:
        """Load the base as a driver that holds the lease with this token."""
        unused: Any = None
        target: Any = self
        start = StreamStart(generation, FACTS)
        return load_base(unused, PIPELINE, VIEW, Lease(PIPELINE.name, token, "here"), start, [target])


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


def test_base_counts_only_when_its_values_are_where_readers_find_them(made: Made) -> None:
    at = f"g3/{VIEW.name}.base-7"
    assert made.load(7).location == at
    # With what it is made by, before anything is: later code must not go on with it.
    assert made.steps == [f"noted {VIEW.name}", f"written {at}", f"emitted {at}", "committed"]
    [(_, batch)] = made.commits
    # The view begins where the archive ends.
    assert (batch.query, batch.batch_id, batch.ranges) == (
        VIEW.name,
        GENERATION.version(-1),
        [OffsetRange(TP, 2, 9, "id")],
    )
    # As an interval's comparison names the current code, else what the base holds counts as of other code.
    assert batch.decoder_version == view_version(PIPELINE.name, VIEW.name)
    # Values are searched from when the first of them was written.
    assert batch.seconds == 4000


def test_base_is_made_again_and_elsewhere_when_a_driver_was_killed_before_it_counted(made: Made) -> None:
    made.crashes = True
    with pytest.raises(RuntimeError):
        made.load(7)
    assert made.commits == []
    made.crashes, made.steps = False, []
    before, at = (f"g3/{VIEW.name}.base-{token}" for token in (7, 8))
    assert made.load(8).location == at
    # What was written before goes, else each driver that is killed there would leave it for good.
    assert made.steps == [f"noted {VIEW.name}", f"deleted {before}", f"written {at}", f"emitted {at}", "committed"]


def test_base_stays_that_of_the_driver_that_made_it_when_another_one_starts(made: Made) -> None:
    made.load(7)
    made.steps, made.archived, made.has_started = [], {TP: 20}, True
    assert made.load(8).location == f"g3/{VIEW.name}.base-7"
    assert made.steps == []


def test_stream_does_not_begin_when_its_base_is_gone(made: Made) -> None:
    made.load(7)
    made.locations.clear()
    with pytest.raises(TidemarkError, match=rf"the base of the speed view {VIEW.name} is gone: .*base-7") as raised:
        made.load(8)
    assert "new-generation nest_cameras" in raised.value.remedy


def test_stream_does_not_begin_when_its_base_lacks_a_file(made: Made) -> None:
    made.load(7)
    made.damage = "file missing: day=2026-11-20/part-0.parquet"
    with pytest.raises(
        TidemarkError, match=r"is gone: .*base-7: file missing: day=2026-11-20/part-0.parquet"
    ) as raised:
        made.load(8)
    assert "new-generation nest_cameras" in raised.value.remedy


def test_base_is_empty_and_the_former_position_forgotten_when_nothing_was_archived_of_what_the_view_counted(
    made: Made,
) -> None:
    made.archived, made.counted = {}, {TP: 4}
    at = f"g3/{VIEW.name}.base-7"
    assert made.load(7).location == at
    assert made.steps[-2:] == [f"emitted {at}", "committed"]
    [(_, batch)] = made.commits
    assert batch.ranges == []


def test_base_is_empty_when_a_new_generation_takes_over_what_another_ledger_wrote(made: Made) -> None:
    made.archived = {}
    at = f"g3/{VIEW.name}.base-7"
    assert made.load(7).location == at
    # Which deletes the other's keys.
    assert made.steps[-2:] == [f"emitted {at}", "committed"]


def test_base_follows_the_archive_when_computing_it_takes_long(made: Made) -> None:
    """Kafka has removed by then what was at the position at which it began."""
    made.slow = 4000
    assert made.load(7).location == f"g3/{VIEW.name}.base-7"
    ends = [{TP: at} for at in (9, 4009, 4409, 4449)]
    assert made.read_between == list(zip([None, *ends], ends, strict=False))
    [(_, batch)] = made.commits
    # The last part took 4 s: what was archived in these, the view reads.
    assert batch.ranges == [OffsetRange(TP, 2, 4449, "id")]
    assert [step.split()[0] for step in made.steps] == ["noted", *["written"] * 4, "emitted", "committed"]


@pytest.fixture
def bases_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bases]:
    """The thread that makes the base of the view, by this function."""

    def bases(spark: Any, make: Callable[[Any], object]) -> Bases:
        monkeypatch.setattr(speed_base, "is_due", lambda *_: True)
        monkeypatch.setattr(speed_base, "load_base", lambda spark, *_: make(spark))
        lease, start = Lease(PIPELINE.name, 7, "here"), StreamStart(GENERATION, FACTS)
        return Bases(spark, PIPELINE, lease, start, {VIEW.name: []})

    return bases


@pytest.mark.spark
def test_queries_get_task_slots_and_the_stream_can_stop_when_a_base_takes_long(
    spark: Any, bases_of: Callable[..., Bases]
) -> None:
    bases = bases_of(spark, lambda spark: spark.range(0, 2_000, 1, 2_000).count())
    bases.start()
    jobs = spark.sparkContext.statusTracker()
    wait_for("the base's job", lambda: jobs.getJobIdsForGroup(f"bases of {PIPELINE.name}, 7"), 30)
    # As a micro-batch, which began later.
    assert spark.range(0, 100, 1, 8).count() == 100
    stages = [stage for each in jobs.getActiveStageIds() if (stage := jobs.getStageInfo(each))]
    assert [each.numCompletedTasks < 1_000 for each in stages if each.numTasks == 2_000] == [True]
    assert list(bases.taken()) == []
    assert bases.end()
    assert bases.awaited == {VIEW.name}
    with pytest.raises(Py4JJavaError, match="cancelled"):
        list(bases.taken())


@pytest.mark.spark
def test_stream_learns_why_a_base_was_not_made(spark: Any, bases_of: Callable[..., Bases]) -> None:
    def refuse(_: Any) -> None:
        raise AnotherWriter("the lease is over", remedy="none")

    bases = bases_of(spark, refuse)
    bases.start()
    bases.join(30)
    with pytest.raises(AnotherWriter):
        list(bases.taken())
    assert bases.end()
    assert bases.awaited == {VIEW.name}


@pytest.mark.parametrize(
    ("generation", "archived", "has_started"), [(FIRST, {}, False), (FIRST, {TP: 9}, True), (GENERATION, {TP: 9}, True)]
)
def test_view_has_no_base_when_it_counts_from_the_beginning(
    made: Made, generation: StreamGeneration, archived: dict[TopicPartition, int], has_started: bool
) -> None:
    made.archived, made.has_started = archived, has_started
    assert made.load(7, generation) is None
    assert made.steps == []
