"""People's own queries of the ledger: they are answered, and change nothing."""

from __future__ import annotations

import pytest

from include.errors import UsageError
from include.ledger import reading
from include.ledger.connection import reading as asked
from tests.conftest import Home

pytestmark = pytest.mark.services


def test_colon_is_not_a_parameter_when_a_query_has_one(postgres: Home) -> None:
    answer = reading.query("SELECT 1 AS one, 'at 05:30, 100 %' AS words UNION ALL SELECT 2, ':name' ORDER BY one")
    assert answer == reading.Answer(("one", "words"), [(1, "at 05:30, 100 %"), (2, ":name")])


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DELETE FROM positions", "read-only transaction"),
        ("SELECT nothing FROM positions", 'column "nothing" does not exist'),
        ("SELECT 1/0", "division by zero"),
        ("SET search_path TO public", "no rows"),
    ],
)
def test_statement_is_refused_with_the_reason_when_it_is_not_a_query(postgres: Home, statement: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        reading.query(statement)


def test_one_connection_is_used_when_questions_are_nested(postgres: Home) -> None:
    with asked() as outer:
        outer.execute("SELECT pg_backend_pid()")
        first = outer.fetchall()
        assert reading.query("SELECT pg_backend_pid()").rows == first
    assert reading.query("SELECT pg_backend_pid()").rows != first


def test_next_question_is_answered_when_one_has_failed(postgres: Home) -> None:
    with pytest.raises(UsageError), asked():
        reading.query("SELECT nothing FROM positions")
    assert reading.query("SELECT 1").rows == [(1,)]
