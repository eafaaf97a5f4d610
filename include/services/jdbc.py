"""PostgreSQL's databases as Java's clients address them: Hive's client of the catalog, and Spark's tables over JDBC."""

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
