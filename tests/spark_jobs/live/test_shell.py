"""How the shell prints the result of a statement."""

from __future__ import annotations

import json

import pytest

from spark_jobs.live.shell import _show
from spark_jobs.spark.sql import Result


def test_every_column_is_printed_as_json_when_several_have_one_name(capsys: pytest.CaptureFixture[str]) -> None:
    _show(Result(["id", "id", "id_2", "id"], [[1, 2, 3, 4]]), as_json=True)
    assert json.loads(capsys.readouterr().out) == [{"id": 1, "id_2": 2, "id_2_2": 3, "id_3": 4}]
