"""One file of client options for librdkafka and for Java, whichever it was written for."""

from __future__ import annotations

import pytest

from include.errors import UsageError
from include.kafka_security import for_java, for_librdkafka

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
def test_file_for_either_client_serves_both(written: dict[str, str]) -> None:
    assert for_java(written) == JAVA
    assert for_librdkafka(written) == LIBRDKAFKA


def test_options_of_an_open_cluster_stay_as_they_are() -> None:
    assert for_java({"client.id": "x"}) == for_librdkafka({"client.id": "x"}) == {"client.id": "x"}


@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
def test_scram_has_its_own_module(name: str) -> None:
    found = for_java({name: "SCRAM-SHA-512", "sasl.username": "u", "sasl.password": "p"})
    assert "scram.ScramLoginModule required" in found["sasl.jaas.config"]
    assert found["sasl.mechanism"] == "SCRAM-SHA-512"
    assert "sasl.mechanisms" not in found


def test_mechanism_that_is_missing_is_said() -> None:
    with pytest.raises(UsageError, match=r"sasl\.mechanism is not set"):
        for_java({"sasl.username": "u", "sasl.password": "canary"})


def test_trust_store_for_java_alone_is_refused() -> None:
    with pytest.raises(UsageError, match=r"ssl\.ca\.location"):
        for_librdkafka({"ssl.truststore.location": "/etc/kafka/trust.jks"})
