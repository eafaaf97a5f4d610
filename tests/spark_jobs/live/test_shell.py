"""How the shell prints the result of a statement."""

from __future__ import annotations

import json

import pytest

from include.cli.output import print_json_rows


def test_every_column_is_printed_as_json_when_several_have_one_name(capsys: pytest.CaptureFixture[str]) -> None:
    print_json_rows(["id", "id", "id_2", "id"], iter([[1, 2, 3, 4]]))
    assert json.loads(capsys.readouterr().out) == [{"id": 1, "id_2": 2, "id_2_2": 3, "id_3": 4}]
