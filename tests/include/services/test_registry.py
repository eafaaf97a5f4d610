"""The embedded schema registry, and a configured one: schemas outlive a kill, no password is shown."""

from __future__ import annotations

import json
import os
import signal

import psutil
import pytest

from include.errors import ServiceUnreachable, UsageError
from include.schemas.registry import SchemaRegistry
from tests.conftest import Home
from tests.support.registry_gate import open_gate

pytestmark = [pytest.mark.services, pytest.mark.own_services]

FIRST = json.dumps({"type": "record", "name": "Reading", "fields": [{"name": "at", "type": "long"}]})
SECOND = json.dumps(
    {
        "type": "record",
        "name": "Reading",
        "fields": [{"name": "at", "type": "long"}, {"name": "value", "type": "int", "default": 0}],
    }
)
CANARY = "c4nary-p4ss/w0rd"


@pytest.fixture(scope="module")
def registry(home: Home) -> SchemaRegistry:
    home.run("up", "registry")
    return SchemaRegistry(home.address("registry"))


@pytest.mark.slow
def test_versions_keep_their_ids_when_registered_again(registry: SchemaRegistry) -> None:
    ids = registry.register("readings-value", [FIRST, SECOND])
    assert len(set(ids)) == 2
    assert registry.register("readings-value", [FIRST, SECOND]) == ids
    assert registry.versions("readings-value") == [1, 2]
    versions = [registry.version("readings-value", version) for version in (1, 2)]
    assert [schema_id for schema_id, _ in versions] == ids
    assert [json.loads(each.schema) for _, each in versions] == [json.loads(FIRST), json.loads(SECOND)]
    found = registry.schema(ids[1])
    assert found is not None
    assert json.loads(found.schema) == json.loads(SECOND)


def test_none_and_no_versions_are_returned_when_id_and_subject_are_unknown(registry: SchemaRegistry) -> None:
    assert registry.schema(2_147_483_000) is None
    assert registry.versions("nobody-value") == []
    registry.register("somebody-value", [FIRST])
    assert registry.version("nobody-value", 1) is registry.version("somebody-value", 2) is None


def test_schema_is_refused_when_the_subject_cannot_evolve_to_it(registry: SchemaRegistry, home: Home) -> None:
    with pytest.raises(UsageError, match="refuses a schema"):
        registry.register("readings-value", ['{"type": "nonsense"}'])


def test_schemas_are_back_when_the_registry_was_killed(home: Home, registry: SchemaRegistry) -> None:
    (schema_id,) = registry.register("kept-value", [FIRST])
    pid = home.services["registry"]["pid"]
    os.kill(pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=10)
    found = home.services["registry"]
    assert (found["healthy"], found["pid"]) == (False, None)
    with pytest.raises(ServiceUnreachable):
        registry.subjects()

    home.run("up", "registry")
    again = SchemaRegistry(home.address("registry"))
    assert again.register("kept-value", [FIRST]) == [schema_id]
    assert again.schema(schema_id) is not None


def test_registry_listens_on_loopback_with_a_private_password_when_it_starts(
    home: Home, registry: SchemaRegistry
) -> None:
    process = psutil.Process(home.services["registry"]["pid"])
    listening = {c.laddr.ip for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
    password = home.database.split(":")[2].split("@")[0]
    assert password not in " ".join(process.cmdline())
    assert password not in (home.path / "logs" / "registry.log").read_text()
    assert (home.path / "services" / "registry.properties").stat().st_mode & 0o077 == 0


def test_user_and_password_go_only_to_the_registry_when_it_is_configured(home: Home, registry: SchemaRegistry) -> None:
    with open_gate(registry.address, "gps reader", CANARY) as gate:
        url = gate.url.replace("gps reader", "gps%20reader").replace("c4nary-p4ss/w0rd", "c4nary-p4ss%2Fw0rd")
        status = home.run("status", "--json", TIDEMARK_REGISTRY_URL=url)
        found = json.loads(status.stdout)["services"]["registry"]
        assert found["healthy"]
        assert found["external"]
        doctor = home.run("doctor", "--json", expect=None, TIDEMARK_REGISTRY_URL=url)
        shown = status.stdout + status.stderr + doctor.stdout + doctor.stderr
        address = json.loads(doctor.stdout)["settings"]["TIDEMARK_REGISTRY_URL"]
        assert address == found["address"] == f"http://127.0.0.1:{gate.port}"
        assert "c4nary" not in shown
        assert "reader" not in shown

        with pytest.raises(ServiceUnreachable, match="401") as refused:
            SchemaRegistry(gate.url.replace("gps reader", "gps%20reader").replace(CANARY, "wrong")).subjects()
        assert "TIDEMARK_REGISTRY_URL" in str(refused.value)


def test_outage_is_reported_when_the_address_is_wrong(registry: SchemaRegistry) -> None:
    with pytest.raises(ServiceUnreachable, match="404"):
        SchemaRegistry(f"{registry.address}/elsewhere").schema(1)
    with open_gate(registry.address) as gate:
        gate.answer = 503
        with pytest.raises(ServiceUnreachable, match="503"):
            SchemaRegistry(gate.url).schema(1)


def test_settings_name_the_variable_when_the_url_is_none(home: Home) -> None:
    failed = home.run("status", expect=64, TIDEMARK_REGISTRY_URL="registry:8081")
    assert "TIDEMARK_REGISTRY_URL" in failed.stderr
