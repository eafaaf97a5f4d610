"""What a checkpoint depends on: changes that must be refused are named, others are none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from include.errors import UsageError
from include.pipelines import load_pipeline, pipeline_names
from include.pipelines.spec import Csv, JdbcTable, Json, KafkaDeserializer, Pipeline, Reference, Text, UserDefined
from include.streams import fingerprint

TRANSFORMS = '''
"""Of this pipeline."""

from pyspark.sql import functions as F, Column

LIMIT = 1

def cameras(message):
    """Cameras."""
    return F.map_values(message["devices"]["cameras"])

def sightings(archive, references):
    # Only persons.
    return archive.where(F.col("n") > LIMIT)

def hourly_counts(sightings):
    return sightings.groupBy("zip_code").count()

def offline_cameras(archive):
    return archive
'''


@pytest.fixture
def pipeline() -> Pipeline:
    return load_pipeline("nest_cameras")


def of(pipeline: Pipeline, text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> fingerprint.Facts:
    path = folder / "spark_jobs" / "transforms" / "nest_cameras.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    monkeypatch.setattr(fingerprint, "REPOSITORY", folder)
    return fingerprint.view_fingerprint(pipeline, pipeline.views[0])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# Only persons.", "# Persons and nothing else."),
        ('"""Cameras."""', '"""The cameras of a message."""'),
        (
            "def offline_cameras(archive):\n    return archive",
            "def offline_cameras(archive):\n    return archive.limit(1)",
        ),
        ("functions as F, Column", "Column, DataFrame, functions as F"),
        ('archive.where(F.col("n") > LIMIT)', 'archive.where(\n        F.col("n") > LIMIT\n    )'),
    ],
)
def test_fingerprint_stays_when_only_words_layout_or_other_functions_change(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    assert old in TRANSFORMS
    before = of(pipeline, TRANSFORMS, tmp_path, monkeypatch)
    assert of(pipeline, TRANSFORMS.replace(old, new), tmp_path, monkeypatch) == before


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('F.col("n") > LIMIT', 'F.col("n") >= LIMIT', "transform sightings changed"),
        ("LIMIT = 1", "LIMIT = 2", "transform LIMIT changed"),
        ('groupBy("zip_code")', 'groupBy("device_id")', "transform hourly_counts changed"),
        ("from pyspark.sql import functions as F", "from mine import functions as F", "transform F changed"),
    ],
)
def test_changed_function_or_constant_is_named_when_the_view_reaches_it(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, named: str
) -> None:
    before = of(pipeline, TRANSFORMS, tmp_path, monkeypatch)
    after = of(pipeline, TRANSFORMS.replace(old, new), tmp_path, monkeypatch)
    assert fingerprint.differences(before, after)[0] == named


SHARED = '''
"""Shared by pipelines."""

from other_places import metres

RADIUS: int = 1

def near(column):
    """Near."""
    return column < RADIUS * metres()

def far(column):
    return column > 9
'''

OTHER_PLACES = """
def metres():
    return 1

def miles():
    return 1609
"""

NOTED = {
    "transform F": "926ca47ca33a",
    "transform LIMIT": "bf33cbeb5cc4",
    "transform cameras": "f5876e5abb71",
    "transform hourly_counts": "774bd1fc2f31",
    "transform sightings": "2c1f8ab88a26",
}
"""What version 0.1.0 noted of TRANSFORMS."""

IMPORTS = {
    "name": ("from spark_jobs.transforms.shared import near", "near"),
    "other name": ("from spark_jobs.transforms.shared import near as is_near", "is_near"),
    "relative name": ("from .shared import near", "near"),
    "module": ("from spark_jobs.transforms import shared", "shared.near"),
    "relative module": ("from . import shared", "shared.near"),
    "module by another name": ("import spark_jobs.transforms.shared as s", "s.near"),
    "passed on": ("from spark_jobs.transforms.passed_on import near", "near"),
    "package": ("import spark_jobs.transforms as all_of_them", "all_of_them.shared.near"),
}


@dataclass
class Helpers:
    """A pipeline whose transforms import helpers: of the project, and of a package beside it."""

    pipeline: Pipeline
    repository: Path
    beside: Path
    monkeypatch: pytest.MonkeyPatch
    shared: str = SHARED
    other_places: str = OTHER_PLACES

    def facts(self, statement: str, function: str, *, inside: bool = False) -> fingerprint.Facts:
        transforms = self.repository / "spark_jobs" / "transforms"
        transforms.mkdir(parents=True, exist_ok=True)
        (transforms / "shared.py").write_text(self.shared)
        (transforms / "passed_on.py").write_text("from .shared import near\n")
        (self.beside / "other_places.py").write_text(self.other_places)
        text = TRANSFORMS if inside else TRANSFORMS.replace("LIMIT = 1", f"{statement}\n\nLIMIT = 1")
        body = f"return archive.where({function}('n')).where(F.col('n') > LIMIT)"
        body = f"{statement}\n    {body}" if inside else body
        text = text.replace('return archive.where(F.col("n") > LIMIT)', body)
        return of(self.pipeline, text, self.repository, self.monkeypatch)


@pytest.fixture
def helpers(pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Helpers:
    beside = tmp_path / "beside"
    beside.mkdir()
    monkeypatch.syspath_prepend(str(beside))
    return Helpers(pipeline, tmp_path / "checkout", beside, monkeypatch)


@pytest.mark.parametrize("how", IMPORTS)
@pytest.mark.parametrize("inside", [False, True])
def test_changed_helper_is_named_however_it_is_imported(helpers: Helpers, how: str, inside: bool) -> None:
    before = helpers.facts(*IMPORTS[how], inside=inside)
    assert helpers.facts(*IMPORTS[how], inside=inside) == before
    helpers.shared = SHARED.replace("RADIUS: int = 1", "RADIUS: int = 2")
    after = helpers.facts(*IMPORTS[how], inside=inside)
    with pytest.raises(UsageError, match=r"code of spark_jobs\.transforms\.shared[.\w]* changed") as refused:
        fingerprint.check("nest_cameras", "hourly_counts", before, after)
    assert "./tidemark new-generation nest_cameras --reason" in str(refused.value)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("RADIUS: int = 1", "RADIUS: int = 2", ["code of spark_jobs.transforms.shared.RADIUS changed"]),
        ("column < RADIUS", "column <= RADIUS", ["code of spark_jobs.transforms.shared.near changed"]),
        ("column > 9", "column > 10", []),
        ('"""Near."""', "# Nearby.", []),
        ('"""Shared by pipelines."""', "", []),
    ],
)
def test_only_what_is_reached_counts_when_a_helper_s_module_changes(
    helpers: Helpers, old: str, new: str, named: list[str]
) -> None:
    assert old in SHARED
    before = helpers.facts(*IMPORTS["module"])
    helpers.shared = SHARED.replace(old, new)
    assert fingerprint.differences(before, helpers.facts(*IMPORTS["module"])) == named


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [("return 1\n", "return 2\n", ["code of other_places.metres changed"]), ("1609", "1610", [])],
)
def test_code_of_a_package_beside_the_project_counts_when_a_helper_reaches_it(
    helpers: Helpers, old: str, new: str, named: list[str]
) -> None:
    before = helpers.facts(*IMPORTS["name"])
    helpers.other_places = OTHER_PLACES.replace(old, new)
    assert fingerprint.differences(before, helpers.facts(*IMPORTS["name"])) == named


def test_whole_module_counts_when_what_it_gives_is_not_written_at_its_top(helpers: Helpers) -> None:
    helpers.shared = f"if True:\n    def near(column):\n        return column\n\n{OTHER_PLACES}"
    before = helpers.facts(*IMPORTS["name"])
    helpers.shared = helpers.shared.replace("1609", "1610")
    after = helpers.facts(*IMPORTS["name"])
    assert fingerprint.differences(before, after) == ["code of spark_jobs.transforms.shared changed"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("RADIUS: int = 1", "RADIUS = [1]\nRADIUS[0] = 2"),
        ("RADIUS: int = 1", "RADIUS = [1]\nRADIUS += [2]"),
        ("RADIUS: int = 1", "RADIUS = []\nRADIUS.append(2)"),
        ("RADIUS: int = 1", "RADIUS = 1\nif RADIUS:\n    RADIUS = 2"),
        ("RADIUS: int = 1", "try:\n    RADIUS = 2\nexcept OSError:\n    RADIUS = 1"),
        ("RADIUS: int = 1", "async def RADIUS():\n    return 2"),
        ("RADIUS: int = 1", "RADIUS = {1: 1}\nfor number in range(2):\n    RADIUS[number] = number"),
        ("RADIUS: int = 1", "RADIUS = [1]\nfor number in (1, 2):\n    RADIUS.append(number)"),
        ("RADIUS: int = 1", "RADIUS = [0, 0, 0]\ndel RADIUS[2]"),
        ("RADIUS: int = 1", "RADIUS = {1: 1}\nsetattr(RADIUS, '2', 1)"),
    ],
)
@pytest.mark.parametrize("where", ["helper", "transform"])
@pytest.mark.parametrize("part", ["1", "2"])
def test_every_statement_counts_when_several_make_a_constant(
    helpers: Helpers, old: str, new: str, where: str, part: str
) -> None:
    if part not in new:
        new = new.replace("2", part)

    def facts(text: str) -> fingerprint.Facts:
        if where == "helper":
            helpers.shared = SHARED.replace(old, text)
            return helpers.facts(*IMPORTS["name"])
        return of(helpers.pipeline, TRANSFORMS.replace("LIMIT = 1", text.replace("RADIUS", "LIMIT")),
                  helpers.repository, helpers.monkeypatch)  # fmt: skip

    before = facts(new)
    assert facts(new) == before
    assert fingerprint.differences(before, facts(new.replace(part, "77")))


SEVERAL = """
NAMES = ["a"]
NAMES.append("b")
LIMIT = 1
if NAMES:
    LIMIT = 2

def near(column):
    return column.isin(NAMES) & (column < LIMIT)
"""


def test_fact_of_a_name_keeps_its_form_when_several_statements_make_it(helpers: Helpers) -> None:
    """Earlier code noted the last definition alone: a stream of that time goes on, and notes the others."""
    helpers.shared = SEVERAL
    now, prefix = helpers.facts(*IMPORTS["name"]), "code of spark_jobs.transforms.shared"
    noted = {f"{prefix}.NAMES": "bb574e1f2a31", f"{prefix}.LIMIT": "bf33cbeb5cc4"}
    assert {name: now[name] for name in noted} == noted
    old = {name: each for name, each in now.items() if not name.startswith(prefix) or name in noted}
    fingerprint.check("nest_cameras", "hourly_counts", old, now)
    assert {name for name in now if name.startswith(prefix)} == {*noted, f"{prefix}.near", prefix} | {
        f"{prefix}.{name}, all statements" for name in ("NAMES",)
    }


def test_other_functions_do_not_count_when_a_module_imports_for_type_checkers(helpers: Helpers) -> None:
    only_types = "if TYPE_CHECKING:\n    from pyspark.sql import Column\n\n"
    shared = SHARED.replace("near(column)", "near(column: Column)")
    helpers.shared = f"from typing import TYPE_CHECKING\n{only_types}{shared}"
    before = helpers.facts(*IMPORTS["name"])
    helpers.shared = helpers.shared.replace("column > 9", "column > 10")
    assert helpers.facts(*IMPORTS["name"]) == before


def test_all_that_a_module_reaches_counts_when_it_is_used_as_a_whole(helpers: Helpers) -> None:
    helpers.shared = SHARED.replace("from other_places import", "from .passed_on import")
    statement = "from spark_jobs.transforms import shared"
    before = helpers.facts(statement, "getattr(shared, 'near')")
    assert "code of spark_jobs.transforms.shared" in before
    assert "code of spark_jobs.transforms.passed_on" in before


@pytest.mark.parametrize(
    ("statement", "file"),
    [
        ("from include.times import near", "checkout/include/times.py"),
        ("from include.pipelines.spec import near", "checkout/include/pipelines/spec/__init__.py"),
        ("from spark_jobs.decoding.records import near", "checkout/spark_jobs/decoding/records.py"),
        ("from installed import near", "beside/site-packages/installed.py"),
        ("from nowhere import near", "nowhere.py"),
    ],
)
def test_code_of_tidemark_and_of_installed_packages_does_not_count(
    helpers: Helpers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, file: str
) -> None:
    monkeypatch.syspath_prepend(str(helpers.beside / "site-packages"))
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("def near(column):\n    return 1\n")
    before = helpers.facts(statement, "near")
    assert not [name for name in before if name.startswith("code of ")]
    (tmp_path / file).write_text("def near(column):\n    return 2\n")
    assert helpers.facts(statement, "near") == before


def test_hashes_of_code_are_those_that_streams_have_noted(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another form would make every stream begin a new generation.
    facts = of(pipeline, TRANSFORMS, tmp_path, monkeypatch)
    assert {name: value for name, value in facts.items() if name.startswith("transform ")} == NOTED


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (Json("a STRING"), Json("a STRING", max_bytes=9), "decoder's max_bytes: 1048576 → 9"),
        (Csv("a STRING"), Csv("a STRING", separator=";"), "decoder's separator: , → ;"),
        (Csv("text STRING", max_bytes=9), Text(max_bytes=9), "decoder's kind: Csv → Text"),
        (
            UserDefined("json:loads", "a STRING"),
            UserDefined("json:load", "a STRING"),
            "decoder's function: json:loads → json:load",
        ),
    ],
)
def test_option_of_the_decoder_is_told_when_it_differs(pipeline: Pipeline, before: Any, after: Any, told: str) -> None:
    view = pipeline.views[0]
    facts = [fingerprint.view_fingerprint(replace(pipeline, decoder=each), view) for each in (before, after)]
    assert told in fingerprint.differences(*facts)
    with pytest.raises(UsageError, match="was made by another query"):
        fingerprint.check("nest_cameras", view.name, *facts)


def test_jar_of_the_decoder_is_named_when_its_content_differs(pipeline: Pipeline, tmp_path: Path) -> None:
    decoder = KafkaDeserializer(tmp_path / "meters.jar", "com.example.Meters", "a STRING", {"unit": "kWh"})
    found = []
    for content in (b"a", b"b"):
        decoder.jar.write_bytes(content)
        found.append(fingerprint.view_fingerprint(replace(pipeline, decoder=decoder), pipeline.views[0]))
    assert fingerprint.differences(*found) == ["decoder's jar changed"]


def test_decoding_function_counts_with_what_it_reaches(helpers: Helpers) -> None:
    helpers.pipeline = replace(helpers.pipeline, decoder=UserDefined("spark_jobs.transforms.shared:near", "a STRING"))
    before = helpers.facts("", "max")
    helpers.other_places = OTHER_PLACES.replace("return 1\n", "return 2\n")
    assert fingerprint.differences(before, helpers.facts("", "max")) == ["code of other_places.metres changed"]


def test_declared_facts_are_told_old_and_new_when_they_differ(pipeline: Pipeline) -> None:
    view = pipeline.views[0]
    before = fingerprint.view_fingerprint(pipeline, view)
    changed = replace(view, speed=replace(view.speed, watermark="2h"), key=("window", "zip_code"))
    references = {**pipeline.references, "streets": Reference(Path("streets.csv"), "street STRING")}
    after = fingerprint.view_fingerprint(replace(pipeline, references=references), changed)
    assert fingerprint.differences(before, after) == [
        "key: zip_code, window → window, zip_code",
        "reference streets: none → street STRING",
        "watermark: 1 hour → 2 hours",
    ]
    with pytest.raises(UsageError) as refused:
        fingerprint.check("nest_cameras", view.name, before, after)
    assert refused.value.exit_code == 64
    assert "watermark: 1 hour → 2 hours" in str(refused.value)
    assert "./tidemark new-generation nest_cameras --reason" in str(refused.value)


def test_column_of_the_archive_differs_when_unknown_fields_are_kept(pipeline: Pipeline) -> None:
    view = pipeline.views[0]
    keeping = replace(pipeline, decoder=replace(pipeline.decoder, unknown="keep"))  # type: ignore[call-arg]
    before, after = (fingerprint.view_fingerprint(each, view) for each in (pipeline, keeping))
    (told,) = fingerprint.differences(before, after)
    assert told.startswith("archive columns: ")
    assert told.endswith("unknown_fields STRING")
    # The archive query goes on from its checkpoint.
    assert fingerprint.archive_fingerprint(keeping) == fingerprint.archive_fingerprint(pipeline)


def with_reference(pipeline: Pipeline, path: Path, content: bytes) -> Pipeline:
    """The pipeline with this file as its reference."""
    path.write_bytes(content)
    reference = replace(pipeline.references["device_locations"], path=path)
    return replace(pipeline, references={"device_locations": reference})


def test_row_added_to_a_reference_is_refused_and_named_when_the_view_takes_it(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    view, content = pipeline.views[0], pipeline.references["device_locations"].path.read_bytes()
    before = fingerprint.view_fingerprint(pipeline, view)
    moved = with_reference(pipeline, tmp_path / "moved.csv", content)
    fingerprint.check("nest_cameras", view.name, before, fingerprint.view_fingerprint(moved, view))
    changed = with_reference(pipeline, tmp_path / "changed.csv", content + b"cam-9999,10001\n")
    with pytest.raises(UsageError, match="content of reference device_locations changed") as refused:
        fingerprint.check("nest_cameras", view.name, before, fingerprint.view_fingerprint(changed, view))
    assert './tidemark new-generation nest_cameras --reason "…"' in str(refused.value)


@pytest.mark.parametrize(
    ("rows", "counts"),
    [
        ('archive.join(references["device_locations"], "device_id")', True),
        ('archive.join(references["streets"], "device_id")', False),
        ("archive", False),
        ("joined(archive, references)", True),
        ('archive.join(references["streets"], "a").join(references[NAME], "device_id")', True),
    ],
)
def test_content_counts_only_when_the_rows_function_may_take_the_reference(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: str, counts: bool
) -> None:
    text = TRANSFORMS.replace('archive.where(F.col("n") > LIMIT)', rows)
    assert rows in text
    streets = Reference(tmp_path / "streets.csv", "street STRING")
    streets.path.write_bytes(b"street\n")
    before, after = (
        of(replace(changed, references={**changed.references, "streets": streets}), text, tmp_path, monkeypatch)
        for changed in (with_reference(pipeline, tmp_path / f"{content!r}.csv", content) for content in (b"a", b"b"))
    )
    assert (before != after) is counts


def test_generation_is_accepted_once_when_it_has_no_noted_contents(pipeline: Pipeline, tmp_path: Path) -> None:
    view = pipeline.views[0]
    now = fingerprint.view_fingerprint(pipeline, view)
    old = {name: value for name, value in now.items() if not name.startswith("content of reference ")}
    assert len(old) < len(now)
    fingerprint.check("nest_cameras", view.name, old, now)
    noted = {**old, **fingerprint.unnoted(old, now)}
    assert noted == now
    changed = fingerprint.view_fingerprint(with_reference(pipeline, tmp_path / "changed.csv", b"other"), view)
    with pytest.raises(UsageError, match="content of reference device_locations changed"):
        fingerprint.check("nest_cameras", view.name, noted, changed)


@pytest.mark.parametrize("prefix", ["code of ", "decoder's "])
def test_generation_is_accepted_once_when_an_earlier_version_did_not_note_helpers_and_options(
    helpers: Helpers, prefix: str
) -> None:
    now = helpers.facts(*IMPORTS["name"])
    old = {name: value for name, value in now.items() if not name.startswith(prefix)}
    assert len(old) < len(now)
    fingerprint.check("nest_cameras", "hourly_counts", old, now)
    noted = {**old, **fingerprint.unnoted(old, now)}
    assert noted == now
    helpers.shared = SHARED.replace("RADIUS: int = 1", "RADIUS: int = 2")
    helpers.pipeline = replace(helpers.pipeline, decoder=replace(helpers.pipeline.decoder, max_bytes=9))
    with pytest.raises(UsageError, match=f"{prefix}.*(changed|→ 9)"):
        fingerprint.check("nest_cameras", "hourly_counts", noted, helpers.facts(*IMPORTS["name"]))


def test_reference_is_named_when_it_has_no_file(pipeline: Pipeline, tmp_path: Path) -> None:
    gone = with_reference(pipeline, tmp_path / "gone.csv", b"")
    (tmp_path / "gone.csv").unlink()
    with pytest.raises(UsageError, match="the reference device_locations cannot be read"):
        fingerprint.view_fingerprint(gone, pipeline.views[0])


def test_excerpt_shows_the_place_when_a_long_fact_differs(pipeline: Pipeline) -> None:
    decoder = replace(
        pipeline.decoder, schema=pipeline.decoder.schema.replace("client_version: INT", "client_version: BIGINT")
    )
    before = fingerprint.view_fingerprint(pipeline, pipeline.views[0])
    after = fingerprint.view_fingerprint(replace(pipeline, decoder=decoder), pipeline.views[0])
    (difference,) = fingerprint.differences(before, after)
    assert difference.startswith("decoder schema: …")
    assert "BIGINT" in difference
    assert len(difference) < 200


def test_archive_query_s_fingerprint_changes_only_when_its_sources_do(pipeline: Pipeline) -> None:
    other = replace(pipeline, decoder=replace(pipeline.decoder, schema="a STRING"), views=(), reports=())
    assert fingerprint.archive_fingerprint(other) == fingerprint.archive_fingerprint(pipeline)
    added = replace(pipeline, source=replace(pipeline.source, subscribe=("nest-logs", "more-logs")))
    found = fingerprint.differences(fingerprint.archive_fingerprint(pipeline), fingerprint.archive_fingerprint(added))
    assert found == ["source topics: nest-logs → more-logs, nest-logs"]


def serving(pipeline: Pipeline, *sinks: JdbcTable, mode: Any = "update") -> fingerprint.Facts:
    view = replace(pipeline.views[0], sinks=sinks, mode=mode)
    return fingerprint.view_fingerprint(replace(pipeline, views=(view,)), view)


def test_table_is_refused_when_the_stream_has_counted_without_it(pipeline: Pipeline) -> None:
    without, kept = serving(pipeline), serving(pipeline, JdbcTable())
    with pytest.raises(UsageError, match=r"table in serving: none → kept — ./tidemark new-generation nest_cameras"):
        fingerprint.check("nest_cameras", "hourly_counts", without, kept)


def test_table_is_taken_for_complete_when_an_earlier_version_did_not_note_it(pipeline: Pipeline) -> None:
    kept = serving(pipeline, JdbcTable())
    old = {name: value for name, value in kept.items() if name != "table in serving"}
    fingerprint.check("nest_cameras", "hourly_counts", old, kept)
    assert fingerprint.unnoted(old, kept) == {"table in serving": "kept"}


def test_table_is_refused_again_when_the_stream_has_counted_since_it_was_taken_out(pipeline: Pipeline) -> None:
    kept, without = serving(pipeline, JdbcTable()), serving(pipeline)
    fingerprint.check("nest_cameras", "hourly_counts", kept, without)
    noted = {**kept, **fingerprint.unnoted(kept, without)}
    assert noted == without
    with pytest.raises(UsageError, match="none → kept"):
        fingerprint.check("nest_cameras", "hourly_counts", noted, kept)


def test_table_is_no_change_when_each_micro_batch_writes_all_keys(pipeline: Pipeline) -> None:
    assert serving(pipeline, mode="complete") == serving(pipeline, JdbcTable(), mode="complete")


def test_mode_alone_is_named_when_a_view_without_a_table_becomes_complete(pipeline: Pipeline) -> None:
    with pytest.raises(UsageError, match=r"another query: mode: none → complete — "):
        fingerprint.check("nest_cameras", "hourly_counts", serving(pipeline), serving(pipeline, mode="complete"))


def test_fact_of_newer_code_is_named_as_such_when_this_code_does_not_know_it(pipeline: Pipeline) -> None:
    now = fingerprint.view_fingerprint(pipeline, pipeline.views[0])
    stored = {**now, "grain of time": "1 s", f"{fingerprint.DECODER}locale": "de", "reference gone": "a INT"}
    with pytest.raises(UsageError) as refused:
        fingerprint.check(pipeline.name, "hourly_counts", stored, now)
    for name in ("grain of time", "decoder's locale"):
        assert f"{name} was noted by newer code" in str(refused.value)
    assert "reference gone: a INT → none" in str(refused.value)


@pytest.mark.parametrize("name", pipeline_names())
def test_each_fact_that_is_noted_is_known_as_one_of_this_code(name: str) -> None:
    declared = load_pipeline(name)
    for facts in fingerprint.fingerprints_of(declared).values():
        # What another declaration notes is not of newer code.
        assert not [each for each in fingerprint.differences(facts, {}) if "newer code" in each]
