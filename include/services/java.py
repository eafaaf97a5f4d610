"""What Java's programs are given: PostgreSQL's databases as their clients address them, and values in files of options.

Source of the files: https://docs.oracle.com/en/java/javase/17/docs/api/java.base/java/util/Properties.html#load(java.io.Reader).
"""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from include.ledger.connection import STATEMENT_SECONDS, server_options
from include.settings import Settings

_TLS = ("sslmode", "sslrootcert", "sslcert", "sslkey")
"""Parameters of the database's URL that PostgreSQL's drivers for C and for Java both know by these names."""


def jdbc_url(current: Settings, database: str, **parameters: str) -> str:
    """Return a database's URL for Java's driver, with further parameters; user and password are not in it.

    Whatever the database's URL says about TLS holds here, too. By the timeouts no vanished host or stopped process
    blocks others for long, on either side. Raises ServiceUnreachable before `up postgres`.
    """
    address = urlsplit(current.database_uri(database))
    tls = {name: value for name, value in parse_qsl(address.query) if name in _TLS}
    if tls.get("sslrootcert") == "system":
        # The C driver's word for the machine's own authorities, whose certificates it then always verifies.
        del tls["sslrootcert"]
        tls |= {"sslmode": "verify-full", "sslfactory": "org.postgresql.ssl.DefaultJavaSSLFactory"}
    asked = {
        # A pool keeps its connections, also between the calls of a transaction.
        "options": server_options(but=("timezone", "idle_in_transaction_session_timeout")),
        "connectTimeout": "10",
        # An answer comes later only if the server is gone: it ends a statement before that.
        "socketTimeout": str(STATEMENT_SECONDS + 30),
        **tls,
        **parameters,
    }
    host = f"[{address.hostname}]" if ":" in str(address.hostname) else address.hostname
    return f"jdbc:postgresql://{host}:{address.port or 5432}/{database}?{urlencode(asked, quote_via=quote)}"


def escaped(value: str) -> str:
    """Return a value as it is written after `key=`, in ASCII: Java takes other bytes for Latin-1."""
    text = "".join(map(_escaped, value))
    # Blanks before a value do not belong to it.
    return f"\\{text}" if text.startswith(" ") else text


def _escaped(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if " " <= character <= "~":
        return character
    # Java's characters are units of UTF-16; names of files that are not UTF-8 have lone ones.
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
