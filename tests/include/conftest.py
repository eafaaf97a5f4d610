"""What tests of the ledger share."""

from __future__ import annotations

import zlib

import pytest

from tests.conftest import Home


@pytest.fixture
def pipeline(postgres: Home, request: pytest.FixtureRequest) -> str:
    """A unique name for each test, so that other tests' data do not interfere."""
    name = str(request.node.name)
    # Long names of tests begin alike.
    return f"{name[:51]}_{zlib.crc32(name.encode()):08x}"
