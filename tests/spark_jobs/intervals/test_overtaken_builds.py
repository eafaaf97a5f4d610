"""A job whose landing files an erasure or housekeeping replaces: it is to be retried, and no file is lost."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from include import lake
from include.errors import AnotherWriter, ReconciliationFailed, ServiceUnreachable
from include.ledger.archive import landing_files
from include.ledger.intervals.pins import PinnedInterval
from spark_jobs import erase_subject, report_ranges
from spark_jobs.archive.files import while_files_stay
from spark_jobs.erasure import find
from spark_jobs.intervals import build
from spark_jobs.intervals.build import overtaken_by_erasure
from spark_jobs.reconciliation import against_ledger
from spark_jobs.spark.failures import SPARK_FAILURES, translate
from spark_jobs.spark.thrown import missing_file
from tests.spark_jobs.intervals.test_build import HOUR

PINNED = PinnedInterval(1, "isp_hits", HOUR, (), {})
PATH = "landing/isp_hits/1/fate=archived/part-0.parquet"


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The paths that the ledger names, and no erasure but the first."""
    paths: set[str] = set()
    monkeypatch.setattr(build, "last_erasure", lambda _: 1)
    monkeypatch.setattr(landing_files, "is_to_be_there", lambda _, path: path in paths)
    return paths


def missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "no such file", lake.uri(path))


def test_build_is_retried_when_it_fails_and_an_erasure_began_meanwhile(named: set[str]) -> None:
    with (
        pytest.raises(AnotherWriter, match=r"an erasure of isp_hits began while .* was built") as raised,
        overtaken_by_erasure(PINNED, 0),
    ):
        raise ReconciliationFailed("a file is missing", remedy="")
    assert raised.value.exit_code == 5
    assert raised.value.retryable


def test_build_is_retried_when_its_file_was_written_anew(own_lake: Path, named: set[str]) -> None:
    """By an erasure that had begun before, and has no views to build first."""
    with pytest.raises(AnotherWriter, match=f"{PATH} was written anew"), overtaken_by_erasure(PINNED, 1):
        raise missing(PATH)


def test_failure_stays_as_it_is_when_no_erasure_caused_it(own_lake: Path, named: set[str]) -> None:
    named.add(PATH)
    for path in (PATH, "tables/isp_hits/date=2026-11-20/r-1/part-0.parquet"):
        with pytest.raises(FileNotFoundError), overtaken_by_erasure(PINNED, 1):
            raise missing(path)
    with pytest.raises(ServiceUnreachable, match="Kafka"), overtaken_by_erasure(PINNED, 1):
        raise ServiceUnreachable("Kafka does not answer")


@pytest.mark.parametrize("is_named", [True, False])
def test_missing_file_is_a_difference_only_while_the_ledger_names_it(
    own_lake: Path, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    asked: list[list[str]] = []

    def noted_rows(paths: list[str]) -> list[tuple[str, int]]:
        asked.append(paths)
        return [(PATH, 3)] if is_named or len(asked) == 1 else []

    monkeypatch.setattr(against_ledger.landing_files, "files_covering", lambda *_: [PATH])
    monkeypatch.setattr(against_ledger.evidence, "noted_rows", noted_rows)
    if is_named:
        [difference] = against_ledger.differing_files(PINNED)
        assert difference.evidence == "the file is missing, 3 rows were landed"
    else:
        with pytest.raises(FileNotFoundError) as raised:
            list(against_ledger.differing_files(PINNED))
        assert missing_file(raised.value) == PATH


@pytest.mark.spark
def test_missing_file_is_named_when_spark_does_not_find_it(spark: Any, own_lake: Path, named: set[str]) -> None:
    spark.range(3).coalesce(1).write.parquet(str(own_lake / "landing" / "isp_hits"))
    [file] = (own_lake / "landing" / "isp_hits").glob("*.parquet")
    rows = spark.read.parquet(file.as_uri())
    file.unlink()
    with pytest.raises(AnotherWriter, match=f"landing/isp_hits/{file.name} was merged"), while_files_stay("isp_hits"):
        rows.collect()
    named.add(f"landing/isp_hits/{file.name}")
    with pytest.raises(SPARK_FAILURES) as raised, while_files_stay("isp_hits"):
        rows.collect()
    assert missing_file(raised.value) == f"landing/isp_hits/{file.name}"
    assert isinstance(translate(raised.value), ReconciliationFailed)


def test_report_and_search_are_to_be_repeated_when_a_file_that_they_read_was_merged(
    own_lake: Path, named: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is an attempt, for which housekeeping waits."""

    def read(*_: object) -> None:
        raise missing(PATH)

    for entry in (report_ranges, erase_subject):
        monkeypatch.setattr(entry, "build_session", lambda *_, **__: None)
    monkeypatch.setattr(report_ranges, "newest", lambda _: {})
    monkeypatch.setattr(report_ranges, "with_content", lambda _, pipeline, __: pipeline)
    monkeypatch.setattr(report_ranges, "report_over", read)
    monkeypatch.setattr(find, "find_subject", read)
    asked, result = own_lake / "asked.json", str(own_lake / "result.json")
    asked.write_text("{}")
    ranges = ("--ranges", "isp-hits:0:0-9", "--source", "archive")
    for main, arguments in ((report_ranges.main, ranges), (erase_subject.main, ("--asked", str(asked)))):
        with pytest.raises(AnotherWriter, match=f"{PATH} was merged") as raised:
            main(["--pipeline", "isp_hits", *arguments, "--result", result])
        assert raised.value.remedy == "repeat this"
