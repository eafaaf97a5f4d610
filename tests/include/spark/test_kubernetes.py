"""Applications on Kubernetes: what Spark makes of a submission, that no secret is in it, and what a pod's end means."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import kubernetes_validate
import pytest
import yaml

from include.errors import ServiceUnreachable, TidemarkError, UsageError
from include.settings import REPOSITORY, settings
from include.spark import cluster_run, compiled_jars, kubernetes
from include.spark.jars import folder, pyspark_home
from include.spark.submission import submission
from tests.conftest import SetSettings
from tests.support.kubernetes_api import RecordingApi, recording_api

CANARY = "canary-93be"
URL = f"postgresql://tidemark:{CANARY}@postgres.example.net:5432"
IMAGE = "registry.example.net/tidemark:0.1.0"
DOCKERFILE = (REPOSITORY / "include" / "deploy" / "Dockerfile").read_text()
ACCESS = REPOSITORY / "include" / "deploy" / "kubernetes" / "access.yaml"


@pytest.fixture
def api() -> Iterator[RecordingApi]:
    with recording_api() as server:
        yield server


@pytest.fixture
def on_kubernetes(api: RecordingApi, tmp_path: Path, set_settings: SetSettings) -> RecordingApi:
    """The settings submit in cluster mode; each secret has the canary in it."""
    secrets, kafka = tmp_path / "settings", tmp_path / "kafka.properties"
    secrets.write_text(f"TIDEMARK_DATABASE_URL={URL}\n")
    kafka.write_text(f"sasl.password={CANARY}\n")
    for file in (secrets, kafka):
        file.chmod(0o600)
    set_settings(
        TIDEMARK_HOME="/var/lib/tidemark",
        TIDEMARK_LAKE="s3a://bucket/lake",
        TIDEMARK_SPARK_MASTER=api.master,
        TIDEMARK_SPARK_DEPLOY_MODE="cluster",
        TIDEMARK_SPARK_IMAGE=IMAGE,
        TIDEMARK_SPARK_EXECUTORS="3",
        TIDEMARK_SECRETS=str(secrets),
        TIDEMARK_KAFKA_PROPERTIES=str(kafka),
        TIDEMARK_DATABASE_URL=URL,
        TIDEMARK_SOMETHING=CANARY,
        AWS_SECRET_ACCESS_KEY=CANARY,
        # Otherwise Spark's client would use the address and the user of this machine's own cluster.
        KUBECONFIG=str(tmp_path / "none"),
    )
    return api


@pytest.fixture
def local_lake(on_kubernetes: RecordingApi, set_settings: SetSettings) -> None:
    """A lake that needs no connector, which would have to be fetched."""
    set_settings(TIDEMARK_LAKE="file:///srv/lake")


def allowed(role: str) -> set[tuple[str, str, str]]:
    """Return verb, API group and resource of everything that a role allows."""
    documents = yaml.safe_load_all(ACCESS.read_text())
    rules = next(each["rules"] for each in documents if each["kind"] == "Role" and each["metadata"]["name"] == role)
    return {
        (verb, group, resource)
        for rule in rules
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


@pytest.mark.usefixtures("local_lake")
def test_command_has_the_image_s_code_and_no_secret_when_a_driver_is_submitted(on_kubernetes: RecordingApi) -> None:
    command = submission("stream", "--pipeline", "isp_hits", name="stream isp_hits").command()
    assert CANARY not in "\n".join(command)
    assert command[1:5] == ["--master", on_kubernetes.master, "--deploy-mode", "cluster"]
    assert command[-3:] == [f"local://{REPOSITORY}/spark_jobs/stream.py", "--pipeline", "isp_hits"]
    options = [part for part in command if "=" in part]
    assert f"spark.kubernetes.driverEnv.TIDEMARK_SECRETS={settings().secrets}" in options
    assert "spark.kubernetes.driverEnv.TIDEMARK_LAKE=file:///srv/lake" in options
    assert f"spark.kubernetes.container.image={IMAGE}" in options
    assert "spark.executor.instances=3" in options
    assert not [each for each in options if each.startswith("spark.yarn.")]


def test_image_has_every_jar_that_executors_load_when_the_lake_is_in_a_bucket(on_kubernetes: RecordingApi) -> None:
    jars = submission("stream", name="stream", delta=True).conf["spark.jars"].split(",")
    needed = {Path(each.removeprefix("local://")).parent for each in jars}
    fetched = re.search(r"^RUN python -m include\.spark\.jars ([a-z0-9 ]+) &&", DOCKERFILE, re.MULTILINE)
    assert fetched is not None
    assert needed <= {folder() / conf for conf in fetched[1].split()} | {compiled_jars.FOLDER}
    assert {folder() / "s3", compiled_jars.FOLDER} <= needed
    # After the code was copied: it is compiled from there.
    assert DOCKERFILE.index("include include\n") < DOCKERFILE.index("\nRUN python -m include.spark.compiled_jars\n")


def test_every_class_of_ours_is_compiled_when_the_image_is_built() -> None:
    assert compiled_jars.main() == 0
    names = {each.name.rpartition("-")[0] for each in compiled_jars.FOLDER.glob("*.jar")}
    assert {each.stem for each in Path(compiled_jars.__file__).parent.glob("*.java")} <= names


@pytest.mark.usefixtures("local_lake")
def test_pod_is_named_as_the_executors_owner_when_the_driver_stays_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "spark.kubernetes.driver.pod.name" not in submission("run_sql", name="sql").conf
    monkeypatch.setattr(kubernetes, "_ACCOUNT", tmp_path)
    monkeypatch.setenv("HOSTNAME", "airflow-0")
    job = submission("run_sql", name="sql")
    assert job.mode == "client"
    assert job.conf["spark.kubernetes.driver.pod.name"] == "airflow-0"
    assert "spark.kubernetes.driver.podTemplateFile" not in job.conf
    assert job.command()[-1] == f"{REPOSITORY}/spark_jobs/run_sql.py"


@pytest.mark.usefixtures("local_lake")
@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("TIDEMARK_SPARK_IMAGE", "", "without an image.*TIDEMARK_SPARK_IMAGE"),
        ("TIDEMARK_POD_TEMPLATES", "/nowhere", r"TIDEMARK_POD_TEMPLATES: /nowhere/driver\.yaml is no file"),
    ],
)
def test_submission_is_refused_when_its_pods_could_not_be_made(
    variable: str, value: str, says: str, set_settings: SetSettings
) -> None:
    set_settings(**{variable: value})
    with pytest.raises(UsageError, match=says):
        submission("stream", name="stream")


@pytest.mark.usefixtures("local_lake")
def test_driver_s_pod_is_whole_and_without_secrets_when_spark_makes_it(on_kubernetes: RecordingApi) -> None:
    job = submission("stream", "--pipeline", "isp_hits", name="stream isp_hits")
    driver = kubernetes.Kubernetes(on_kubernetes.master).submitted_id(cluster_run.hand_over(job))
    (pod,) = on_kubernetes.of("pods")
    assert driver == f"tidemark:{pod['metadata']['name']}"
    assert CANARY not in "\n".join(on_kubernetes.sent)
    for each in on_kubernetes.objects.values():
        kubernetes_validate.validate(each, "1.37", strict=True)

    template = yaml.safe_load((settings().pod_templates / "driver.yaml").read_text())["spec"]
    spec = pod["spec"]
    (container,), (wanted,) = spec["containers"], template["containers"]
    assert container["name"] == kubernetes.CONTAINER
    assert container["image"] == IMAGE
    assert spec["serviceAccountName"] == "tidemark-driver"
    assert spec["securityContext"] == template["securityContext"]
    for kept in ("livenessProbe", "startupProbe", "securityContext"):
        assert container[kept] == wanted[kept]
    assert [each for each in wanted["volumeMounts"] if each not in container["volumeMounts"]] == []
    assert {"name": "secrets", "secret": {"secretName": "tidemark", "defaultMode": 0o440}} in spec["volumes"]
    assert container["resources"]["limits"] == {"memory": "2048Mi", "ephemeral-storage": "8Gi"}
    assert container["args"][0] == "driver"
    assert container["args"][-3:] == [job.command()[-3], "--pipeline", "isp_hits"]
    properties = next(each["data"] for each in on_kubernetes.of("configmaps") if "spark.properties" in each["data"])
    jars = properties["spark.properties"].replace("\\:", ":")
    assert all(f"local://{jar}" in jars for jar in job.conf["spark.jars"].replace("local://", "").split(","))
    asked = set(on_kubernetes.asked)
    assert ("create", "", "pods") in asked
    assert asked - allowed("spark-submit") == set()


@pytest.mark.usefixtures("local_lake")
@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_nobody_else_in_the_cluster_may_ask_a_driver_when_it_runs_on_kubernetes(
    on_kubernetes: RecordingApi, mode: Literal["client", "cluster"]
) -> None:
    # It answers an executor's request for its configuration with all of it, the catalog's password included.
    conf = submission("stream", "--pipeline", "isp_hits", name="stream isp_hits", mode=mode).conf
    assert (conf["spark.authenticate"], conf["spark.network.crypto.enabled"]) == ("true", "true")
    # Spark makes one for each application.
    assert "spark.authenticate.secret" not in conf


def executor_pod(master: str, options: dict[str, str]) -> dict[str, Any]:
    """The pod of an executor, as Spark's scheduler in a driver builds it."""
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    libraries = pyspark_home() / "jars"
    (own_jar,) = libraries.glob("py4j-*.jar")
    port, process = launch_gateway(
        jarpath=str(own_jar), classpath=f"{libraries}/*", javaopts=["-XX:TieredStopAtLevel=1"], die_on_exit=True,
        return_proc=True,
    )  # fmt: skip
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    try:
        spark, kubernetes_api = gateway.jvm.org.apache.spark, gateway.jvm.io.fabric8.kubernetes
        none = gateway.jvm.scala.Option.empty()
        conf = spark.SparkConf(False)
        for name, value in {
            **options, "spark.master": master, "spark.app.name": "stream isp_hits",
            "spark.driver.host": "driver", "spark.driver.port": "7078",
        }.items():  # fmt: skip
            conf.set(name, value)

        def companion(name: str) -> Any:
            return gateway.jvm.java.lang.Class.forName(f"org.apache.spark.{name}$").getField("MODULE$").get(None)

        driver = companion("deploy.k8s.SparkKubernetesClientFactory$ClientType").Driver()
        client = spark.deploy.k8s.SparkKubernetesClientFactory.createKubernetesClient(
            master.removeprefix("k8s://"), none, "spark.kubernetes.authenticate", driver, conf, none
        )
        security = spark.SecurityManager(
            conf, none, getattr(companion("SecurityManager"), "$lessinit$greater$default$3")()
        )
        security.initializeAuth()
        profile = companion("resource.ResourceProfile").getOrCreateDefaultProfile(conf)
        built = spark.scheduler.cluster.k8s.KubernetesExecutorBuilder().buildFromFeatures(
            spark.deploy.k8s.KubernetesExecutorConf(conf, "spark-1", "1", none, profile.id()),
            security, client, profile,
        )  # fmt: skip
        to_json = kubernetes_api.client.utils.Serialization.asJson
        pod: dict[str, Any] = json.loads(to_json(built.pod().pod()))
        pod["spec"]["containers"] = [json.loads(to_json(built.pod().container()))]
        return pod
    finally:
        gateway.shutdown()
        process.terminate()
        process.wait()


@pytest.mark.usefixtures("local_lake")
def test_executor_s_pod_has_the_bucket_s_secret_alone_when_spark_makes_it(on_kubernetes: RecordingApi) -> None:
    job = submission("stream", "--pipeline", "isp_hits", name="stream isp_hits")
    pod = executor_pod(on_kubernetes.master, job.conf)
    kubernetes_validate.validate(pod, "1.37", strict=True)
    assert CANARY not in json.dumps(pod)
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    template = yaml.safe_load((settings().pod_templates / "executor.yaml").read_text())["spec"]
    assert spec["serviceAccountName"] == "tidemark-executor"
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"] == template["securityContext"]
    assert container["securityContext"] == template["containers"][0]["securityContext"]
    assert container["image"] == IMAGE
    assert container["args"] == ["executor"]
    assert container["resources"]["limits"]["ephemeral-storage"] == "8Gi"
    assert [volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume] == ["tidemark-bucket"]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert environment["SPARK_DRIVER_URL"] == "spark://CoarseGrainedScheduler@driver:7078"
    assert len(environment["_SPARK_AUTH_SECRET"] or "") >= 32
    assert "-Dspark.authenticate=true" in environment.values()
    # What the image's entrypoint reads.
    read = set(re.findall(r"\$\{?(SPARK_(?!DRIVER_BIND|JAVA)\w+)", (ACCESS.parents[1] / "entrypoint.sh").read_text()))
    assert read - {"SPARK_CONF_DIR"} <= environment.keys()
    assert environment["SPARK_HOME"] == str(pyspark_home())
    assert environment["PYTHONPATH"] == str(REPOSITORY)


@pytest.mark.usefixtures("local_lake")
def test_reason_is_named_when_the_api_server_refuses(on_kubernetes: RecordingApi) -> None:
    printed = 'Exception in thread "main" io.fabric8.kubernetes.client.KubernetesClientException: pods is forbidden\n'
    with pytest.raises(TidemarkError, match=r"pods is forbidden.*kubectl auth can-i"):
        kubernetes.Kubernetes(on_kubernetes.master).submitted_id(printed)


def a_pod(phase: str, state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    containers = [{"name": kubernetes.CONTAINER, "state": state}] if state else []
    return {"metadata": {"name": "driver"}, "status": {"phase": phase, "containerStatuses": containers, **status}}


@pytest.mark.parametrize(
    ("pod", "ended", "code", "end"),
    [
        (a_pod("Running", {"running": {}}), False, None, "running"),
        (a_pod("Succeeded", {"terminated": {"exitCode": 0, "reason": "Completed"}}), True, 0, "exit code 0, Completed"),
        (a_pod("Failed", {"terminated": {"exitCode": 5, "reason": "Error"}}), True, 5, "failed, exit code 5, Error"),
        (a_pod("Failed", {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}), True, None, "OOMKilled"),
        (a_pod("Failed", reason="Evicted", message="node was low on memory"), True, None, "Evicted node was low"),
    ],
)
def test_exit_code_is_the_driver_s_own_only_when_it_ended_by_itself(
    pod: dict[str, Any], ended: bool, code: int | None, end: str
) -> None:
    found = kubernetes.driver_pod("tidemark:driver", pod)
    assert (found.has_ended, found.own_exit_code) == (ended, code)
    assert end in found.end


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (a_pod("Pending", {"waiting": {"reason": "ContainerCreating"}}), ""),
        (a_pod("Pending", {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}),
         "ImagePullBackOff: no such image"),
        (a_pod("Pending", conditions=[{"reason": "Unschedulable", "message": "0/3 nodes: memory"}]),
         "Unschedulable: 0/3 nodes: memory"),
        ({"metadata": {"name": "driver"}}, ""),
    ],
)  # fmt: skip
def test_reason_is_named_when_a_pod_does_not_start(pod: dict[str, Any], why: str) -> None:
    found = kubernetes.driver_pod("tidemark:driver", pod)
    assert found.is_waiting
    assert found.waits_for == why


def test_lines_of_a_driver_are_shown_once_when_its_log_is_read_again(api: RecordingApi) -> None:
    cluster = kubernetes.Kubernetes(api.master)
    driver = kubernetes.driver_pod("tidemark:driver", a_pod("Running"))
    api.log = "2026-11-24T13:00:00.1Z tidemark: first\n2026-11-24T13:00:00.2Z tidemark: second\n"
    assert cluster.new_lines(driver) == ["tidemark: first", "tidemark: second"]
    # The API server repeats all lines of the last second.
    api.log += "2026-11-24T13:00:00.3Z tidemark: third\n"
    assert cluster.new_lines(driver) == ["tidemark: third"]
    assert set(api.asked) - allowed("spark-submit") == set()
    api.refusal = "pods/log is forbidden"
    assert cluster.new_lines(driver) == []


def test_pod_is_deleted_when_killed_and_unknown_from_then_on(api: RecordingApi) -> None:
    cluster = kubernetes.Kubernetes(api.master)
    api.objects["pods", "driver"] = a_pod("Running", {"running": {}})
    found = cluster.find("tidemark:driver")
    assert found is not None
    assert not found.has_ended
    cluster.kill("tidemark:driver")
    assert cluster.find("tidemark:driver") is None
    assert set(api.asked) - allowed("spark-submit") == set()
    api.refusal = "pods is forbidden"
    with pytest.raises(ServiceUnreachable, match=r"403.*tidemark-submit"):
        cluster.find("tidemark:driver")
