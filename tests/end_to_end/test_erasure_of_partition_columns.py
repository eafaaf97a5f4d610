"""A server is erased by which the archive is partitioned, by an erasure that is killed at each step of it.

Folders, the catalog, open tables, proofs and the ledger named it; nothing does in the end, and the chain holds.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from include.iceberg import catalog as iceberg_catalog
from include.producing.messages import wiki_changes
from tests.conftest import Home, iso, last_hours
from tests.support import audit, remnants
from tests.support.checkout import HomeOfCheckout, copy_checkout
from tests.support.killed import was_killed

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(3600)]

TABLE = "wiki_changes"
MARK = "zq7.example.org"
START = last_hours(3)
HOURS = [START + timedelta(hours=n) for n in (-1, 0, 1)]
"""The first holds nothing of the server."""
DECLARED = "include/pipelines/wiki_changes.py"
EACH = 120
"""Changes of the server in each of the two hours, and ten broken ones."""

KILLED_AT = (
    "erased_snapshots_expired",
    "proof_replaced:2",
    "erased_proofs_replaced",
    "erased_names_forgotten",
)
"""In order. What is killed before, other tests of erasures kill."""


def produce(home: Home) -> None:
    """Changes of two hours, of which some are on the server, in the order of their times."""
    rng = random.Random(5)
    sent = []
    for start in HOURS[1:]:
        for number in range(EACH * 4):
            moment = start + timedelta(seconds=rng.uniform(0, 3500))
            change = json.loads(wiki_changes.message(moment, rng)[1])
            if number < EACH:
                change |= {"server_name": MARK, "server_url": f"https://{MARK}", "wiki": "zq7wiki"}
                change["meta"]["domain"] = MARK
            sent.append((moment, json.dumps(change).encode()))
            if number < 10:
                sent.append((moment, json.dumps({**change, "length": "broken"}).encode()))
    home.run("produce", TABLE, "--events", "20", "--start", iso(HOURS[0]), "--span", "50m")
    producer = home.producer()
    for number, (moment, value) in enumerate(sorted(sent)):
        producer.produce("wiki-changes", value, partition=number % 2, timestamp=int(moment.timestamp() * 1000))
        producer.poll(0)
    producer.flush()


@pytest.fixture(scope="module")
def landed(in_process: Home, tmp_path_factory: pytest.TempPathFactory) -> HomeOfCheckout:
    """Three hours, published, in an Iceberg table and a Delta table, too."""
    made = copy_checkout(tmp_path_factory.mktemp("named") / "checkout", in_process)
    made.edit(DECLARED, 'subject="user",', 'subject="user",\n        iceberg=True,\n        delta=True,')
    home = HomeOfCheckout(in_process.path, code=made.path)
    produce(home)
    home.run("stream", TABLE, "--until-caught-up")
    for start in HOURS:
        assert home.interval(TABLE, start, **signing(home))["reconciliation"]["unexplained"] == 0
    return home


def signing(home: Home) -> dict[str, str]:
    """The setting with the key, which is made by the first call."""
    path = home.path.parent / f"{home.path.name}-proof.key"
    if not path.exists():
        key = Ed25519PrivateKey.generate()
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        path.chmod(0o600)
    return {"TIDEMARK_PROOF_KEY": str(path)}


def proofs(home: Home) -> list[Path]:
    return sorted((home.lake / "proofs" / TABLE).glob("*.json"))


@pytest.fixture(scope="module")
def former(landed: HomeOfCheckout, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Copies of the proofs of before, as somebody outside has them."""
    folder = tmp_path_factory.mktemp("former")
    copies = []
    for each in proofs(landed):
        copies.append(folder / each.name)
        copies[-1].write_bytes(each.read_bytes())
    assert sum(MARK in each.read_text() for each in copies) == 2
    return copies


@pytest.fixture(scope="module")
def erased(landed: HomeOfCheckout, former: list[Path]) -> dict[str, Any]:
    """What the command said in the end."""
    named = [each for each in remnants.in_files(landed.lake, MARK) if each.endswith("its name")]
    assert any("/tables/" in each for each in named)
    assert {"revisions", "builds"} <= set(remnants.in_database(landed, MARK))
    asked: Sequence[str] = ("erase", TABLE, "--key", MARK, "--column", "server_name", "--reason", "a request")
    refused = landed.run(*asked, expect=64)
    assert "set TIDEMARK_PROOF_KEY" in refused.stderr
    for moment in KILLED_AT:
        killed = landed.run(*asked, expect=None, TIDEMARK_CRASH_AT=moment, **signing(landed))
        # Its own process, or its application.
        assert was_killed(killed), f"not killed at {moment}: {killed.stderr[-3000:]}"
        asked = ("erase", TABLE, "--resume")
    account: dict[str, Any] = landed.json(*asked, "--json", **signing(landed))
    return account


def test_no_file_folder_or_row_names_the_partition_when_its_key_was_erased(
    landed: HomeOfCheckout, erased: dict[str, Any]
) -> None:
    counted = (erased["records"], erased["quarantined"], erased["intervals"], erased["built_intervals"])
    assert counted == (2 * EACH + 20, 20, 2, 2)
    services = tuple(f"{landed.path}/{name}/" for name in ("kafka", "postgres"))
    assert [each for each in remnants.in_files(landed.path, MARK) if not each.startswith(services)] == []
    assert [remnants.in_database(landed, MARK, name) for name in ("ledger", "serving", "catalog")] == [[], [], []]
    listed = landed.json("sql", f"SHOW PARTITIONS lake.{TABLE}", "--json")
    assert listed
    assert MARK not in json.dumps(listed)
    findings = json.loads(landed.run("doctor", "--json", "--deep", expect=None).stdout)["findings"]
    assert [each for each in findings if not each["ok"] and (each["kind"] or "erasure" in each["what"])] == []


def test_equation_stays_whole_and_every_reader_finds_the_others_when_a_partition_was_erased(
    landed: HomeOfCheckout, erased: dict[str, Any]
) -> None:
    held = archived = 0
    for start in HOURS[1:]:
        verdict = landed.interval(TABLE, start, "--source", "kafka", **signing(landed))
        counts = verdict["records"]
        assert (counts["erased"], verdict["reconciliation"]["unexplained"]) == (EACH + 10, 0)
        assert counts["in_ranges"] == sum(counts[f] for f in ("archived", "empty", "quarantined", "gaps", "erased"))
        # A canary event is empty.
        assert counts["archived"] + counts["empty"] == EACH * 3
        assert counts["empty"] < EACH
        archived += counts["archived"]
        held += audit.read_parquet(r["location"] for r in verdict["registered"] if r["table"] == TABLE).num_rows
    assert held == archived
    (hive,) = landed.json("sql", f"SELECT count(*) AS n FROM lake.{TABLE}", "--json")
    (delta,) = landed.json("sql", f"SELECT count(*) AS n FROM lake.{TABLE}_delta", "--json")
    with iceberg_catalog.opened() as catalog:
        rows = catalog.load_table(("lake", TABLE)).scan().to_arrow()
    assert int(hive["n"]) == int(delta["n"]) == rows.num_rows
    assert MARK not in rows["server"].to_pylist()


def test_proofs_hold_when_they_were_replaced_and_when_somebody_kept_the_former_ones(
    landed: HomeOfCheckout, former: list[Path], erased: dict[str, Any]
) -> None:
    now = proofs(landed)
    assert len(now) == len(former) + 2
    for each in now:
        assert landed.json("verify", str(each), "--json", **signing(landed))["differences"] == []
    replaced = [each for each in now if "replaces" in json.loads(each.read_text())]
    assert len(replaced) == erased["proofs_replaced"] == len(now) - 1
    for each in former:
        found = landed.json("verify", str(each), "--json", **signing(landed))
        assert found["differences"] == []
        assert any("another stands for it" in note for note in found["notes"]) == (MARK in each.read_text())


def test_rows_of_the_same_key_are_archived_under_its_name_when_they_come_later(
    landed: HomeOfCheckout, erased: dict[str, Any]
) -> None:
    again = landed.json(
        "erase", TABLE, "--key", MARK, "--column", "server_name", "--reason", "again", "--json", **signing(landed)
    )
    assert (again["records"], again["built_intervals"]) == (0, 0)
    moment = HOURS[-1] + timedelta(minutes=59, seconds=59)
    change = json.loads(wiki_changes.message(moment, random.Random(1))[1])
    producer = landed.producer()
    value = json.dumps({**change, "server_name": MARK})
    later = HOURS[-1] + timedelta(hours=1, minutes=1)
    producer.produce("wiki-changes", value, partition=0, timestamp=int(later.timestamp() * 1000))
    producer.flush()
    landed.run("stream", TABLE, "--until-caught-up")
    verdict = landed.interval(TABLE, HOURS[-1] + timedelta(hours=1), **signing(landed))
    assert any(f"server={MARK}/" in each["partition"] for each in verdict["registered"])
