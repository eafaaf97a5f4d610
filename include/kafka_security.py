"""One file of client options for both of Kafka's clients, which name the same things differently.

librdkafka, which the command uses, takes user, password and certificate one by one; the Java client, which Spark
uses, takes user and password as a JAAS line. The file may be written for either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from include.errors import UsageError

_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_QUOTED = r'"((?:[^"\\]|\\.)*)"'


def for_librdkafka(options: Mapping[str, str]) -> dict[str, str]:
    """The options as librdkafka names them. Raises UsageError for a trust store that it cannot read."""
    found = dict(options)
    jaas = found.pop("sasl.jaas.config", "")
    for name in ("username", "password"):
        if value := re.search(rf"\b{name}={_QUOTED}", jaas):
            found.setdefault(f"sasl.{name}", re.sub(r"\\(.)", r"\1", value[1]))
    store, kind = found.pop("ssl.truststore.location", ""), found.pop("ssl.truststore.type", "JKS")
    found.pop("ssl.truststore.password", None)
    if store and kind.upper() != "PEM":
        raise UsageError(
            f"TIDEMARK_KAFKA_PROPERTIES: a trust store of type {kind} is for Java alone",
            remedy="write ssl.ca.location=<certificates in PEM>, which serves both clients",
        )
    if store:
        found.setdefault("ssl.ca.location", store)
    return found


def for_java(options: Mapping[str, str]) -> dict[str, str]:
    """The options as Kafka's Java client names them. Raises UsageError for a mechanism that it does not know."""
    found = dict(options)
    user, password = found.pop("sasl.username", None), found.pop("sasl.password", None)
    if user is not None and "sasl.jaas.config" not in found:
        mechanism = found.get("sasl.mechanism") or found.get("sasl.mechanisms") or ""
        if mechanism not in _MODULES:
            raise UsageError(
                f"TIDEMARK_KAFKA_PROPERTIES: sasl.mechanism is {mechanism or 'not set'}",
                remedy=f"one of {', '.join(_MODULES)}",
            )
        line = f"username={_in_quotes(user)} password={_in_quotes(password or '')}"
        found["sasl.jaas.config"] = f"{_MODULES[mechanism]} required {line};"
    if "sasl.mechanisms" in found:
        found["sasl.mechanism"] = found.pop("sasl.mechanisms")
    if authority := found.pop("ssl.ca.location", None):
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": authority}
    return found


def _in_quotes(value: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
