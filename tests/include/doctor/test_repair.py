"""What `doctor --repair` does for other pipelines when something of one is refused; nothing is changed in earnest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import pytest

from include.catalog.changes import CatalogChange
from include.doctor import repair
from include.doctor.disagreement import Disagreement, Kind
from include.errors import TidemarkError, UsageError
from include.pipelines.spec import Pipeline

KIND: Kind = get_args(Kind)[0]
REFUSED, OTHER = "gps_positions", "nest_cameras"


class Repairs:
    """What is done, in order; `code` is the exit code of the Spark application."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[tuple[str, str]] = []
        self.code = 0
        monkeypatch.setattr(repair, "check_version", lambda: None)
        monkeypatch.setattr(repair, "check_storage", self.check_storage)
        monkeypatch.setattr(repair, "change_catalog", self.change_catalog)
        monkeypatch.setattr(repair, "_restore_open_tables", self.restore)
        monkeypatch.setattr(repair, "follow_ledger", lambda pipeline: self.note("completeness", pipeline))
        monkeypatch.setattr(repair.follow, "follow_ledger", lambda pipeline, **_: self.note("served", pipeline))

    def note(self, what: str, pipeline: Pipeline) -> list[str]:
        self.done.append((what, pipeline.name))
        return []

    def check_storage(self, pipeline: Pipeline) -> list[str]:
        if pipeline.name == REFUSED:
            raise UsageError("lake.gps_positions has registered files with other columns", pipeline=REFUSED)
        return []

    def change_catalog(self, changes: Sequence[CatalogChange], name: str) -> int:
        self.done += [("catalog", each.pipeline) for each in changes]
        return self.code

    def restore(self, pipeline: str, progress: Any) -> None:
        if pipeline == REFUSED:
            raise UsageError("the Iceberg table lake.gps_positions is not one that Tidemark made", pipeline=REFUSED)
        self.done.append(("iceberg", pipeline))


@pytest.fixture
def repairs(monkeypatch: pytest.MonkeyPatch) -> Repairs:
    return Repairs(monkeypatch)


def found(repair: Any) -> list[Disagreement]:
    return [Disagreement(KIND, name, "it differs", "", repair, name) for name in (REFUSED, OTHER)]


def test_others_are_repaired_when_the_tables_of_one_pipeline_do_not_fit(repairs: Repairs) -> None:
    said: list[str] = []
    with pytest.raises(UsageError, match="other columns"):
        repair.repair([*found("point the catalog"), *found("serve what is registered")], said.append)
    served = [("served", REFUSED), ("served", OTHER)]
    assert repairs.done == [("catalog", OTHER), ("completeness", OTHER), *served]
    assert said == [f"{REFUSED}: left: lake.gps_positions has registered files with other columns"]


def test_others_are_repaired_when_an_iceberg_table_of_one_pipeline_is_somebody_else_s(repairs: Repairs) -> None:
    with pytest.raises(UsageError, match="not one that Tidemark made"):
        repair.repair([*found("commit to Iceberg"), *found("point the catalog")[1:]], lambda _: None)
    assert repairs.done == [("iceberg", OTHER), ("catalog", OTHER), ("completeness", REFUSED), ("completeness", OTHER)]


def test_nothing_is_stated_when_the_catalog_could_not_be_changed(repairs: Repairs) -> None:
    repairs.code = 6
    with pytest.raises(TidemarkError, match="ended with exit code 6"):
        repair.repair(found("point the catalog"), lambda _: None)
    assert repairs.done == [("catalog", OTHER)]
