"""The manifests for Kubernetes against the API's schemas, the settings, the code and the compose file."""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import stat
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from include.deploy import check_driver
from include.ledger.streams import writers
from include.settings import REPOSITORY, Settings, secret_variables
from include.spark import kubernetes

DEPLOY = REPOSITORY / "include" / "deploy"
ENTRYPOINT = DEPLOY / "entrypoint.sh"
KUSTOMIZATION = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())
FILES = sorted((DEPLOY / "kubernetes").rglob("*.yaml"))
OBJECTS: list[dict[str, Any]] = [each for file in FILES for each in yaml.safe_load_all(file.read_text())]
SCHEMA = "1.37"


def named(kind: str) -> dict[str, dict[str, Any]]:
    """The objects of a kind, by name."""
    return {each["metadata"]["name"]: each for each in OBJECTS if each["kind"] == kind and "name" in each["metadata"]}


def pods() -> list[dict[str, Any]]:
    """The specification of every pod, that of Spark's templates included."""
    workloads = [each for each in OBJECTS if each["kind"] in ("Deployment", "StatefulSet", "Job")]
    templates = [each for each in OBJECTS if each["kind"] == "Pod"]
    assert len(workloads) == 4
    assert len(templates) == 2
    return [each["spec"]["template"]["spec"] for each in workloads] + [each["spec"] for each in templates]


def containers() -> list[dict[str, Any]]:
    """Every container."""
    return [each for pod in pods() for each in (*pod["containers"], *pod.get("initContainers", ()))]


def test_object_is_known_to_the_api_when_a_manifest_has_it() -> None:
    assert OBJECTS
    for each in OBJECTS:
        whole = copy.deepcopy(each)
        for container in whole["spec"]["containers"] if whole["kind"] == "Pod" else ():
            container["image"] = "tidemark"
        kubernetes_validate.validate(whole, SCHEMA, strict=True)


@pytest.mark.parametrize(
    ("kind", "path", "wrong"),
    [
        ("Deployment", ("spec", "template", "spec", "containers", 0), {"livenesProbe": {}}),
        ("Job", ("spec",), {"backofflimit": 6}),
        ("Role", ("rules", 0), {"verb": ["get"]}),
        ("StatefulSet", ("spec", "template", "spec"), {"terminationGracePeriodSeconds": "soon"}),
    ],
)
def test_manifest_is_refused_when_a_field_is_misspelt(
    kind: str, path: tuple[str | int, ...], wrong: dict[str, Any]
) -> None:
    whole = copy.deepcopy(next(each for each in OBJECTS if each["kind"] == kind))
    at: Any = whole
    for step in path:
        at = at[step]
    at |= wrong
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(whole, SCHEMA, strict=True)


def test_kustomization_names_a_file_when_it_is_not_optional() -> None:
    listed = {DEPLOY / each for each in KUSTOMIZATION["resources"]}
    assert set(FILES) - listed == {
        DEPLOY / "kubernetes" / each for each in ("stream.yaml", "pods/driver.yaml", "pods/executor.yaml")
    }
    (generated,) = KUSTOMIZATION["configMapGenerator"]
    assert all((DEPLOY / each).is_file() for each in generated["files"])
    (image,) = KUSTOMIZATION["images"]
    assert named("ConfigMap")["tidemark-settings"]["data"]["TIDEMARK_SPARK_IMAGE"] == (
        f"{image['newName']}:{image['newTag']}"
    )
    assert {each["image"] for each in containers() if "image" in each} == {image["name"], "prom/prometheus:v3.7.3"}


def test_setting_is_known_and_not_secret_when_the_manifest_has_it() -> None:
    data = named("ConfigMap")["tidemark-settings"]["data"]
    known = {f"TIDEMARK_{name.upper()}" for name in Settings.declared()}
    assert data.keys() <= known - secret_variables()
    assert not named("Secret")
    for each in containers():
        # Anything but a reference is an argument in another form.
        assert all("valueFrom" in variable for variable in each.get("env", ())), each["name"]
    for name, value in named("ConfigMap")["airflow-settings"]["data"].items():
        if re.search(r"(PASSWORD|_KEY|_SECRET|_CONN|_ASYNC)(_CMD)?$", name):
            assert re.fullmatch(r"cat /run/secrets/airflow/[a-z-]+", value), name


def test_airflow_is_set_up_as_in_the_compose_file_when_on_kubernetes() -> None:
    compose = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())["x-airflow-settings"]
    shipped = named("ConfigMap")["airflow-settings"]["data"]
    own = {"AIRFLOW__CORE__EXECUTION_API_SERVER_URL", "AIRFLOW__API__BASE_URL", "AIRFLOW_CONN_SPARK_DEFAULT"}
    secret = {name for name, value in compose.items() if "${" in str(value)}
    shared = {name: value for name, value in compose.items() if name.startswith("AIRFLOW") and name not in own | secret}
    assert {name: shipped.get(name) for name in shared} == shared
    assert {f"{name}_CMD" for name in secret if name.startswith("AIRFLOW")} - own <= shipped.keys() | {
        "AIRFLOW__API__BASE_URL_CMD"
    }
    connection = json.loads(shipped["AIRFLOW_CONN_SPARK_DEFAULT"])
    assert connection["host"] == named("ConfigMap")["tidemark-settings"]["data"]["TIDEMARK_SPARK_MASTER"]


def test_pods_are_hardened_bounded_and_probed_when_they_start() -> None:
    for pod in pods():
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for each in pod["containers"]:
            assert each["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
            assert each["resources"]["limits"], each["name"]
            # The set-up ends by itself, and a driver watches its executors.
            assert "livenessProbe" in each or each["name"] in ("setup", "spark-kubernetes-executor"), each["name"]
        mounted = {volume["name"] for volume in pod["volumes"]} | {"state"}
        assert {mount["name"] for each in pod["containers"] for mount in each["volumeMounts"]} <= mounted
    # The image's user and group must be able to read the pod's own files.
    assert {(pod["securityContext"]["runAsUser"], pod["securityContext"]["fsGroup"]) for pod in pods()} == {
        (10001, 10001)
    }


def test_service_account_is_known_to_the_code_when_a_manifest_creates_it() -> None:
    accounts = named("ServiceAccount")
    assert {kubernetes.DRIVER_ACCOUNT, kubernetes.EXECUTOR_ACCOUNT} <= accounts.keys()
    assert accounts[kubernetes.EXECUTOR_ACCOUNT]["automountServiceAccountToken"] is False
    bound = {subject["name"] for each in named("RoleBinding").values() for subject in each["subjects"]}
    assert bound == accounts.keys() - {kubernetes.EXECUTOR_ACCOUNT}
    for pod in pods():
        used = pod.get("serviceAccountName")
        assert (
            used in accounts
            or pod.get("automountServiceAccountToken") is False
            or (pod["containers"][0]["name"] == kubernetes.CONTAINER)
        )


def test_metrics_outlive_their_pod_and_fit_their_disk_when_kept_for_a_month() -> None:
    monitor = named("Deployment")["monitor"]["spec"]
    volumes = {each["name"]: each for each in monitor["template"]["spec"]["volumes"]}
    claim = named("PersistentVolumeClaim")[volumes["prometheus-data"]["persistentVolumeClaim"]["claimName"]]["spec"]
    # A disk that one node mounts is free only after the old pod has ended.
    assert (claim["accessModes"], monitor["strategy"]) == (["ReadWriteOnce"], {"type": "Recreate"})
    (prometheus,) = [each for each in monitor["template"]["spec"]["containers"] if each["name"] == "prometheus"]
    (limit,) = [each.partition("size=")[2] for each in prometheus["args"] if "retention.size" in each]
    disk = claim["resources"]["requests"]["storage"]
    # Prometheus keeps its log and the block that it is writing beside what it counts.
    assert int(limit.removesuffix("GB")) <= 0.8 * int(disk.removesuffix("Gi"))


def test_driver_answers_its_executors_alone_wherever_it_runs_when_a_pod_asks_it() -> None:
    policies = [each["spec"] for each in named("NetworkPolicy").values()]
    submitting = [
        each["spec"]["template"]
        for each in OBJECTS
        if each["kind"] in ("Deployment", "StatefulSet")
        and each["spec"]["template"]["spec"].get("serviceAccountName") == "tidemark-submit"
    ]
    assert len(submitting) == 2
    of_its_own = {"metadata": {"labels": {"spark-role": "driver"}}, "spec": {"containers": []}}
    for pod in (*submitting, of_its_own):
        labels = pod["metadata"]["labels"]
        (policy,) = [each for each in policies if each["podSelector"]["matchLabels"].items() <= labels.items()]
        assert policy["policyTypes"] == ["Ingress"]
        published = {port["name"] for each in pod["spec"]["containers"] for port in each.get("ports", ())}
        executors = [{"podSelector": {"matchLabels": {"spark-role": "executor"}}}]
        for rule in policy["ingress"]:
            assert rule.get("from") == executors or {each["port"] for each in rule["ports"]} <= published


# The image's entrypoint


def entrypoint(folder: Path, *arguments: str, **environment: str) -> str:
    """What the entrypoint runs, with `java` and `spark-submit` that print their arguments."""
    programs = folder / "bin"
    programs.mkdir()
    for name in ("java", "spark-submit"):
        (programs / name).write_text('#!/bin/bash\nprintf "%s\\n" "$(basename "$0")" "$@"\n')
        (programs / name).chmod(0o755)
    script = ENTRYPOINT.read_text().replace("/run/", f"{folder}/run/")
    known = {"PATH": f"{programs}:{os.environ['PATH']}", **environment}
    done = subprocess.run(["bash", "-c", script, "entrypoint", *arguments], env=known, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_secrets_are_private_files_and_variables_of_the_process_when_a_container_starts(tmp_path: Path) -> None:
    for name, text in {
        "tidemark/settings": "TIDEMARK_REGISTRY_URL=x\n",
        "bucket/AWS_SECRET_ACCESS_KEY": "a $b 'c'",
    }.items():
        file = tmp_path / "run" / "secrets" / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
        file.chmod(0o440)
    own = tmp_path / "run" / "tidemark"
    own.mkdir()
    said = entrypoint(tmp_path, "bash", "-c", 'echo "$AWS_SECRET_ACCESS_KEY" "$1"', "-", "a b")
    assert said == "a $b 'c' a b\n"
    assert (own / "settings").read_text() == "TIDEMARK_REGISTRY_URL=x\n"
    assert stat.S_IMODE((own / "settings").stat().st_mode) == 0o600


def test_secret_is_always_there_and_whole_when_the_pod_s_containers_start_at_once(tmp_path: Path) -> None:
    secret = tmp_path / "run" / "secrets" / "tidemark" / "settings"
    own = tmp_path / "run" / "tidemark" / "settings"
    for each in (secret, own):
        each.parent.mkdir(parents=True)
    secret.write_text("TIDEMARK_REGISTRY_URL=x\n" * 1000)
    own.write_text(secret.read_text())
    script = ENTRYPOINT.read_text().replace("/run/", f"{tmp_path}/run/")
    again = f"for turn in {{1..40}}; do bash -c {shlex.quote(script)} entrypoint true || exit 1; done"
    starts = [subprocess.Popen(["bash", "-c", again], stderr=subprocess.PIPE, text=True) for _ in range(4)]
    odd: Counter[str] = Counter()
    while any(start.poll() is None for start in starts):
        try:
            odd["cut"] += own.read_text() != secret.read_text()
        except FileNotFoundError:
            odd["missing"] += 1
    failures = [start.communicate()[1] for start in starts]
    assert (failures, +odd) == ([""] * 4, Counter())
    assert [each.name for each in own.parent.iterdir()] == ["settings"]
    assert stat.S_IMODE(own.stat().st_mode) == 0o600


def test_driver_and_executor_meet_spark_s_requests_when_it_starts_them(tmp_path: Path) -> None:
    said = entrypoint(tmp_path, "driver", "--properties-file", "a b", SPARK_DRIVER_BIND_ADDRESS="10.1.2.3")
    wanted = ["--conf", "spark.driver.bindAddress=10.1.2.3", "--deploy-mode", "client", "--properties-file", "a b"]
    assert said.splitlines() == ["spark-submit", *wanted]
    environment = {f"SPARK_JAVA_OPT_{number}": f"-Dn={number} x" for number in (10, 2, 0)}
    for name in ("HOME", "CONF_DIR", "DRIVER_URL", "APPLICATION_ID", "RESOURCE_PROFILE_ID"):
        environment[f"SPARK_{name}"] = name.lower()
    for name in ("MEMORY", "ID", "CORES", "POD_IP", "POD_NAME"):
        environment[f"SPARK_EXECUTOR_{name}"] = name.lower()
    (tmp_path / "second").mkdir()
    said = entrypoint(tmp_path / "second", "executor", **environment)
    assert said.splitlines()[:7] == [
        "java", "-Dn=0 x", "-Dn=2 x", "-Dn=10 x", "-Xmsmemory", "-Xmxmemory", "-cp",
    ]  # fmt: skip
    assert said.splitlines()[-4:] == ["--resourceProfileId", "resource_profile_id", "--podName", "pod_name"]


def test_command_has_the_secrets_of_the_container_s_process_when_a_person_runs_it_in_a_pod(tmp_path: Path) -> None:
    secret = tmp_path / "run" / "secrets" / "bucket" / "AWS_SECRET_ACCESS_KEY"
    image, programs = tmp_path / "opt" / "tidemark", tmp_path / "bin"
    for folder in (secret.parent, image / "include" / "deploy", programs):
        folder.mkdir(parents=True)
    secret.write_text("a $b 'c'")
    for name in ("entrypoint.sh", "tidemark.sh"):
        copied = image / "include" / "deploy" / name
        copied.write_text(re.sub("(?<= )/(?=opt|run)", f"{tmp_path}/", (DEPLOY / name).read_text()))
        copied.chmod(stat.S_IMODE((DEPLOY / name).stat().st_mode))
    (programs / "python").write_text('#!/bin/bash\nprintf "%s\\n" "$AWS_SECRET_ACCESS_KEY" "$@"\n')
    (programs / "python").chmod(0o755)
    # The step that makes the command in the image.
    [made] = re.findall(r"^RUN (ln -s \S+ tidemark)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    subprocess.run(made.split(), cwd=image, check=True)
    known = {"PATH": f"{programs}:{os.environ['PATH']}"}
    command = ["./tidemark", "stream", "isp_hits", "--stop"]
    done = subprocess.run(command, cwd=image, env=known, capture_output=True, text=True)
    assert (done.stdout.splitlines(), done.stderr) == (["a $b 'c'", "-m", "include.cli", *command[1:]], "")


def test_first_process_reaps_what_others_leave_when_a_pod_runs_the_image() -> None:
    # Drivers in Airflow's pod outlive the tasks that launch them, and Airflow waits for its own processes alone.
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert f'ENTRYPOINT ["tini", "-s", "--", "/opt/tidemark/{ENTRYPOINT.relative_to(REPOSITORY)}"]' in dockerfile
    assert re.search(r"apt-get install .* tini\b", dockerfile)
    assert os.access(ENTRYPOINT, os.X_OK)


# check_driver


@pytest.mark.parametrize(
    ("command", "pipeline"),
    [
        ("java … SparkSubmit local:///opt/tidemark/spark_jobs/stream.py --pipeline isp_hits", "isp_hits"),
        ("python -m include.cli stream wiki_changes", "wiki_changes"),
        # As the image's first process has it.
        ("tini -s -- …/entrypoint.sh driver … local:///opt/tidemark/spark_jobs/stream.py --pipeline nest", "nest"),
        ("tini -s -- …/entrypoint.sh python -m include.cli stream wiki_changes", "wiki_changes"),
        ("java … SparkSubmit /opt/tidemark/spark_jobs/build_interval.py --pipeline isp_hits --attempt 3", None),
        ("python -m include.cli monitor", None),
    ],
)
def test_command_line_is_known_when_a_manifest_starts_a_stream(command: str, pipeline: str | None) -> None:
    assert check_driver.streamed_pipeline(command.split()) == pipeline


def test_stream_that_kubernetes_starts_again_is_stopped_by_the_command_of_the_page() -> None:
    page = (REPOSITORY / "include" / "docs" / "deployment.md").read_text()
    [(namespace, name)] = re.findall(r"kubectl -n (\S+) scale deployment (\S+) --replicas=0", page)
    streams = [each for each in OBJECTS if each["kind"] == "Deployment" and each["metadata"]["name"] == name]
    assert [each["spec"]["replicas"] for each in streams] == [1]
    assert namespace == KUSTOMIZATION["namespace"]
    # What the errors say on every page and in every message.
    assert "scale it to 0" in writers.how_to_stop("isp_hits")


def test_container_is_there_when_a_page_runs_the_command_in_it() -> None:
    docs = REPOSITORY / "include" / "docs"
    text = "".join((docs / f"{page}.md").read_text() for page in ("deployment", "runbook"))
    [(pod, name)] = set(re.findall(r"exec (?:-it )?(\S+) -c (\S+) -- \./tidemark", text))
    stateful = named("StatefulSet")[pod.removesuffix("-0")]
    assert name in {each["name"] for each in stateful["spec"]["template"]["spec"]["containers"]}
    [service] = set(re.findall(r"docker compose exec (\S+) \./tidemark", text))
    assert service in yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())["services"]


def test_ledger_is_migrated_before_airflow_starts_when_the_page_s_upgrade_is_followed() -> None:
    page = (REPOSITORY / "include" / "docs" / "runbook.md").read_text().split("\n### Upgrades in containers\n")[1]
    steps = re.findall(r"^kubectl (.+)$", page.split("\n### ")[0], re.MULTILINE)
    [first] = [step for step in steps if "--selector" in step]
    name, value = first.split("--selector ")[1].split("=")
    chosen = [each for each in OBJECTS if each["metadata"].get("labels", {}).get(name) == value]
    # The job, and the settings that it reads.
    [job] = [each for each in chosen if each["kind"] == "Job"]
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert {each["metadata"]["name"] for each in chosen if each is not job} == {
        each["configMapRef"]["name"] for each in container["envFrom"]
    }
    ends = [next(at for at, step in enumerate(steps) if step.endswith(words)) for words in (
        "--stop", "--replicas=0", "delete job setup", first, "job/setup", "apply --kustomize include/deploy", "doctor"
    )]  # fmt: skip
    assert ends == sorted(ends)
    assert f"wait --for=condition=complete --timeout=10m job/{job['metadata']['name']}" in " ".join(steps)
