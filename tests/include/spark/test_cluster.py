"""Applications on YARN: what is handed over, that no secret is in it, and what its end means."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from include.errors import ServiceUnreachable, TidemarkError, UsageError
from include.services.process import free_port
from include.settings import settings
from include.spark import cluster_run, yarn
from include.spark.cluster_run import Followed
from include.spark.driver_lines import DriverLines
from include.spark.submission import submission
from tests.conftest import SetSettings
from tests.support.yarn_api import APPLICATION, ended_application, site_of

CANARY = "canary-51ac"
URL = f"postgresql://tidemark:{CANARY}@127.0.0.1:5432"
SITE = "<configuration><property><name>{}</name><value>{}</value></property></configuration>"


@pytest.fixture(autouse=True)
def on_yarn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_settings: SetSettings) -> Path:
    """The folder of a cluster's configuration, to which the settings submit in cluster mode."""
    folder = tmp_path / "conf"
    folder.mkdir()
    (folder / "yarn-site.xml").write_text(SITE.format("yarn.resourcemanager.webapp.address", "rm.example.net:8088"))
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    set_settings(
        TIDEMARK_HOME=str(tmp_path),
        TIDEMARK_LAKE="file:///srv/lake",
        TIDEMARK_SPARK_MASTER="yarn",
        TIDEMARK_SPARK_DEPLOY_MODE="cluster",
        HADOOP_CONF_DIR=str(folder),
    )
    return folder


@pytest.fixture
def secrets(tmp_path: Path, set_settings: SetSettings) -> Path:
    """A private file with the database's address."""
    file = tmp_path / "secrets.properties"
    file.write_text(f"# of the cluster\nTIDEMARK_DATABASE_URL={URL}\n")
    file.chmod(0o600)
    set_settings(TIDEMARK_SECRETS=str(file))
    return file


def test_driver_gets_the_path_of_the_secrets_and_no_secret_when_it_runs_on_the_cluster(
    secrets: Path, set_settings: SetSettings
) -> None:
    set_settings(TIDEMARK_DATABASE_URL=URL, TIDEMARK_SOMETHING=CANARY)
    assert settings().database("ledger").password == CANARY
    job = submission("stream", "--pipeline", "isp_hits", name="stream isp_hits")
    command = job.command()
    assert CANARY not in "\n".join(command)
    assert CANARY not in json.dumps(job.conf)
    assert command[1:5] == ["--master", "yarn", "--deploy-mode", "cluster"]
    for name, value in {"TIDEMARK_SECRETS": str(secrets), "TIDEMARK_LAKE": "file:///srv/lake"}.items():
        assert f"spark.yarn.appMasterEnv.{name}={value}" in command
    # What this host's `spark-submit` needs would name folders that are not there.
    assert not [part for part in command if "appMasterEnv.SPARK_" in part and "SPARK_LOCAL_IP" not in part]
    assert not [part for part in command if "appMasterEnv.HIVE_" in part or "appMasterEnv.HADOOP_" in part]
    assert not [part for part in command if "tmpdir" in part.lower() and "./tmp" not in part]


def test_secret_of_the_environment_is_refused_when_no_file_takes_it_to_the_cluster(
    tmp_path: Path, set_settings: SetSettings
) -> None:
    set_settings(TIDEMARK_DATABASE_URL=URL)
    with pytest.raises(UsageError, match=r"TIDEMARK_DATABASE_URL: .*TIDEMARK_SECRETS") as refused:
        submission("stream", name="stream")
    assert CANARY not in str(refused.value)
    file = tmp_path / "secrets"
    file.write_text("")
    file.chmod(0o600)
    set_settings(TIDEMARK_SECRETS=str(file))
    with pytest.raises(UsageError, match="TIDEMARK_DATABASE_URL"):
        submission("stream", name="stream")


def test_secret_of_the_environment_is_refused_when_the_cluster_s_file_has_another(
    secrets: Path, set_settings: SetSettings
) -> None:
    set_settings(TIDEMARK_DATABASE_URL=URL.replace("127.0.0.1", "elsewhere"))
    with pytest.raises(
        UsageError, match=r"TIDEMARK_DATABASE_URL: differs from the file of TIDEMARK_SECRETS"
    ) as refused:
        submission("stream", name="stream")
    assert CANARY not in str(refused.value)


def test_secret_of_the_environment_is_unset_when_it_is_empty(set_settings: SetSettings) -> None:
    set_settings(TIDEMARK_REGISTRY_URL="")
    assert submission("stream", name="stream").mode == "cluster"


@pytest.mark.parametrize(
    ("line", "mode", "says"),
    [
        ("TIDEMARK_LAKE=file:///srv", 0o600, "TIDEMARK_LAKE is not a secret setting"),
        ("TIDEMARK_DATABASE_URL=mysql://a", 0o600, "TIDEMARK_DATABASE_URL: only PostgreSQL"),
        ("TIDEMARK_DATABASE_URL", 0o600, "not key=value"),
        (f"TIDEMARK_DATABASE_URL={URL}", 0o640, "TIDEMARK_SECRETS: .* is readable by others"),
    ],
)
def test_file_of_secrets_is_refused_when_it_is_open_or_holds_something_else(
    secrets: Path, line: str, mode: int, says: str
) -> None:
    secrets.write_text(line + "\n")
    secrets.chmod(mode)
    with pytest.raises(UsageError, match=says):
        settings()


def test_driver_stays_here_when_the_job_s_result_is_a_file() -> None:
    assert submission("publish", name="publish").mode == "cluster"
    job = submission("run_sql", name="sql")
    assert job.mode == "client"
    assert job.conf["spark.yarn.jars"].startswith("local:")
    assert job.env["HADOOP_CONF_DIR"] == str(yarn.configuration())


@pytest.mark.parametrize("job", ["stream", "run_sql"])
def test_driver_answers_only_its_own_executors_when_it_runs_with_yarn(job: str) -> None:
    """An executor is told the whole configuration, with the catalog's password."""
    conf = submission(job, name=job).conf
    assert conf["spark.authenticate"] == conf["spark.network.crypto.enabled"] == "true"


def test_cluster_mode_is_refused_when_the_master_is_not_yarn(set_settings: SetSettings) -> None:
    set_settings(TIDEMARK_SPARK_MASTER="spark://127.0.0.1:7077")
    with pytest.raises(UsageError, match=r"TIDEMARK_SPARK_DEPLOY_MODE=cluster.*TIDEMARK_SPARK_MASTER=yarn"):
        submission("stream", name="stream")


def test_resource_manager_is_found_when_the_configuration_names_it(
    on_yarn: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert yarn.resource_manager() == "http://rm.example.net:8088"
    site = on_yarn / "yarn-site.xml"
    site.write_text(SITE.format("yarn.resourcemanager.hostname", "rm2.example.net"))
    assert yarn.resource_manager() == "http://rm2.example.net:8088"
    for wrong in (
        SITE.format("yarn.resourcemanager.hostname", "${host}"),
        SITE.format("other", "1"),
        "<configuration>",
    ):
        site.write_text(wrong)
        with pytest.raises(UsageError, match=r"yarn-site\.xml"):
            yarn.resource_manager()
    monkeypatch.delenv("HADOOP_CONF_DIR")
    with pytest.raises(ServiceUnreachable, match=r"\./tidemark up yarn"):
        yarn.configuration()


@pytest.mark.parametrize(
    ("state", "final", "diagnostics", "code"),
    [
        ("RUNNING", "UNDEFINED", "", None),
        ("FINISHED", "SUCCEEDED", "", 0),
        ("FINISHED", "FAILED", "User application exited with status 64", 64),
        ("FINISHED", "FAILED", "User application exited with status 137", None),
        ("FAILED", "FAILED", "AM Container for appattempt_1 exited with  exitCode: 137", None),
        ("KILLED", "KILLED", "Application application_1_1 was killed by user root", None),
    ],
)
def test_exit_code_is_the_driver_s_own_only_when_it_ended_by_itself(
    state: str, final: str, diagnostics: str, code: int | None
) -> None:
    assert yarn.Application("application_1_1", state, final, diagnostics, "").own_exit_code == code


@pytest.mark.parametrize(
    ("code", "new", "last", "known"),
    [
        (0, [], [], 0),
        (2, ["tidemark: isp_hits: the checkpoint did not pass"], [], 2),
        (2, [], ["tidemark: isp_hits: the checkpoint did not pass"], 2),
        (2, [], [], 2),
        (2, [], ["python3: can't open file"], 1),
        (101, ["tidemark: isp_hits: validating"], [], 1),
    ],
    ids=["success", "said", "said at last", "log cannot be read", "never started", "not in the contract"],
)
def test_exit_code_of_an_application_is_1_when_its_driver_said_nothing_or_the_code_is_unknown(
    code: int, new: list[str], last: list[str], known: int
) -> None:
    ended = SimpleNamespace(has_ended=True, waits_for="", own_exit_code=code, end="")
    cluster: Any = SimpleNamespace(find=lambda _: ended, new_lines=lambda _: new, last_lines=lambda _: last)
    said: list[str] = []
    assert Followed(cluster, "application_1_1", DriverLines(), said.append).end() == known
    assert said == [*new, *(last if known == 1 else [])]


@pytest.mark.parametrize(
    ("state", "seconds", "diagnostics", "waits_for"),
    [
        ("ACCEPTED", 30, "[Sat Nov 28 20:00:00 +0000 2026] {}  Details : AM Partition = <DEFAULT_PARTITION> ; ", "{}"),
        ("ACCEPTED", 30, "", ""),
        # Any application waits as long.
        ("ACCEPTED", 2, "[Sat Nov 28 20:00:00 +0000 2026] {}  Details : ", ""),
        ("RUNNING", 30, "{}", ""),
    ],
)
def test_what_an_application_waits_for_is_told_once_when_yarn_has_no_room(
    state: str, seconds: float, diagnostics: str, waits_for: str
) -> None:
    reason = "Application is Activated, waiting for resources to be assigned for AM."
    waiting = yarn.Application("application_1_1", state, "UNDEFINED", diagnostics.format(reason), "", seconds=seconds)
    cluster: Any = SimpleNamespace(find=lambda _: waiting, new_lines=lambda _: [])
    said: list[str] = []
    followed = Followed(cluster, "application_1_1", DriverLines(), said.append)
    followed.look()
    followed.look()
    assert said == ([f"tidemark: application_1_1 waits: {waits_for.format(reason)}"] if waits_for else [])


def test_nothing_is_handed_over_when_the_resource_manager_does_not_answer(
    on_yarn: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`spark-submit` would try for a quarter of an hour."""
    printed: list[str] = []
    monkeypatch.setattr(cluster_run, "hand_over", lambda job: printed.pop())
    site = SITE.format("yarn.resourcemanager.webapp.address", f"127.0.0.1:{free_port()}")
    (on_yarn / "yarn-site.xml").write_text(site)
    job = submission("publish", name="publish")
    with pytest.raises(ServiceUnreachable, match="YARN's resource manager at"):
        cluster_run.run_on_cluster(job)
    # One that was handed over is named at once: it may wait, and this command may be killed.
    printed.append("INFO Client: Submitted application application_17_0003")
    monkeypatch.setattr(yarn, "_ask", lambda *_: {})
    cluster_run._follow(job, DriverLines())
    assert capsys.readouterr().err == "tidemark: handed over to the cluster: application_17_0003\n"


def test_end_says_that_the_node_was_lost_when_yarn_says_so_in_a_later_line() -> None:
    told = "Application failed 1 times due to AM Container exited with exitCode: -100"
    lost = f"{told}\nFailing this attempt.Diagnostics: Container released on a *lost* nodeFor more detailed output"
    ended = yarn.Application("application_1_1", "FAILED", "FAILED", lost, "")
    assert ended.end == f"application_1_1: failed, {told}: its node was lost"
    assert yarn.Application("application_1_1", "FAILED", "FAILED", told, "").end == f"application_1_1: failed, {told}"


def test_reason_is_named_when_yarn_refuses_a_submission() -> None:
    printed = "INFO Client: Submitted application application_17_0003\nINFO Client: tracking\n"
    assert yarn.submitted_id(printed) == "application_17_0003"
    with pytest.raises(TidemarkError, match="ConnectException: Connection refused"):
        yarn.submitted_id("INFO RetryInvocationHandler\njava.net.ConnectException: Connection refused\n")


@pytest.mark.parametrize(
    ("container", "application"),
    [
        ("container_1763980000000_0042_01_000001", "application_1763980000000_0042"),
        ("container_e17_1763980000000_0042_02_000003", "application_1763980000000_0042"),
        ("", ""),
        ("docker-51ac", ""),
    ],
)
def test_driver_knows_its_application_when_its_container_has_a_name(container: str, application: str) -> None:
    assert yarn.own_application({"CONTAINER_ID": container}) == application
    assert yarn.own_application({}) == ""


def test_log_is_told_once_to_be_unreadable_when_its_node_does_not_answer() -> None:
    node = f"127.0.0.1:{free_port()}"
    log = f"http://{node}/node/containerlogs/container_1_0001_01_000001/tidemark"
    application = yarn.Application("application_1_0001", "RUNNING", "UNDEFINED", "", log)
    assert yarn.read_log(application).unreadable == f"its node {node} does not answer"
    cluster = yarn.Yarn()
    told = [f"tidemark: the driver's log cannot be read: its node {node} does not answer"]
    assert cluster.new_lines(application) == told
    assert cluster.new_lines(application) == []


def test_line_is_left_out_when_what_is_read_of_a_driver_s_log_begins_within_it(on_yarn: Path) -> None:
    """It may begin within a secret, which then cannot be masked."""
    first, last = f"of-a-password {'.' * 65_530}\n", "tidemark: last\n"
    with ended_application(stdout=first + last, stderr="of-a-password " + "." * 4096) as address:
        (on_yarn / "yarn-site.xml").write_text(site_of(address))
        cluster = yarn.Yarn()
        application = cluster.find(APPLICATION)
        assert application is not None
        told = [f"tidemark: {len(first)} bytes of the driver's log are not shown here", "tidemark: last"]
        assert cluster.new_lines(application) == told
        assert cluster.new_lines(application) == []
        # An exit code is believed only of a driver that said something.
        assert cluster.last_lines(application) == ["… the end of a line of more than 4096 bytes is not shown"]
        assert yarn.read_log(application).lines == ["tidemark: last"]
