"""References that are read from tables, files of the lake and a real PostgreSQL: what is kept, and what is refused."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from py4j.protocol import Py4JJavaError

from include import lake
from include.errors import ServiceUnreachable, TidemarkError, UsageError
from include.intervals.references import as_file, taken_contents
from include.ledger import reference_versions
from include.ledger.streams import generations
from include.pipelines import load_pipeline
from include.pipelines.spec import CatalogTable, JdbcQuery, LakePath, Pipeline, Reference
from include.settings import settings
from include.streams.checkpoints import checkpoint_uri, contents_of_generation
from include.streams.new_code import fit_now
from include.versions import code_version
from tests.conftest import Home, SetSettings

pytestmark = [pytest.mark.spark, pytest.mark.services]

COLUMNS = "device_id STRING, zip_code INT"
QUERY = JdbcQuery("crm", "SELECT device_id, zip_code FROM places")
SECRET = "not-to-be-told-7431"


@pytest.fixture
def declare(postgres: Home, tmp_path: Path) -> Callable[..., Pipeline]:
    """Return what gives a pipeline of its own a reference `places`."""
    name = re.sub(r"\W", "_", tmp_path.name).lower()

    def declared(source: Any, columns: str = COLUMNS, **more: Any) -> Pipeline:
        reference = Reference(columns=columns, source=source, **more)
        nest = load_pipeline("nest_cameras")
        return replace(nest, name=name, references={"places": reference}, declared_as=nest.name)

    return declared


@pytest.fixture
def crm(postgres: Home, tmp_path: Path, set_settings: SetSettings) -> Iterator[Any]:
    """A cursor on the table `places`, which the connection `crm` reaches."""
    url = settings().database("serving")
    address = f"jdbc:postgresql://{url.host}:{url.port}/serving"
    file = tmp_path / "jdbc.properties"
    file.write_text(f"crm.url={address}\ncrm.user={url.username}\ncrm.password={url.password}\n")
    file.chmod(0o600)
    set_settings(TIDEMARK_JDBC_PROPERTIES=str(file))
    connection = psycopg2.connect(url.set(drivername="postgresql").render_as_string(hide_password=False))
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS places; CREATE TABLE places (device_id text, zip_code int, street text)")
        cursor.execute("INSERT INTO places VALUES ('cam-2', 10001, 'x'), ('cam-1', 94103, 'y')")
        yield cursor
    connection.close()


def loaded(spark: Any, pipeline: Pipeline) -> list[tuple[Any, ...]]:
    from spark_jobs.decoding.records import load_references

    return sorted((tuple(row) for row in load_references(spark, pipeline)["places"].collect()), key=repr)


def taken(spark: Any, pipeline: Pipeline, known: Any = None) -> Pipeline:
    from spark_jobs.references.take import with_content

    return with_content(spark, pipeline, known or {})


def test_every_value_comes_back_when_a_table_has_odd_ones(spark: Any, declare: Callable[..., Pipeline]) -> None:
    columns = (
        "name STRING, n BIGINT, price DECIMAL(12, 3), at TIMESTAMP, day DATE, ratio DOUBLE, is_on BOOLEAN, other STRING"
    )
    rows = spark.sql(
        """
        SELECT * FROM VALUES
            (' a, "b" \\\\ ', 9223372036854775807, 1.500, TIMESTAMP '2024-01-01 00:00:00.123456', DATE '1969-12-31',
             0.1D, true, 'ä€𝄞'),
            ('null', -1, -0.001, TIMESTAMP '1960-02-29 23:59:59', DATE '9999-12-31', double('NaN'), false, '#\\u2028'),
            ('', NULL, NULL, NULL, NULL, NULL, NULL, '"'),
            ('twice', 1, 1.000, NULL, NULL, 1e300D, NULL, ''),
            ('twice', 1, 1.000, NULL, NULL, 1e300D, NULL, '')
        AS rows (name, n, price, at, day, ratio, is_on, other)"""
    )
    rows.selectExpr("*", "1 AS unused").createOrReplaceTempView("odd_places")
    given = [tuple(None if value == "" else value for value in row) for row in rows.collect()]
    pipeline = declare(CatalogTable("odd_places"), columns)
    # As text: NaN is not equal to itself.
    assert list(map(repr, loaded(spark, taken(spark, pipeline)))) == sorted(map(repr, given))


def test_same_rows_are_one_version_and_a_changed_row_another_when_a_database_is_asked(
    spark: Any, declare: Callable[..., Pipeline], crm: Any
) -> None:
    pipeline = declare(QUERY)
    first = taken(spark, pipeline)
    assert loaded(spark, first) == [("cam-1", 94103), ("cam-2", 10001)]
    # The same rows in another order, and another value in a column that is not declared.
    crm.execute("DELETE FROM places WHERE device_id = 'cam-2'; INSERT INTO places VALUES ('cam-2', 10001, 'z')")
    assert taken_contents(taken(spark, pipeline)) == taken_contents(first)
    crm.execute("UPDATE places SET zip_code = 60601 WHERE device_id = 'cam-2'")
    second = taken(spark, pipeline)
    assert loaded(spark, second) == [("cam-1", 94103), ("cam-2", 60601)]
    noted = reference_versions.versions(pipeline.name)
    assert [(each.name, each.sha256) for each in noted] == [*taken_contents(first), *taken_contents(second)]
    assert {(each.rows, each.source) for each in noted} == {(2, "the query of crm")}
    assert reference_versions.newest(pipeline.name) == dict(taken_contents(second))
    # Noted content is read from where it is kept, even when the database no longer exists.
    crm.execute("DROP TABLE places")
    again = taken(spark, pipeline, dict(taken_contents(first)))
    assert loaded(spark, again) == [("cam-1", 94103), ("cam-2", 10001)]
    # A content that comes back is the newest one again.
    crm.execute(
        "CREATE TABLE places AS SELECT * FROM (VALUES ('cam-1', 94103), ('cam-2', 10001)) AS v (device_id, zip_code)"
    )
    taken(spark, pipeline)
    assert reference_versions.newest(pipeline.name) == dict(taken_contents(first))


def test_content_of_the_generation_s_start_stays_when_a_stream_restarts(
    spark: Any, declare: Callable[..., Pipeline], crm: Any
) -> None:
    from include.streams import fingerprint

    declared = declare(QUERY)
    pipeline = replace(declared, references={"device_locations": declared.references["places"]})
    assert contents_of_generation(pipeline.name) == {}
    first = taken(spark, pipeline)
    generation = generations.current_or_first(pipeline.name, "test@host")
    view = first.views[0]
    generations.note_start(generation, view.name, fingerprint.view_fingerprint(first, view), {})
    # It may be corrected until the view has begun, and then nothing kept is needed.
    assert contents_of_generation(pipeline.name) == {}
    digest = first.references["device_locations"].path.stem
    kept = lake.uri("references", pipeline.name, "device_locations", f"{digest}.csv")
    content = lake.read_text(kept)
    lake.delete(kept)
    first.references["device_locations"].path.unlink()
    assert fit_now(pipeline).needs == ""
    lake.write_text(kept, content)
    lake.write_text(f"{checkpoint_uri(generation, view.name)}/metadata", '{"id": "a"}')
    crm.execute("UPDATE places SET zip_code = 60601")
    assert taken_contents(taken(spark, pipeline)) != taken_contents(first)
    again = taken(spark, pipeline, contents_of_generation(pipeline.name))
    assert taken_contents(again) == taken_contents(first)
    stored = generations.current(pipeline.name)
    assert stored
    fingerprint.check(
        pipeline.name, view.name, stored.fingerprints[view.name], fingerprint.view_fingerprint(again, view)
    )


def test_lake_s_file_is_read_when_it_is_parquet_or_csv(spark: Any, declare: Callable[..., Pipeline]) -> None:
    rows = spark.sql("SELECT * FROM VALUES ('cam-1', 94103), ('cam-2', NULL) AS v (device_id, zip_code)")
    rows.write.mode("overwrite").parquet(lake.uri("joined", "places.parquet"))
    from_parquet = taken(spark, declare(LakePath("joined/places.parquet", "parquet")))
    lake.write_text(lake.uri("joined", "places.csv"), "device_id,zip_code\ncam-2,\ncam-1,94103\n")
    from_csv = taken(spark, declare(LakePath("joined/places.csv", "csv")))
    assert loaded(spark, from_parquet) == loaded(spark, from_csv) == [("cam-1", 94103), ("cam-2", None)]
    assert taken_contents(from_parquet) == taken_contents(from_csv)


def test_lake_s_file_is_decompressed_when_its_name_says_that_it_is_compressed(
    spark: Any, declare: Callable[..., Pipeline]
) -> None:
    lake.write_bytes(lake.uri("joined", "packed.csv.gz"), gzip.compress(b"device_id,zip_code\ncam-1,94103\n"))
    assert loaded(spark, taken(spark, declare(LakePath("joined/packed.csv.gz", "csv")))) == [("cam-1", 94103)]


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ("SELECT 'cam-1' AS device_id", "has no column zip_code; it has device_id"),
        ("SELECT 'cam-1' AS device_id, '02134' AS zip_code", "values of zip_code that cannot be kept"),
        ("SELECT 'cam-1' AS device_id, 'none' AS zip_code", "values of zip_code that cannot be kept"),
        ("SELECT 'cam-1' AS device_id, 1.5 AS zip_code", "values of zip_code that cannot be kept"),
        ("SELECT 'a\\nb' AS device_id, 1 AS zip_code", "values of device_id that cannot be kept"),
        ("SELECT 'a\\rb' AS device_id, 1 AS zip_code", "values of device_id that cannot be kept"),
        ("SELECT 'cam' AS device_id, 1 AS zip_code WHERE false", "has no rows"),
        ("SELECT string(id) AS device_id, int(id) AS zip_code FROM range(4)", "has more than 3 rows"),
    ],
)
def test_source_is_refused_and_nothing_is_noted_when_it_does_not_fit(
    spark: Any, declare: Callable[..., Pipeline], rows: str, named: str
) -> None:
    spark.sql(rows).createOrReplaceTempView("places_that_do_not_fit")
    pipeline = declare(CatalogTable("places_that_do_not_fit"), max_rows=3)
    with pytest.raises(UsageError, match=named):
        taken(spark, pipeline)
    assert reference_versions.versions(pipeline.name) == []


def test_csv_of_the_lake_is_refused_when_its_header_is_not_the_columns_or_it_is_not_there(
    spark: Any, declare: Callable[..., Pipeline]
) -> None:
    pipeline = declare(LakePath("joined/without_header.csv", "csv"))
    with pytest.raises(UsageError, match="is not there"):
        taken(spark, pipeline)
    lake.write_text(lake.uri("joined", "without_header.csv"), "cam-1,94103\n")
    with pytest.raises(
        UsageError, match=r"the first line of the reference places \(without_header.csv\) is 'cam-1,94103'"
    ):
        taken(spark, pipeline)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("cam-1", "has 1 columns"),
        ('"cam\n1",1', "has a value in quotes that does not end in it"),
        ("cam-1,n/a", "has a value of the column zip_code that is not INT"),
        ("cam-1,02134", "has a value of the column zip_code that is not INT"),
    ],
)
def test_csv_of_the_lake_is_refused_and_nothing_is_noted_when_a_line_is_not_of_the_declared_columns(
    spark: Any, declare: Callable[..., Pipeline], line: str, named: str
) -> None:
    pipeline = declare(LakePath("joined/wrong_line.csv", "csv"))
    lake.write_text(lake.uri("joined", "wrong_line.csv"), f"device_id,zip_code\ncam-0,1\n{line}\n")
    with pytest.raises(UsageError, match=r"test_csv_of_the_lake_is.*: line 3 of the reference places") as refused:
        taken(spark, pipeline)
    assert named in str(refused.value)
    assert reference_versions.versions(pipeline.name) == []


def test_query_is_refused_and_nothing_is_noted_when_two_rows_have_the_same_key(
    spark: Any, declare: Callable[..., Pipeline], crm: Any
) -> None:
    pipeline = declare(QUERY, key=("device_id",))
    assert taken(spark, pipeline)
    crm.execute("INSERT INTO places VALUES ('cam-2', 94105, 'z')")
    before = reference_versions.newest(pipeline.name)
    with pytest.raises(UsageError, match=r"the query of crm\) has the key device_id 'cam-2' twice") as refused:
        taken(spark, pipeline)
    assert str(refused.value).startswith(f"{pipeline.name}: ")
    assert reference_versions.newest(pipeline.name) == before


def test_csv_of_the_lake_is_kept_whole_when_a_text_has_characters_that_end_a_line_elsewhere(
    spark: Any, declare: Callable[..., Pipeline]
) -> None:
    lake.write_text(lake.uri("joined", "breaks.csv"), "device_id,zip_code\ncam\x85\u20281,94103\n")
    assert loaded(spark, taken(spark, declare(LakePath("joined/breaks.csv", "csv")))) == [("cam\x85\u20281", 94103)]


def test_source_is_refused_when_table_or_folder_does_not_exist(spark: Any, declare: Callable[..., Pipeline]) -> None:
    for source in (CatalogTable("no_such_table"), LakePath("joined/nothing", "parquet")):
        with pytest.raises(UsageError, match=r"the reference places \(.*\) cannot be read"):
            taken(spark, declare(source))


def test_outage_is_no_wrong_declaration_when_the_store_of_a_file_or_a_table_does_not_answer(
    spark: Any, declare: Callable[..., Pipeline], tmp_path: Path, set_settings: SetSettings
) -> None:
    spark._jsc.hadoopConfiguration().set("ipc.client.connect.max.retries", "0")
    away = "hdfs://127.0.0.1:1/lake"
    spark.sql(f"CREATE TABLE places_away (device_id STRING, zip_code INT) USING parquet LOCATION '{tmp_path}'")
    # Spark changes the location, then asks for the size of what is there.
    with pytest.raises(Py4JJavaError, match="ConnectException"):
        spark.sql(f"ALTER TABLE places_away SET LOCATION '{away}/places'")
    by_table = declare(CatalogTable("places_away"))
    by_path = declare(LakePath("places", "parquet"))
    set_settings(TIDEMARK_LAKE=away)
    try:
        for pipeline in (by_table, by_path):
            with pytest.raises(ServiceUnreachable, match=r"the reference places \(.*\) cannot be read: .* refused"):
                taken(spark, pipeline)
    finally:
        spark.sql("DROP TABLE places_away")


def test_secrets_of_a_connection_are_not_told_when_its_database_fails(
    spark: Any, declare: Callable[..., Pipeline], crm: Any, tmp_path: Path
) -> None:
    pipeline, file = declare(QUERY), tmp_path / "jdbc.properties"
    good = file.read_text()
    file.write_text(re.sub(r"(?m)^crm.url=.*", f"crm.url=jdbc:postgresql://localhost:1/x?password={SECRET}", good))
    with pytest.raises(ServiceUnreachable) as refused:
        taken(spark, pipeline)
    assert SECRET not in str(refused.value)
    assert refused.value.__suppress_context__
    file.write_text(re.sub(r"(?m)^crm.url=.*", f"crm.url=jdbc:nonsense:{SECRET}", good))
    with pytest.raises(TidemarkError) as refused_url:
        taken(spark, pipeline)
    assert SECRET not in str(refused_url.value)
    file.write_text(good)
    with pytest.raises(UsageError, match="cannot be read"):
        taken(spark, declare(JdbcQuery("crm", "SELECT nothing FROM nowhere")))
    with pytest.raises(UsageError, match=r"the connection erp has no erp\.url"):
        taken(spark, declare(JdbcQuery("erp", "SELECT 1")))
    file.chmod(0o644)
    with pytest.raises(UsageError, match=r"TIDEMARK_JDBC_PROPERTIES: .* is readable by others"):
        taken(spark, pipeline)


@pytest.mark.parametrize("altered", [False, True])
def test_kept_content_is_refused_when_it_is_gone_or_altered(
    spark: Any, declare: Callable[..., Pipeline], altered: bool
) -> None:
    spark.sql("SELECT 'cam-1' AS device_id, 94103 AS zip_code").createOrReplaceTempView("kept_places")
    pipeline = declare(CatalogTable("kept_places"))
    first = taken(spark, pipeline)
    [(name, digest)] = taken_contents(first)
    location = lake.uri("references", pipeline.name, name, f"{digest}.csv")
    # This machine's copy equals the kept content.
    kept = lake.read_bytes(location)
    lake.delete(location)
    assert loaded(spark, taken(spark, pipeline, {name: digest})) == [("cam-1", 94103)]
    first.references[name].path.write_bytes(b"torn")
    if altered:
        lake.write_bytes(location, kept + b"cam-2,1\n")
    with pytest.raises(UsageError, match="was altered" if altered else "is gone"):
        as_file(pipeline, name, digest)
    lake.write_bytes(location, kept)
    assert loaded(spark, taken(spark, pipeline, {name: digest})) == [("cam-1", 94103)]


def test_version_of_code_changes_when_a_source_s_content_does(
    postgres: Home, monkeypatch: pytest.MonkeyPatch, declare: Callable[..., Pipeline]
) -> None:
    pipeline = declare(QUERY)
    monkeypatch.setattr("include.versions.load_pipeline", lambda name: pipeline)
    code_version.cache_clear()
    unread = code_version(pipeline.name)
    one, other = (code_version(pipeline.name, (("places", digest),)) for digest in ("a" * 64, "b" * 64))
    with reference_versions.noting(pipeline.name, "places", "a" * 64, 1, "a test"):
        pass
    code_version.cache_clear()
    assert code_version(pipeline.name) == one
    assert len({unread, one, other}) == 3
    code_version.cache_clear()


@pytest.mark.parametrize("path", ["", "/etc/places.csv", "../places.csv", "s3a://bucket/places.csv"])
def test_path_is_refused_when_it_is_outside_the_lake(path: str) -> None:
    with pytest.raises(UsageError, match="not a path below the lake"):
        LakePath(path, "csv")


def test_reference_is_refused_when_it_has_neither_path_nor_source() -> None:
    with pytest.raises(UsageError, match="a path or a source"):
        Reference(columns="a INT")
