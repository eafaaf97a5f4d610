"""Services of tests that need a part of them only."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.conftest import Home, settings_of


@pytest.fixture(scope="module")
def postgres(new_home: Callable[..., Home]) -> Iterator[Home]:
    """An embedded PostgreSQL that this process itself talks to."""
    made = new_home()
    made.run("up", "postgres")
    with settings_of(made):
        yield made
    made.end()


@pytest.fixture
def pipeline(postgres: Home, request: pytest.FixtureRequest) -> str:
    """A name of its own for each test: nothing of another test is in its way."""
    return str(request.node.name)[:60]
