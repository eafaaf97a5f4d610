"""Credentials of the embedded broker's SASL_SSL listener: the password of its one user, and its certificate.

They are created once per home folder. The user's client options are a 0600 file that TIDEMARK_KAFKA_PROPERTIES can
name.
"""

from __future__ import annotations

import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path

from include.errors import ServiceUnreachable
from include.settings import read_properties, settings, write_private
from include.spark.jars import SHORT_LIVED, java

USER = "tidemark"

_DAYS = 3650

_CLIENT = """\
security.protocol=SASL_SSL
sasl.mechanism=PLAIN
sasl.username={user}
sasl.password={password}
ssl.ca.location={authority}
"""


@dataclass(frozen=True)
class BrokerAccess:
    """What the broker's configuration needs for the listener."""

    password: str
    """Password of the user and of the key store."""
    keystore: Path


def client_properties() -> Path:
    """Return the file that holds the user's client options."""
    return settings().home / "services" / "kafka.client.properties"


def ensure_access() -> BrokerAccess:
    """Create password, key and certificate if they are missing. Raise ServiceUnreachable when keytool fails."""
    folder = settings().home / "services"
    keystore, authority = folder / "kafka.p12", folder / "kafka.certificate.pem"
    client = client_properties()
    if client.exists() and keystore.exists() and authority.exists():
        return BrokerAccess(read_properties(client)["sasl.password"], keystore)
    password = secrets.token_urlsafe(24)
    secret = folder / ".kafka-password"
    write_private(secret, password)
    keystore.unlink(missing_ok=True)
    store = ["-keystore", str(keystore), "-storetype", "PKCS12", "-storepass:file", str(secret), "-alias", "broker"]
    names = ["-dname", "CN=localhost", "-ext", "san=ip:127.0.0.1,dns:localhost", "-ext", "bc:c=ca:true"]
    try:
        _keytool("-genkeypair", *store, "-keyalg", "EC", "-groupname", "secp256r1", "-validity", str(_DAYS), *names)
        keystore.chmod(0o600)
        _keytool("-exportcert", "-rfc", "-file", str(authority), *store)
    finally:
        secret.unlink()
    # Written last, so that an interrupted start creates everything again.
    write_private(client, _CLIENT.format(user=USER, password=password, authority=authority))
    return BrokerAccess(password, keystore)


def _keytool(*arguments: str) -> None:
    tool = Path(java()).resolve().with_name("keytool")
    options = [f"-J{each}" for each in SHORT_LIVED]
    result = subprocess.run([str(tool), *options, *arguments], capture_output=True, text=True, check=False)
    if result.returncode:
        last = (result.stdout + result.stderr).strip().splitlines()[-1:]
        raise ServiceUnreachable(f"keytool failed: {' '.join(last)}", remedy="check that keytool lies beside java")
