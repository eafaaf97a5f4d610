"""Who looks at the cluster again and again keeps its clients. None of these calls needs a broker."""

from __future__ import annotations

import pytest

from include import kafka
from include.kafka.client import asking
from tests.conftest import SetSettings


@pytest.fixture(autouse=True)
def no_broker(set_settings: SetSettings) -> None:
    set_settings(TIDEMARK_KAFKA_BOOTSTRAP="127.0.0.1:1")


def test_clients_are_made_once_and_closed_at_the_end_when_they_are_kept() -> None:
    with kafka.kept_clients():
        assert kafka.admin() is kafka.admin()
        with asking("read_committed") as first, asking("read_committed") as again:
            assert again is first
        with asking("read_uncommitted") as other:
            assert other is not first
        first.assignment()
    for closed in (first, other):
        with pytest.raises(RuntimeError, match="closed"):
            closed.assignment()


def test_each_call_has_a_client_of_its_own_when_none_is_kept() -> None:
    assert kafka.admin() is not kafka.admin()
    with asking("read_committed") as first, asking("read_committed") as second:
        assert first is not second
    with pytest.raises(RuntimeError, match="closed"):
        first.assignment()
