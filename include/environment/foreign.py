"""What a shell exports for other programs: for other servers, metastores and clusters, and proxies in other spellings.

The options of other programs' JVMs are taken out by the launcher already (`tidemark`): the set-up starts JVMs, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from ipaddress import IPv6Address

OF_OTHER_SERVERS = (
    *("PGHOSTADDR", "PGSERVICE", "PGSSLMODE", "PGSSLROOTCERT", "PGREQUIRESSL", "PGSSLNEGOTIATION"),
    *("PGGSSENCMODE", "PGCHANNELBINDING", "PGREQUIREAUTH", "PGTARGETSESSIONATTRS", "PGOPTIONS", "PGCLIENTENCODING"),
)
"""Variables by which PostgreSQL's clients add to an address, or connect to another one than it names.

Source: https://www.postgresql.org/docs/18/libpq-envars.html.
"""

OF_OTHER_METASTORES = ("HIVE_CONF_DIR", "HIVE_HOME")
"""Variables that lead Hive's client to a `hive-site.xml`, and with it to another catalog."""

OF_OTHER_CLUSTERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")
"""Variables by which Spark puts a cluster's configuration and jars on its class path."""

OF_OTHER_SPARKS = (
    *("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_API_MODE", "SPARK_CONNECT_MODE", "SPARK_CONNECT_MODE_ENABLED"),
    *("DEPLOY_MODE", "SPARK_LOCAL_DIRS", "SPARK_EXECUTOR_DIRS"),
)
"""Variables by which Spark is only a client of a server elsewhere, gives its driver away, or writes its temporary files
where neither their room is looked at nor those of killed drivers are removed."""

OF_CLUSTERS_DRIVERS = ("SPARK_SUBMIT_OPTS", "SPARK_LOCAL_HOSTNAME")
"""Variables with options of a driver's JVM, and with the name under which a cluster's executors reach it."""

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")

_NAME = re.compile(r"(\w+://)?[\w.*-]+(:\d+)?(/\d+)?", re.ASCII)
"""A host's name or IPv4 address, with a port or as a network."""


def take_out_other_servers(environment: MutableMapping[str, str]) -> None:
    """Remove what PostgreSQL's clients would take from the shell for a server of their own."""
    for name in OF_OTHER_SERVERS:
        environment.pop(name, None)


def take_out_other_sparks(environment: MutableMapping[str, str], *, on_cluster: bool) -> None:
    """Remove what Spark would take from the shell, but for what a driver of a cluster may need."""
    for name in (*OF_OTHER_SPARKS, *(() if on_cluster else OF_CLUSTERS_DRIVERS)):
        environment.pop(name, None)


def take_out_proxies(environment: MutableMapping[str, str]) -> None:
    """Remove proxies, and exceptions from them, for which httpx could not even be started: it knows no SOCKS here.

    Airflow's own processes have the same client.
    """
    for name in [name for name in environment if name.lower() in _PROXIES]:
        scheme, separator, _ = environment[name].partition("://")
        if separator and scheme.lower() not in ("http", "https"):
            del environment[name]
    for name in [name for name in environment if name.lower() == "no_proxy"]:
        environment[name] = ",".join(_asked_directly(environment[name]))


def no_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which programs ask loopback itself, beside the addresses that they name already."""
    # Where both are set, httpx and urllib go by the lower case.
    hosts = _asked_directly(environment.get("no_proxy") or environment.get("NO_PROXY") or "")
    # A star means every address, and only alone.
    value = "*" if "*" in hosts else ",".join(dict.fromkeys((*hosts, "127.0.0.1", "localhost")))
    return {"no_proxy": value, "NO_PROXY": value}


def _asked_directly(named: str) -> list[str]:
    """Return the hosts of a `no_proxy` as httpx reads them: IPv6 without brackets, and no networks of it."""
    bare = (each.strip().removeprefix("[").removesuffix("]") for each in named.split(","))
    return [each for each in bare if _NAME.fullmatch(each) or _is_ipv6(each)]


def _is_ipv6(text: str) -> bool:
    try:
        return not IPv6Address(text).scope_id
    except ValueError:
        return False
