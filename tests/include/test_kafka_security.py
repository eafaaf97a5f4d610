"""One file of client options for librdkafka and for Java, whichever it was written for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from include.errors import UsageError
from include.kafka_security import for_java, for_librdkafka
from include.settings import Settings, write_private

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


@pytest.mark.parametrize("bootstrap", ["", "other:9092"])
def test_brokers_of_the_file_are_refused_when_they_are_not_those_that_are_set(tmp_path: Path, bootstrap: str) -> None:
    write_private(tmp_path / "kafka.properties", "bootstrap.servers=cloud:9092\nclient.id=x\n")
    settings = Settings(home=tmp_path, kafka_bootstrap=bootstrap, kafka_properties=tmp_path / "kafka.properties")
    for asked in (settings.kafka_client_options, settings.kafka_java_options):
        with pytest.raises(UsageError, match=r"bootstrap\.servers=cloud:9092.*to TIDEMARK_KAFKA_BOOTSTRAP"):
            asked()
    same = replace(settings, kafka_bootstrap="cloud:9092")
    assert same.kafka_client_options() == {"bootstrap.servers": "cloud:9092", "client.id": "x"}
    write_private(tmp_path / "kafka.properties", "bootstrap.servers=b:9092, a:9092\n")
    in_other_order = replace(settings, kafka_bootstrap="a:9092,b:9092")
    assert in_other_order.kafka_client_options() == {"bootstrap.servers": "a:9092,b:9092"}


@pytest.mark.parametrize("name", ["auto.offset.reset", "enable.auto.commit", "value.serializer"])
def test_option_of_the_file_is_refused_when_spark_sets_it(tmp_path: Path, name: str) -> None:
    write_private(tmp_path / "kafka.properties", f"{name}=x\n")
    settings = Settings(kafka_bootstrap="b:9093", kafka_properties=tmp_path / "kafka.properties")
    with pytest.raises(UsageError, match=f"TIDEMARK_KAFKA_PROPERTIES: {name} is set by Spark"):
        settings.kafka_client_options()
