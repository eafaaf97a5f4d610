"""Client options for both of Kafka's clients from one file: the clients name the same options differently.

librdkafka, which commands use, takes user, password and certificate as three options. The Java client, which Spark
uses, takes user and password in a JAAS line. The file may be written for either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from include.errors import UsageError

_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_OF_SPARK = frozenset(
    {
        "auto.offset.reset",
        "enable.auto.commit",
        "interceptor.classes",
        "key.deserializer",
        "key.serializer",
        "value.deserializer",
        "value.serializer",
    }
)
"""Options that Spark sets itself, and refuses from others when a stream or an interval has begun."""

_QUOTED = r'"((?:[^"\\]|\\.)*)"'


def for_librdkafka(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options as librdkafka names them. Raises UsageError for a trust store that it cannot read."""
    named = dict(options)
    jaas = named.pop("sasl.jaas.config", "")
    for name in ("username", "password"):
        if value := re.search(rf"\b{name}={_QUOTED}", jaas):
            named.setdefault(f"sasl.{name}", re.sub(r"\\(.)", r"\1", value[1]))
    store, kind = named.pop("ssl.truststore.location", ""), named.pop("ssl.truststore.type", "JKS")
    named.pop("ssl.truststore.password", None)
    if store and kind.upper() != "PEM":
        raise UsageError(
            f"TIDEMARK_KAFKA_PROPERTIES: a trust store of type {kind} is for Java alone",
            remedy="write ssl.ca.location=<certificates in PEM>, which serves both clients",
        )
    if store:
        named.setdefault("ssl.ca.location", store)
    return named


def for_java(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options as Kafka's Java client names them. Raises UsageError for an unknown mechanism.

    Certificates in PEM take the place of their file if it is there: Spark's executors may be where it is not.
    """
    named = dict(options)
    user, password = named.pop("sasl.username", None), named.pop("sasl.password", None)
    if user is not None and "sasl.jaas.config" not in named:
        mechanism = named.get("sasl.mechanism") or named.get("sasl.mechanisms") or ""
        if mechanism not in _MODULES:
            raise UsageError(
                f"TIDEMARK_KAFKA_PROPERTIES: sasl.mechanism is {mechanism or 'not set'}",
                remedy=f"one of {', '.join(_MODULES)}",
            )
        line = f"username={_in_quotes(user)} password={_in_quotes(password or '')}"
        named["sasl.jaas.config"] = f"{_MODULES[mechanism]} required {line};"
    if "sasl.mechanisms" in named:
        named["sasl.mechanism"] = named.pop("sasl.mechanisms")
    if authority := named.pop("ssl.ca.location", None):
        named |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": authority}
    store = Path(named.get("ssl.truststore.location", ""))
    if named.get("ssl.truststore.type", "").upper() == "PEM" and store.is_file():
        del named["ssl.truststore.location"]
        named["ssl.truststore.certificates"] = store.read_text()
    return named


def beside(options: Mapping[str, str], file: Path | None) -> dict[str, str]:
    """Return the options of a file, the names of files that lie beside it with its folder, whoever runs where."""
    found = {name: file.parent / value for name, value in options.items() if name.endswith(".location")} if file else {}
    return {**options, **{name: str(path) for name, path in found.items() if path.is_file()}}


def without_own(options: Mapping[str, str], bootstrap: str) -> dict[str, str]:
    """Return the options of a file. Raises UsageError for those that Spark sets, and for other brokers than the set."""
    named = dict(options)
    brokers = named.pop("bootstrap.servers", "")
    if brokers and {*brokers.replace(" ", "").split(",")} != {*bootstrap.split(",")}:
        raise UsageError(
            f"TIDEMARK_KAFKA_PROPERTIES: it has bootstrap.servers={brokers}, TIDEMARK_KAFKA_BOOTSTRAP is "
            f"{bootstrap or 'not set'}",
            remedy="write the brokers to TIDEMARK_KAFKA_BOOTSTRAP alone",
        )
    if refused := sorted(_OF_SPARK & named.keys()):
        raise UsageError(f"TIDEMARK_KAFKA_PROPERTIES: {refused[0]} is set by Spark itself", remedy="take it out")
    return named


def _in_quotes(value: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
