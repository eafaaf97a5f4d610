"""What tests of the ledger share."""

from __future__ import annotations

import pytest

from tests.conftest import Home


@pytest.fixture
def pipeline(postgres: Home, request: pytest.FixtureRequest) -> str:
    """A unique name for each test, so that other tests' data do not interfere."""
    return str(request.node.name)[:60]
