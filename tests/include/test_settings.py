from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import psycopg2
import pytest

from include import lake
from include.errors import ServiceUnreachable, UsageError
from include.services.process import free_port
from include.settings import Settings, read_properties, settings, write_private


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings.cache_clear()
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path / "home"))


def test_wrong_setting_is_named_when_it_does_not_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_DATABASE_URL", "mysql://user:secret@host/db")
    with pytest.raises(UsageError) as raised:
        settings()
    assert "TIDEMARK_DATABASE_URL" in str(raised.value)
    assert "secret" not in str(raised.value)


def test_missing_service_is_named_when_it_was_never_started() -> None:
    with pytest.raises(ServiceUnreachable, match="tidemark up kafka"):
        settings().kafka_address()


def test_secret_does_not_show_when_settings_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_DATABASE_URL", "postgresql://user:hunter2@host:5432")
    assert "hunter2" not in repr(settings())
    assert settings().database("catalog").database == "catalog"


def test_databases_have_their_names_when_the_url_names_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_DATABASE_URL", "postgresql://user:hunter2@host:5432/defaultdb?sslmode=require")
    found = settings().database("ledger")
    assert (found.database, found.query["sslmode"]) == ("ledger", "require")


def test_properties_are_refused_when_others_may_read_them(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("sasl.password=secret\n")
    path.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        read_properties(path)
    path.chmod(0o600)
    assert read_properties(path) == {"sasl.password": "secret"}


def test_properties_name_the_line_when_one_is_malformed(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    write_private(path, "# comment\na=b\nno value\n")
    with pytest.raises(UsageError, match=":3:"):
        read_properties(path)


def test_private_file_is_readable_only_by_its_owner_when_it_is_written(tmp_path: Path) -> None:
    write_private(tmp_path / "deep" / "secret", "x")
    assert (tmp_path / "deep" / "secret").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("contact", ["me@example.org", "https://example.org/~me  me+wiki@sub.example.org", ""])
def test_contact_is_kept_when_somebody_can_be_reached(monkeypatch: pytest.MonkeyPatch, contact: str) -> None:
    monkeypatch.setenv("TIDEMARK_CONTACT", contact)
    assert settings().contact == " ".join(contact.split())


@pytest.mark.parametrize(
    "contact", ["me", "me@host", "a@b.c (x)", "https://", "mé@example.org", "me@example.org)\r\nX: y", "ftp://a.org"]
)
def test_contact_is_refused_when_nobody_can_be_reached(monkeypatch: pytest.MonkeyPatch, contact: str) -> None:
    monkeypatch.setenv("TIDEMARK_CONTACT", contact)
    with pytest.raises(UsageError, match="TIDEMARK_CONTACT: not a contact"):
        settings()


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("LEASE_SECONDS", "soon", "valid number"),
        ("LEASE_SECONDS", "1.5", "greater than or equal to 2"),
        ("LEASE_SECONDS", "nan", "greater than or equal to 2"),
        ("LEASE_SECONDS", "inf", "less than or equal to 3600"),
        ("LEASE_SECONDS", "3601", "less than or equal to 3600"),
        ("DRIVER_MEMORY", "much", "write it like 1g"),
        ("DRIVER_MEMORY", "2048", "write it like 1g"),
        ("DRIVER_MEMORY", "2gb", "write it like 1g"),
        ("EXECUTOR_MEMORY", "0g", "write it like 1g"),
        ("ARCHIVE_WAIT", "10 min", "write it like 10s"),
        ("MAX_OFFSETS_PER_TRIGGER", "1.5", "valid integer"),
        ("MAX_OFFSETS_PER_TRIGGER", "0", "greater than or equal to 1"),
        ("KAFKA_BOOTSTRAP", " ", "write host:port"),
        ("KAFKA_BOOTSTRAP", "broker", "write host:port"),
        ("KAFKA_BOOTSTRAP", "one:9092;two:9092", "write host:port"),
        ("SPARK_UI", "perhaps", "valid boolean"),
        ("UNUSUAL", "loud", "'info', 'warn' or 'fail'"),
        ("SPARK_MASTER", "local[many]", "not a master"),
        ("SPARK_MASTER", "local[0]", "not a master"),
        ("SPARK_MASTER", "spark:/host:7077", "not a master"),
        ("SPARK_MASTER", "spark://host", "not a master"),
        ("SPARK_MASTER", "spark://host:7077,", "not a master"),
        ("SPARK_MASTER", "yarn-cluster", "not a master"),
        ("SPARK_MASTER", "k8s://", "not a master"),
        ("SPARK_SUBMIT", "/nowhere/spark-submit", "not an executable file"),
        ("LAKE", "s3a://a bucket/x", "not a path in a bucket"),
        ("LAKE", "s3a:bucket/x", "s3a: begins no path"),
        ("LAKE", "file:/srv/lake", "file: begins no path"),
        # The Spark that is used has no connector for them.
        ("LAKE", "gs://bucket/lake", "gs:// is not a store"),
        ("LAKE", "abfss://container@account.dfs.core.windows.net/lake", "abfss:// is not a store"),
        ("LAKE", "/", "not a folder of a lake"),
        ("LAKE", "file:///", "not a folder of a lake"),
        ("LAKE", "file://srv/lake", "not a folder of a lake"),
        ("LAKE", "file:///srv/my%20lake", "has '%'"),
        ("LAKE", "/srv/lake\\x", "another path"),
        ("LAKE", "file:///srv//lake", "has '/'"),
        ("LAKE", "file:///srv/../lake", "has '/..'"),
        ("LAKE", "hdfs://name:8020/./lake", "has '/.'"),
        ("LAKE", "hdfs://", "not a folder of a lake"),
        ("LAKE", "../lake", "has '/..'"),
        ("HOME", "../home", "has '/..'"),
        ("HOME", " ", "has '/ '"),
        ("HOME", "/srv/a,b", "has ','"),
        ("HOME", "/srv/a\udcff", "another path"),
        ("REGISTRY_URL", "ftp://hunter2@host", "not a URL"),
        ("ALERT_SMTP", "https://hunter2@host", "not a URL"),
        ("OPENLINEAGE_URL", "file://", "not a URL"),
        ("DATABASE_URL", "postgresql://u:hunter2@host:port", "not a URL"),
        ("DATABASE_URL", "postgresql:///ledger", "not a URL"),
        ("DATABASE_URL", "postgresql://u:hunter2%@host", "a % of a password as %25"),
        ("DATABASE_URL", "postgresql://u:hunter2%zz@host", "a % of a password as %25"),
        ("DATABASE_URL", "postgresql://u:%00hunter2@host", "a % of a password as %25"),
        ("DATABASE_URL", "postgresql://u:hun@hunter2@host", "write @ / . # of a password as %40"),
        ("DATABASE_URL", "postgresql://u:42?hunter2@host:5432", "write @ / . # of a password as %40"),
        ("DATABASE_URL", "postgresql://u:42#hunter2@host", "write @ / . # of a password as %40"),
        ("DATABASE_URL", "postgresql://u:42/hunter2@host", "write @ / . # of a password as %40"),
        ("DATABASE_URL", "postgresql://u:a/hunter2@host", "write @ / . # of a password as %40"),
        ("REGISTRY_URL", "https://u:hun@hunter2@host:8081", "write @ / . # of a password as %40"),
        ("REGISTRY_URL", "https://u:42/hunter2@host:8081/x", "write @ / . # of a password as %40"),
    ],
)
def test_variable_is_named_when_its_text_is_no_value_of_it(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, says: str
) -> None:
    monkeypatch.setenv(f"TIDEMARK_{variable}", text)
    with pytest.raises(UsageError, match=f"TIDEMARK_{variable}: .*{says}") as raised:
        settings()
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "master",
    ["local", "local[4]", "local[*]", "local[2,3]", "local[*, 3]", "yarn", "spark://spark-master:7077",
     "spark://10.0.0.1:7077,[::1]:7078", "k8s://https://kubernetes.default.svc", "k8s://http://127.0.0.1:8001",
     "k8s://api.example.org:6443"],
)  # fmt: skip
def test_master_is_taken_as_it_is_when_spark_has_that_form(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    monkeypatch.setenv("TIDEMARK_SPARK_MASTER", master)
    assert settings().spark_master == master


def test_values_have_their_kinds_when_they_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_HOME", "~/home")
    monkeypatch.setenv("TIDEMARK_LEASE_SECONDS", "3")
    monkeypatch.setenv("TIDEMARK_MAX_OFFSETS_PER_TRIGGER", "7")
    monkeypatch.setenv("TIDEMARK_REGISTRY_URL", "")
    monkeypatch.setenv("TIDEMARK_SPARK_UI", "Yes")
    found = settings()
    assert (found.home, found.lease_seconds) == (Path.home() / "home", 3.0)
    assert (found.max_offsets_per_trigger, found.registry_url, found.spark_ui) == (7, None, True)
    assert (found.unusual, found.lake_uri) == ("info", (Path.home() / "home" / "lake").as_uri())


@pytest.mark.parametrize("variable", [f"TIDEMARK_{name.upper()}" for name in Settings.declared()])
def test_default_holds_when_a_variable_is_empty(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.delenv("TIDEMARK_HOME")
    unset = settings()
    monkeypatch.setenv(variable, "")
    settings.cache_clear()
    assert settings() == unset


@pytest.mark.parametrize(
    "name", ["KAFKA_PROPERTIES", "JDBC_PROPERTIES", "PROOF_KEY", "SECRETS", "POD_TEMPLATES", "SPARK_SUBMIT"]
)
def test_path_is_absolute_when_it_begins_with_the_user_s_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    write_private(tmp_path / "file", "")
    (tmp_path / "file").chmod(0o700)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(f"TIDEMARK_{name}", "~/file")
    assert getattr(settings(), name.lower()) == tmp_path / "file"


def test_lake_has_one_spelling_when_its_path_has_blanks_and_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/srv/my löke @2+(1)&=~"
    monkeypatch.setenv("TIDEMARK_HOME", path)
    assert (settings().lake_uri, lake.filesystem(lake.root())[1]) == (f"file://{path}/lake", f"{path}/lake")
    for text in (path, f"file://{path}/"):
        monkeypatch.setenv("TIDEMARK_LAKE", text)
        settings.cache_clear()
        assert (settings().lake_uri, lake.filesystem(lake.root())[1]) == (f"file://{path}", path)


def test_processes_find_the_same_folders_when_paths_are_relative(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = {"TIDEMARK_LAKE": "lake", "TIDEMARK_PROOF_KEY": "key.pem"}
    for name, path in paths.items():
        monkeypatch.setenv(name, path)
    before = settings()
    monkeypatch.chdir("/")
    settings.cache_clear()
    assert settings() == before
    assert {name: os.environ[name] for name in paths} == {
        "TIDEMARK_LAKE": f"file://{tmp_path}/lake",
        "TIDEMARK_PROOF_KEY": f"{tmp_path}/key.pem",
    }


@pytest.mark.parametrize("text", ["broker.example.net:9092", "10.0.0.1:9092, [::1]:9093"])
def test_brokers_are_taken_when_each_has_a_port(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TIDEMARK_KAFKA_BOOTSTRAP", text)
    assert settings().kafka_address() == text.replace(" ", "")


def test_checkout_is_refused_when_java_would_read_another_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("include.settings.REPOSITORY", Path("/srv/a:b"))
    with pytest.raises(UsageError, match=r"this checkout: /srv/a:b has ':'.*move it"):
        settings()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PGHOSTADDR", "203.0.113.1"),
        ("PGSERVICE", "another"),
        ("PGSSLMODE", "wrong"),
        ("PGTARGETSESSIONATTRS", "wrong"),
        ("PGCHANNELBINDING", "wrong"),
        ("PGGSSENCMODE", "wrong"),
        ("PGREQUIREAUTH", "wrong"),
    ],
)
def test_embedded_database_is_asked_when_the_shell_names_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with socket.create_server(("127.0.0.1", free_port())) as closed:
        port = closed.getsockname()[1]
    state = {"address": f"postgresql://tidemark:x@127.0.0.1:{port}/ledger"}
    write_private(tmp_path / "home" / "services" / "postgres.json", json.dumps(state))
    with pytest.raises(psycopg2.OperationalError, match=f"127.0.0.1.*port {port} failed: Connection refused"):
        psycopg2.connect(settings().database_uri("ledger"), connect_timeout=2)


def test_default_port_is_named_when_the_url_of_the_database_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_DATABASE_URL", "postgresql://u@db.example.net")
    assert settings().database_host() == "db.example.net:5432"


def test_variables_of_libpq_hold_when_a_database_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_DATABASE_URL", "postgresql://u@host")
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    settings()
    assert os.environ["PGSSLMODE"] == "verify-full"


def test_secret_setting_shows_nothing_when_it_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    urls = {
        "database_url": "postgresql://u:hunter2@h",
        "registry_url": "https://u:hunter2@h",
        "alert_webhook": "https://u:hunter2@h",
        "alert_smtp": "smtp://u:hunter2@h",
        "openlineage_url": "https://:hunter2@h",
    }
    for name, url in urls.items():
        monkeypatch.setenv(f"TIDEMARK_{name.upper()}", url)
    found = settings()
    assert {name for name, each in found.declared().items() if each.metadata["secret"]} == urls.keys()
    for name, url in urls.items():
        assert getattr(found, name).get_secret_value() == url
        assert "hunter2" not in f"{found} {found!r} {getattr(found, name)} {getattr(found, name)!r}"
