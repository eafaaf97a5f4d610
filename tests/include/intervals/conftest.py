"""What tests of pinning share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import Home, settings_of
from tests.support.topic_log import Log, new_log


@pytest.fixture(scope="module")
def impatient(home: Home) -> Iterator[None]:
    """This process's settings are those of the home, and intervals wait a second for the archive."""
    with settings_of(home, TIDEMARK_ARCHIVE_WAIT="1s"):
        yield


@pytest.fixture
def log(request: pytest.FixtureRequest) -> Log:
    """A topic of the test's own, with two topic partitions."""
    return new_log(f"p{abs(hash(request.node.name)) % 10**10}", 2)
