"""Deployment settings, read from the environment (`TIDEMARK_…`); an unset one means the embedded service.

An embedded service writes its address to `<home>/services/<name>.json` (mode 0600). Only this module turns settings
and those files into addresses.
"""

from __future__ import annotations

import json
import os
import re
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from include.errors import ServiceUnreachable, UsageError
from include.kafka_security import for_java, for_librdkafka

if TYPE_CHECKING:
    # Imported for the functions that return it: most commands need none of them, and not its half a second.
    from sqlalchemy.engine import URL

REPOSITORY = Path(__file__).resolve().parent.parent

_CONTACT = re.compile(r"[\w.+-]{1,64}@[\w-]+(\.[\w-]+)+|https?://[\w-]+(\.[\w-]+)*(:\d{1,5})?(/[!#-'*-~]*)?", re.ASCII)
"""What goes into a header, inside of brackets."""

_BUCKET_PATH = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_][A-Za-z0-9._=-]*)*")


class Settings(BaseModel):
    """All settings, as `./tidemark doctor` prints them; secrets are masked in any text form."""

    model_config = ConfigDict(frozen=True)

    home: Path = Field(REPOSITORY / ".tidemark", description="state and logs of the embedded services")
    lake: str = Field("", description="URI of the lake; default: <home>/lake")
    kafka_bootstrap: str = Field("", description="host:port[,host:port]; default: the embedded broker")
    kafka_properties: Path | None = Field(None, description="0600 file with client options and secrets")
    database_url: SecretStr | None = Field(
        None, description="postgresql://user:password@host:port; databases ledger, catalog, airflow"
    )
    registry_url: SecretStr | None = Field(
        None, description="Confluent-compatible schema registry: https://[user:password@]host[:port][/path]"
    )
    spark_master: str = Field("local[*]", description="Spark master URL")
    spark_submit: Path | None = Field(None, description="the spark-submit to use; default: PySpark's own")
    driver_memory: str = Field("1g", description="heap of a Spark driver")
    spark_ui: bool = Field(False, description="whether drivers serve Spark's own pages, without a login")
    lease_seconds: float = Field(15.0, ge=2, description="how long a silent writer keeps its pipeline")
    max_offsets_per_trigger: int | None = Field(None, ge=1, description="most offsets in a micro-batch")
    archive_wait: str = Field("60s", description="how long an interval waits for the archive to reach it")
    proof_key: Path | None = Field(None, description="0600 file with the Ed25519 key (PEM) that signs proofs")
    unusual: Literal["info", "warn", "fail"] = Field(
        "info", description="severity of rows and freshness that are not usual, where a suite does not declare it"
    )
    alert_webhook: SecretStr | None = Field(None, description="https://… that every alert is posted to as JSON")
    alert_smtp: SecretStr | None = Field(None, description="smtp[s]://[user:password@]host[:port] that sends alerts")
    alert_email_to: str = Field("", description="receivers of alerts, separated by commas")
    openlineage_url: SecretStr | None = Field(
        None,
        description="http[s]://[:key@]host[:port] or file:///path that lineage is sent to, as OpenLineage's events",
    )
    alert_email_from: str = Field("tidemark@localhost", description="sender of alerts")
    contact: str = Field("", description="address or page that followed event streams may reach their reader at")

    @model_validator(mode="before")
    @classmethod
    def _from_environment(cls, given: dict[str, Any]) -> dict[str, Any]:
        # Pydantic's own settings do this and much more, and would double what a command imports.
        values = {name: os.environ.get(f"TIDEMARK_{name.upper()}") for name in cls.model_fields}
        return {name: value for name, value in values.items() if value is not None} | given

    @field_validator("home")
    @classmethod
    def _absolute(cls, home: Path) -> Path:
        return home.expanduser().absolute()

    @field_validator("spark_submit")
    @classmethod
    def _is_a_program(cls, path: Path | None) -> Path | None:
        if path is not None and not (path.is_file() and os.access(path, os.X_OK)):
            raise ValueError("not an executable file; name the path of a spark-submit")
        return path

    @field_validator("contact")
    @classmethod
    def _reaches_somebody(cls, contact: str) -> str:
        return check_contact(contact)

    @field_validator("lake")
    @classmethod
    def _names_a_bucket(cls, lake: str) -> str:
        scheme, separator, rest = lake.rstrip("/").partition("://")
        if not separator or scheme not in ("s3", "s3a"):
            return lake
        if not _BUCKET_PATH.fullmatch(rest):
            raise ValueError("not a path in a bucket; write s3a://bucket/path, and credentials as AWS_… variables")
        return f"s3a://{rest}"

    @field_validator("database_url")
    @classmethod
    def _is_postgresql(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            parsed = _parse_url(url)
            if parsed is None:
                raise ValueError("not a URL; write postgresql://user:password@host:port")
            if parsed.scheme.partition("+")[0] != "postgresql":
                raise ValueError("only PostgreSQL is supported: postgresql://user:password@host:port")
        return url

    @field_validator("registry_url")
    @classmethod
    def _is_http(cls, url: SecretStr | None) -> SecretStr | None:
        if url is None or not url.get_secret_value():
            return None
        parsed = _parse_url(url)
        if parsed is None or parsed.scheme not in ("http", "https") or not parsed.hostname:
            raise ValueError("not a URL; write https://[user:password@]host[:port][/path]")
        return url

    @field_validator("alert_smtp", "alert_webhook", "openlineage_url")
    @classmethod
    def _is_a_receiver(cls, url: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if url is None or not url.get_secret_value():
            return None
        schemes = {
            "alert_smtp": ("smtp", "smtps"),
            "alert_webhook": ("http", "https"),
            "openlineage_url": ("file", "http", "https"),
        }[str(info.field_name)]
        parts = urlsplit(url.get_secret_value())
        if parts.scheme not in schemes or not (parts.path if parts.scheme == "file" else parts.hostname):
            raise ValueError(f"not a URL; write {schemes[-1]}://host[:port]")
        return url

    @cached_property
    def lake_uri(self) -> str:
        """URI of the lake without a trailing slash, e.g. `file:///srv/lake`, or `s3a://bucket/path`."""
        lake = self.lake or str(self.home / "lake")
        return (lake if "://" in lake else Path(lake).expanduser().absolute().as_uri()).rstrip("/")

    def service_state(self, name: str) -> dict[str, Any]:
        """Return the embedded service's state file; empty when the service was never started."""
        path = self.home / "services" / f"{name}.json"
        try:
            state: dict[str, Any] = json.loads(path.read_text())
        except FileNotFoundError:
            return {}
        return state

    def kafka_address(self) -> str:
        """Return the bootstrap servers; for the embedded broker, the listener that fits the client options.

        Raise ServiceUnreachable when none is set and the embedded broker was never started.
        """
        if self.kafka_bootstrap:
            return self.kafka_bootstrap
        secured = read_properties(self.kafka_properties).get("security.protocol", "").upper() == "SASL_SSL"
        return str(self._embedded_state("kafka")["secured_address" if secured else "address"])

    def kafka_client_options(self) -> dict[str, str]:
        """Return librdkafka's options: those of the properties file, and the bootstrap servers."""
        return {**for_librdkafka(read_properties(self.kafka_properties)), "bootstrap.servers": self.kafka_address()}

    def kafka_java_options(self) -> dict[str, str]:
        """Return the same options for Kafka's Java client; they include the password."""
        return {**for_java(read_properties(self.kafka_properties)), "bootstrap.servers": self.kafka_address()}

    def database(self, name: str) -> URL:
        """Return the SQLAlchemy URL of a database: `ledger`, `catalog`, `airflow`, `serving` or another on that server.

        Raise ServiceUnreachable when no URL is set and the embedded PostgreSQL was never started.
        """
        from sqlalchemy.engine import make_url

        return make_url(self._database_address()).set(drivername="postgresql+psycopg2", database=name)

    def database_uri(self, name: str) -> str:
        """Return the same as the URI that PostgreSQL's own clients take; it holds the password."""
        address = urlsplit(self._database_address())
        return address._replace(scheme="postgresql", path=f"/{name}").geturl()

    def database_host(self) -> str:
        """Return host and port of the databases, as messages name them."""
        address = urlsplit(self._database_address())
        return f"{address.hostname}:{address.port}"

    def _database_address(self) -> str:
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return str(self._embedded_state("postgres")["address"])

    def registry(self) -> URL:
        """Return the URL of the schema registry, with user and password of its basic authentication if it has any.

        Raise ServiceUnreachable when no URL is set and the embedded registry was never started.
        """
        from sqlalchemy.engine import make_url

        return make_url(
            self.registry_url.get_secret_value() if self.registry_url else self._embedded_state("registry")["address"]
        )

    def _embedded_state(self, name: str) -> dict[str, Any]:
        state = self.service_state(name)
        if not state:
            raise ServiceUnreachable(
                f"the embedded {name} was never started in {self.home}", remedy=f"./tidemark up {name}"
            )
        return state


def _parse_url(url: SecretStr) -> SplitResult | None:
    """Return the parts of a URL; None when it is none."""
    try:
        parsed = urlsplit(url.get_secret_value())
        # Asking for the port checks it.
        return parsed if "://" in url.get_secret_value() and (parsed.port is None or parsed.port > 0) else None
    except ValueError:
        return None


def check_contact(contact: str) -> str:
    """Return a way to reach somebody as a header names it. Raise ValueError when nobody can be reached so."""
    if not all(_CONTACT.fullmatch(part) for part in contact.split()):
        raise ValueError("nobody can be reached so; write an e-mail address or https://…, or both with a space")
    return " ".join(contact.split())


def read_properties(path: Path | None) -> dict[str, str]:
    """Return the options of a file of `key=value` lines; none without a path.

    Raise UsageError when the file cannot be read, other users may read it, or a line is malformed.
    """
    if path is None:
        return {}
    try:
        mode = path.stat().st_mode
        lines = path.read_text().splitlines()
    except OSError as error:
        raise UsageError(
            f"TIDEMARK_KAFKA_PROPERTIES: {path}: {error.strerror}", remedy="name a readable file"
        ) from None
    if mode & 0o077:
        raise UsageError(f"TIDEMARK_KAFKA_PROPERTIES: {path} is readable by others", remedy=f"chmod 600 {path}")
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
    """Return the settings of this process. Raise UsageError naming the variable that is wrong."""
    try:
        return Settings()  # type: ignore[call-arg]
    except ValidationError as error:
        first = error.errors()[0]
        name = "TIDEMARK_" + "_".join(str(part) for part in first["loc"]).upper()
        message = str(first["msg"]).removeprefix("Value error, ")
        raise UsageError(f"{name}: {message}", remedy=f"correct or unset {name}") from None


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
