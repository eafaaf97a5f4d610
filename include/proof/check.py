"""Check a proof with the settings of this machine: its lake, its key, its options for Kafka."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path

from pyarrow import ArrowInvalid

from include import lake
from include.errors import ServiceUnreachable, UsageError, one_line
from include.kafka_security import beside, for_librdkafka, without_own
from include.proof import verify
from include.proof.signing import own_public_key
from include.settings import read_properties, settings


def check_proof(file: str, lake_uri: str = "", kafka: str = "", public_key: str | None = None) -> verify.Report:
    """Check a proof in a file or at a URI of the lake; arguments not given come from the settings.

    Raises UsageError for a proof that cannot be read, a URI of no lake and a key that is none, ServiceUnreachable when
    lake or Kafka do not answer.
    """
    expected = own_public_key() if public_key is None else _key(public_key)
    options = _client_options(kafka) if kafka else None
    try:
        files = verify.open_lake(lake_uri) if lake_uri else verify.Lake(*lake.filesystem(lake.root()))
        return verify.check(_read(file), files, options, expected)
    except verify.NotALake as error:
        raise UsageError(one_line(str(error)), remedy="name the lake's URI: --lake URI") from None
    except verify.LakeUnreachable as error:
        raise ServiceUnreachable(one_line(str(error)), remedy="see that the lake can be read, then again") from None
    except verify.Unreachable as error:
        raise ServiceUnreachable(str(error), remedy="name a broker that can be reached") from None


def _client_options(brokers: str) -> dict[str, str]:
    """Return the options for these brokers: the properties file may name others."""
    file = settings().kafka_properties
    options = {**beside(read_properties(file), file), "bootstrap.servers": ""}
    return {**for_librdkafka(without_own(options, "")), "bootstrap.servers": brokers}


def _read(file: str) -> bytes:
    try:
        return lake.read_bytes(file) if "://" in file else Path(file).read_bytes()
    except (OSError, ArrowInvalid) as error:
        # Arrow's is that of a URI's scheme.
        why = getattr(error, "strerror", None) or one_line(str(error)) or "cannot be read"
        raise UsageError(f"{file}: {why}", remedy="name the file of a proof") from None


def _key(text: str) -> str:
    try:
        return verify.key_of(text)
    except ArgumentTypeError as error:
        raise UsageError(str(error), remedy="name the signer's: --public-key HEX") from None
