"""The order in which the ledger's migrations are applied: no database."""

from __future__ import annotations

import pytest
from alembic.script import ScriptDirectory

from include.errors import UsageError
from include.ledger import connection
from tests.conftest import REPOSITORY

# fmt: off
DELIVERED = [
    "0001", "0002", "0006", "0004", "0005", "0003", "0007", "0008", "0009", "0010", "0011", "0012",
    "0013", "0014", "0015", "0016", "0017", "0018", "0019", "0020", "0021", "0022", "0025", "0027",
    "0030", "0032", "0031", "0033", "0035", "0034", "0037", "0038", "0039", "0040", "0041", "0042",
    "0043", "0044", "0045", "0046", "0047", "0048", "0049", "0050", "0053", "0054", "0055", "0056",
    "0057", "0059", "0060", "0061", "0062", "0063", "0064", "0065", "0066", "0067", "0068",
]
# fmt: on
"""Only ever added to, at its end: a ledger that has a migration counts as having all before it."""

VERSIONS = REPOSITORY / "include/ledger/migrations/versions"


def test_delivered_migration_keeps_its_place_when_one_is_added() -> None:
    script = ScriptDirectory(str(VERSIONS.parent))
    assert [each.revision for each in script.walk_revisions()][::-1] == DELIVERED


def test_file_s_name_begins_with_the_migration_s_number() -> None:
    assert connection._known_migrations() == set(DELIVERED)
    assert max(DELIVERED) == DELIVERED[-1]


def test_ledger_is_refused_when_newer_code_has_migrated_it() -> None:
    connection.check_known(DELIVERED[-1])
    newest = DELIVERED[-1]
    with pytest.raises(UsageError, match=rf"by newer code \(9999; this code knows up to {newest}\) — deploy that"):
        connection.check_known("9999")
