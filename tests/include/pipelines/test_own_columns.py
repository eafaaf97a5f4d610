"""Names of columns that an archive table cannot have: its rows have columns of Tidemark's by these names."""

from __future__ import annotations

import pytest

from include.errors import UsageError
from include.pipelines.spec import OWN_COLUMNS, Archive


@pytest.mark.parametrize("name", [*sorted(OWN_COLUMNS), "Date"])
def test_column_is_refused_when_tidemark_has_one_of_its_name(name: str) -> None:
    with pytest.raises(UsageError, match=f"column '{name}' is Tidemark's own — call it {name}_"):
        Archive(rows="rows", columns=f"at TIMESTAMP, {name} STRING", event_time="at")


def test_name_is_free_when_it_is_a_field_inside_a_column() -> None:
    columns = "at TIMESTAMP, event STRUCT<date: STRING, key: STRING>, date_ STRING"
    assert Archive(rows="rows", columns=columns, event_time="at").columns == columns
