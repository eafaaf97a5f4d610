"""One file of client options for librdkafka and for Java, whichever it was written for."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.errors import UsageError
from include.kafka_security import for_java, for_librdkafka
from include.settings import Settings

LIBRDKAFKA = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "reader",
    "sasl.password": 'a "quoted\\ one',
    "ssl.ca.location": "/etc/kafka/ca.pem",
}
JAVA = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
    r'username="reader" password="a \"quoted\\ one";',
    "ssl.truststore.type": "PEM",
    "ssl.truststore.location": "/etc/kafka/ca.pem",
}


@pytest.mark.parametrize("written", [LIBRDKAFKA, JAVA])
def test_both_clients_are_served_when_a_file_is_written_for_one(written: dict[str, str]) -> None:
    assert for_java(written) == JAVA
    assert for_librdkafka(written) == LIBRDKAFKA


def test_certificates_travel_themselves_when_their_file_is_there(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")
    # An executor on another machine has no such file.
    for written in ({"ssl.ca.location": str(authority)}, for_java({"ssl.ca.location": "x"}) | {
        "ssl.truststore.location": str(authority)
    }):  # fmt: skip
        assert for_java(written) == {
            "ssl.truststore.type": "PEM", "ssl.truststore.certificates": authority.read_text()
        }  # fmt: skip


def test_file_beside_the_options_is_found_when_a_process_runs_elsewhere(tmp_path: Path) -> None:
    authority, file = tmp_path / "ca.pem", tmp_path / "kafka.properties"
    authority.write_text("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")
    file.write_text("ssl.ca.location=ca.pem\nssl.key.location=/etc/kafka/key.pem\nclient.id=ca.pem\n")
    file.chmod(0o600)
    settings = Settings(kafka_bootstrap="b:9093", kafka_properties=file)
    other = {"ssl.key.location": "/etc/kafka/key.pem", "client.id": "ca.pem", "bootstrap.servers": "b:9093"}
    assert settings.kafka_client_options() == other | {"ssl.ca.location": str(authority)}
    assert settings.kafka_java_options() == other | {
        "ssl.truststore.type": "PEM", "ssl.truststore.certificates": authority.read_text()
    }  # fmt: skip
    # Of librdkafka: it looks for the system's own.
    file.write_text("ssl.ca.location=probe\n")
    assert settings.kafka_client_options()["ssl.ca.location"] == "probe"


def test_options_stay_when_the_cluster_is_open() -> None:
    assert for_java({"client.id": "x"}) == for_librdkafka({"client.id": "x"}) == {"client.id": "x"}


@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
def test_own_module_is_used_when_the_mechanism_is_scram(name: str) -> None:
    found = for_java({name: "SCRAM-SHA-512", "sasl.username": "u", "sasl.password": "p"})
    assert "scram.ScramLoginModule required" in found["sasl.jaas.config"]
    assert found["sasl.mechanism"] == "SCRAM-SHA-512"
    assert "sasl.mechanisms" not in found


def test_mechanism_is_named_when_it_is_missing() -> None:
    with pytest.raises(UsageError, match=r"sasl\.mechanism is not set"):
        for_java({"sasl.username": "u", "sasl.password": "canary"})


def test_trust_store_is_refused_when_only_java_can_read_it() -> None:
    with pytest.raises(UsageError, match=r"ssl\.ca\.location"):
        for_librdkafka({"ssl.truststore.location": "/etc/kafka/trust.jks"})
