"""Deployment settings, read from the environment (`TIDEMARK_…`); an unset one means the embedded service.

An embedded service writes its address to `<home>/services/<name>.json` (mode 0600). Only this module turns settings
and those files into addresses.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from include import service_states
from include.environment import foreign
from include.errors import ServiceUnreachable, UsageError
from include.kafka_security import beside, for_java, for_librdkafka, without_own
from include.setting_values import (
    Secret,
    absolute_path,
    between,
    brokers,
    check_contact,
    duration,
    file_uri,
    folder_of_programs,
    heap,
    http_url,
    master_url,
    one_of,
    postgresql_url,
    program,
    receiver_url,
    setting,
    store_uri,
    whole_at_least,
    yes_or_no,
)

if TYPE_CHECKING:
    # Imported where it is needed: most commands do not need it, and it takes half a second.
    from sqlalchemy.engine import URL

PAST_PROXY: Mapping[str, None] = {f"all://{host}": None for host in ("127.0.0.1", "localhost", "[::1]")}
"""`mounts` of an httpx client: it asks loopback, where embedded services are, itself, and not a proxy."""

REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Settings:
    """All settings, as `./tidemark doctor` prints them; secrets are masked in any text form."""

    home: Path = setting(REPOSITORY / ".tidemark", "state and logs of the embedded services", folder_of_programs)
    lake: str = setting("", "URI of the lake; default: <home>/lake", store_uri)
    kafka_bootstrap: str = setting("", "host:port[,host:port]; default: the embedded broker", brokers)
    kafka_properties: Path | None = setting(None, "0600 file with client options and secrets", absolute_path)
    database_url: Secret | None = setting(
        None,
        "postgresql://user:password@host:port; databases ledger, catalog, airflow, serving",
        postgresql_url,
        secret=True,
    )
    jdbc_properties: Path | None = setting(None, "0600 file with connections of references and outputs", absolute_path)
    registry_url: Secret | None = setting(
        None, "Confluent-compatible schema registry: https://[user:password@]host[:port][/path]", http_url, secret=True
    )
    spark_master: str = setting("local[*]", "Spark master URL", master_url)
    spark_deploy_mode: Literal["client", "cluster"] = setting(
        "client",
        "where drivers of streams and intervals run on YARN and Kubernetes: here, or on the cluster",
        one_of("client", "cluster"),
    )
    spark_executors: int = setting(2, "executors of an application on YARN or Kubernetes", whole_at_least(1))
    executor_memory: str = setting("1g", "heap of an executor on YARN or Kubernetes", heap)
    spark_image: str = setting("", "image of Spark's pods on Kubernetes")
    spark_namespace: str = setting("tidemark", "namespace of Spark's pods on Kubernetes")
    pod_templates: Path = setting(
        REPOSITORY / "include" / "deploy" / "kubernetes" / "pods",
        "folder of driver.yaml and executor.yaml, the templates of Spark's pods on Kubernetes",
        absolute_path,
    )
    secrets: Path | None = setting(None, "0600 file of the secret settings, TIDEMARK_…=value a line", absolute_path)
    spark_submit: Path | None = setting(None, "the spark-submit to use; default: PySpark's own", program)
    driver_memory: str = setting("1g", "heap of a Spark driver", heap)
    spark_ui: bool = setting(False, "whether drivers serve Spark's own pages, without a login", yes_or_no)
    lease_seconds: float = setting(
        15.0,
        "how long a silent writer keeps its pipeline; a stream, and an interval that begins, wait for PostgreSQL for "
        "seven tenths of that",
        between(2, 3600),
    )
    max_offsets_per_trigger: int | None = setting(None, "most offsets in a micro-batch", whole_at_least(1))
    archive_wait: str = setting("60s", "how long an interval waits for the archive to reach it", duration)
    proof_key: Path | None = setting(None, "0600 file with the Ed25519 key (PEM) that signs proofs", absolute_path)
    unusual: Literal["info", "warn", "fail"] = setting(
        "info",
        "severity of unusual row counts and freshness, where a suite does not declare it",
        one_of("info", "warn", "fail"),
    )
    serve: Literal["declared", "all"] = setting(
        "declared",
        "views whose registered values PostgreSQL serves as live.*: those with a JdbcTable, or all",
        one_of("declared", "all"),
    )
    alert_webhook: Secret | None = setting(
        None, "https://… that every alert is posted to as JSON", receiver_url("http", "https"), secret=True
    )
    alert_smtp: Secret | None = setting(
        None,
        "smtp[s]://[user:password@]host[:port] that sends alerts, or airflow://CONNECTION",
        receiver_url("airflow", "smtp", "smtps"),
        secret=True,
    )
    alert_email_to: str = setting("", "receivers of alerts, separated by commas")
    openlineage_url: Secret | None = setting(
        None,
        "http[s]://[:key@]host[:port] or file:///path that lineage is sent to, as OpenLineage's events",
        receiver_url("file", "http", "https"),
        secret=True,
    )
    alert_email_from: str = setting("", "sender of alerts; default: the connection's, or tidemark@localhost")
    contact: str = setting("", "address or page at which the services of event streams can reach you", check_contact)

    @classmethod
    def declared(cls) -> Mapping[str, Field[Any]]:
        """Return the settings by name; a setting's metadata has its `description`, and whether it is `secret`."""
        return {each.name: each for each in fields(cls)}

    @cached_property
    def lake_uri(self) -> str:
        """URI of the lake without a trailing slash, e.g. `file:///srv/lake`, or `s3a://bucket/path`."""
        return self.lake or file_uri(self.home / "lake")

    def service_state(self, name: str) -> dict[str, Any]:
        """Return the embedded service's state file; empty when the service was never started. Raise UsageError."""
        return service_states.service_state(self.home, name)

    def airflow_command(self) -> str:
        """Return how a person calls Airflow's command: by the verb, where this home has an embedded Airflow."""
        return "./tidemark airflow" if self.service_state("airflow") else "airflow"

    def check_not_copied(self, name: str) -> None:
        """Raise UsageError when the state file names a service of the home of which this one is a copy."""
        service_states.check_not_copied(self.home, name)

    def kafka_address(self) -> str:
        """Return the bootstrap servers; for the embedded broker, the listener that fits the client options.

        Raise ServiceUnreachable when none is set and the embedded broker was never started.
        """
        if self.kafka_bootstrap:
            return self.kafka_bootstrap
        secured = self.kafka_file_options().get("security.protocol", "").upper() == "SASL_SSL"
        return str(self._embedded_state("kafka")["secured_address" if secured else "address"])

    def kafka_client_options(self) -> dict[str, str]:
        """Return librdkafka's options: those of the properties file, and the bootstrap servers."""
        return {**for_librdkafka(self.kafka_file_options()), "bootstrap.servers": self.kafka_address()}

    def kafka_java_options(self) -> dict[str, str]:
        """Return the client options for Kafka's Java client; they include the password."""
        return {**for_java(self.kafka_file_options()), "bootstrap.servers": self.kafka_address()}

    def kafka_file_options(self) -> dict[str, str]:
        """Return the options of the properties file; it may name files that lie beside it without their folder."""
        return without_own(beside(read_properties(self.kafka_properties), self.kafka_properties), self.kafka_bootstrap)

    def database(self, name: str) -> URL:
        """Return the SQLAlchemy URL of a database: `ledger`, `catalog`, `airflow`, `serving` or another on that server.

        Raise ServiceUnreachable when no URL is set and the embedded PostgreSQL was never started.
        """
        from sqlalchemy.engine import make_url

        return make_url(self._database_address()).set(drivername="postgresql+psycopg2", database=name)

    def database_uri(self, name: str) -> str:
        """Return a database's URL as the URI that PostgreSQL's own clients take; it holds the password."""
        address = urlsplit(self._database_address())
        return address._replace(scheme="postgresql", path=f"/{name}").geturl()

    def database_host(self) -> str:
        """Return host and port of the databases, as messages name them."""
        address = urlsplit(self._database_address())
        return f"{address.hostname}:{address.port or 5432}"

    def _database_address(self) -> str:
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return str(self._embedded_state("postgres")["address"])

    def registry(self) -> URL:
        """Return the URL of the schema registry, with user and password of its basic authentication if it has any.

        Raise ServiceUnreachable when no URL is set and the embedded registry was never started.
        """
        from sqlalchemy.engine import make_url

        own = self.registry_url
        return make_url(own.get_secret_value() if own else self._embedded_state("registry")["address"])

    def _embedded_state(self, name: str) -> dict[str, Any]:
        self.check_not_copied(name)
        if not (state := self.service_state(name)):
            raise ServiceUnreachable(
                f"the embedded {name} was never started in {self.home}", remedy=f"./tidemark up {name}"
            )
        return state


def read_properties(path: Path | None, variable: str = "TIDEMARK_KAFKA_PROPERTIES") -> dict[str, str]:
    """Return the options of a file of `key=value` lines; none without a path.

    Raise UsageError when the file cannot be read, other users may read it, or a line is malformed.
    """
    if path is None:
        return {}
    try:
        mode = path.stat().st_mode
        lines = path.read_text().splitlines()
    except OSError as error:
        raise UsageError(f"{variable}: {path}: {error.strerror}", remedy="name a readable file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{variable}: {path} is not UTF-8", remedy="name a file of key=value lines") from None
    if mode & 0o077:
        raise UsageError(f"{variable}: {path} is readable by others", remedy=f"chmod 600 {path}")
    options = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, separator, value = line.partition("=")
        if not separator:
            raise UsageError(f"{path}:{number}: not key=value", remedy="write one option per line")
        options[key.strip()] = value.strip()
    return options


@lru_cache(maxsize=1)
def settings() -> Settings:
    """Return the settings of this process; an empty variable is unset.

    With the embedded PostgreSQL, what the caller's shell exports for another server is taken out of this process's
    environment, and so out of all that it starts; paths are made absolute there.

    Raise UsageError naming the variable that is wrong, or the checkout when its path cannot be used.
    """
    values = {}
    try:
        folder_of_programs(str(REPOSITORY))
    except ValueError as error:
        raise UsageError(f"this checkout: {error}", remedy="move it to another folder") from None
    secrets = _read_secrets(os.environ.get("TIDEMARK_SECRETS"))
    for name, each in Settings.declared().items():
        variable = f"TIDEMARK_{name.upper()}"
        if text := os.environ.get(variable) or secrets.get(variable):
            try:
                values[name] = each.metadata["of"](text)
            except ValueError as error:
                raise UsageError(f"{variable}: {error}", remedy=f"correct or unset {variable}") from None
    # Whatever this process starts may work in another folder.
    paths = {name: str(each) for name, each in values.items() if name == "lake" or isinstance(each, Path)}
    os.environ |= {f"TIDEMARK_{name.upper()}": each for name, each in paths.items()}
    if "database_url" not in values:
        foreign.take_out_other_servers(os.environ)
    return Settings(**values)


def secret_variables() -> set[str]:
    """Return the variables of the secret settings."""
    return {f"TIDEMARK_{name.upper()}" for name, each in Settings.declared().items() if each.metadata["secret"]}


def _read_secrets(path: str | None) -> dict[str, str]:
    """Return the secret settings of a file. Raise UsageError like `read_properties`, and for any other setting."""
    secrets = read_properties(absolute_path(path) if path else None, "TIDEMARK_SECRETS")
    if unknown := secrets.keys() - secret_variables():
        raise UsageError(
            f"TIDEMARK_SECRETS: {path}: {min(unknown)} is not a secret setting",
            remedy=f"it may have {', '.join(sorted(secret_variables()))}",
        )
    return secrets


def write_private(path: Path, text: str, *, durable: bool = False) -> None:
    """Write a file that only its owner can read, replacing it atomically; `durable` syncs its content to disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
