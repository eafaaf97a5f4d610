"""A Python worker does not decode by newer code than its driver's: by the function that the worker calls, no Spark."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructType

from include.errors import TidemarkError
from include.pipelines.spec import UserDefined
from spark_jobs.decoding.user_defined import python_function
from spark_jobs.spark import worker_code
from tests.conftest import REPOSITORY

NAME = "decoder_of_a_test"
OLD = "def decode(value):\n    return {'said': value.decode()}\n"
NEW = "def decode(value):\n    return {'said': value.decode().upper()}\n"
MESSAGE = StructType().add("said", StringType())
RETURNED = StructType().add("message", MESSAGE).add("error", StringType())


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a decoder that nothing has imported yet, as in a new worker."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(python_function, "struct_of", lambda _: MESSAGE)
    file = tmp_path / f"{NAME}.py"
    file.write_text(OLD)
    caches = (worker_code.worker_code, worker_code.check_unchanged)
    for each in caches:
        each.cache_clear()
    yield file
    sys.modules.pop(NAME, None)
    for each in caches:
        each.cache_clear()


def called_by_workers(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], Any]:
    """What Spark sends to its workers."""
    monkeypatch.setattr(python_function.F, "udf", lambda function, *_, **__: function)
    decoder = UserDefined(f"{NAME}:decode", schema="said STRING")
    sent: Any = python_function._scalar(decoder, RETURNED)
    return sent  # type: ignore[no-any-return]


def test_value_is_decoded_when_the_decoder_is_as_the_driver_knew_it(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = called_by_workers(monkeypatch)
    assert decode(b"yes") == (("yes",), None)
    # What is deployed later is not imported any more.
    module.write_text(NEW)
    assert decode(b"again") == (("again",), None)


@pytest.mark.parametrize("deployed", [NEW, "def decode(value):\n    raise ValueError\n", "def other(): ...\n"])
def test_worker_refuses_to_decode_when_it_has_imported_newer_code_than_its_driver(
    module: Path, monkeypatch: pytest.MonkeyPatch, deployed: str
) -> None:
    decode = called_by_workers(monkeypatch)
    module.write_text(deployed)
    with pytest.raises(TidemarkError, match=f"the code of {NAME} was changed since this driver started"):
        decode(b"yes")


def test_query_that_starts_again_knows_the_code_of_its_driver_s_start(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called_by_workers(monkeypatch)
    module.write_text(NEW)
    decode = called_by_workers(monkeypatch)
    with pytest.raises(TidemarkError, match="was changed"):
        decode(b"yes")


@pytest.mark.parametrize("deployed", [NEW, "def other(): ...\n"])
def test_vectorised_decoder_is_compared_too(module: Path, monkeypatch: pytest.MonkeyPatch, deployed: str) -> None:
    monkeypatch.setattr(python_function, "arrow_udf", lambda function, *_: function)
    decode: Any = python_function._vectorised(UserDefined(f"{NAME}:decode", "said STRING", vectorised=True), RETURNED)
    module.write_text(deployed)
    with pytest.raises(TidemarkError, match="was changed"):
        decode(pa.array([b"yes"]))


def test_code_of_a_decoder_of_the_project_is_all_that_it_reaches() -> None:
    code = dict(worker_code.worker_code("spark_jobs.decoding.unknown_fields:left_of"))
    assert "spark_jobs.decoding.unknown_fields" in code
    files = worker_code.files_of(tuple(code.items()))
    assert REPOSITORY / "spark_jobs/decoding/unknown_fields.py" in files
    assert len(files) == len(code)
    assert worker_code.worker_code("package.on_workers_alone:decode") == ()
