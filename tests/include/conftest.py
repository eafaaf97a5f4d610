"""What tests of the ledger share."""

from __future__ import annotations

import pytest

from tests.conftest import Home


@pytest.fixture
def pipeline(postgres: Home, request: pytest.FixtureRequest) -> str:
    """A name of its own for each test: nothing of another test is in its way."""
    return str(request.node.name)[:60]
