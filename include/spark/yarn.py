"""Applications on YARN: where the cluster is, an application's state, its driver's log and its end.

All of it comes from the REST interfaces of the resource manager and of the driver's node, without Kerberos.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit
from xml.etree import ElementTree

from include.errors import ServiceUnreachable, TidemarkError, UsageError
from include.settings import PAST_PROXY, settings
from include.spark.driver_lines import first_error, whole_new_lines, without_first_line

CLUSTER_OPTIONS = {
    # A dead driver ends the command, which reports it; YARN would start another one unseen.
    "spark.yarn.maxAppAttempts": "1",
    # The application is followed by its id: the process that submitted it need not live as long.
    "spark.yarn.submit.waitAppCompletion": "false",
}
"""Spark's options of an application whose driver runs on the cluster."""

_ENDED = ("FINISHED", "FAILED", "KILLED")
_WAITING = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED")
_USUAL = 10.0
"""Seconds that an application may wait for its driver's container where there is room for it."""
_AT = re.compile(r"^\[[^]]*\] ")
"""When YARN has looked last at what an application waits for."""
_OWN_CODE = re.compile(r"User application exited with status (\d+)")
"""What Spark's application master reports to YARN about a driver that ended by itself."""
_LOST_NODE = "Container released on a *lost* node"
"""What YARN reports of a driver whose node it has lost."""
_SUBMITTED = re.compile(r"\bapplication_\d+_\d+\b")

_CONTAINER = re.compile(r"container_(?:e\d+_)?(\d+_\d+)_\d+_\d+")
"""Name of a container; YARN passes it to the processes in the container."""

_LOG_HEAD = re.compile(rb"LogLength:(\d+)\s*\nLogContents:\n")

DriverFile = Literal["stdout", "stderr"]
"""The driver's Python writes to `stdout`; its JVM logs to `stderr`."""


@dataclass(frozen=True)
class Application:
    """An application as the resource manager knows it."""

    id: str
    state: str
    final_status: str
    diagnostics: str
    log: str
    """URL of the logs of its driver's container; empty before that started."""
    launched_at: datetime | None = None
    """When its driver's container was launched, by the resource manager's clock; None before."""
    seconds: float = 0.0
    """How long ago it was submitted."""

    @property
    def has_ended(self) -> bool:
        """Whether no part of it runs any more."""
        return self.state in _ENDED

    @property
    def is_waiting(self) -> bool:
        """Whether the cluster has no room for its driver yet."""
        return self.state in _WAITING

    @property
    def waits_for(self) -> str:
        """What it has waited for longer than usual, as YARN words it; empty once its driver's container is launched."""
        if not self.is_waiting or self.launched_at is not None or self.seconds < _USUAL:
            return ""
        first = next(iter(self.diagnostics.splitlines()), "")
        # Time and figures change with each heartbeat of a node.
        return _AT.sub("", first).partition(" Details :")[0].strip()[:300]

    @property
    def own_exit_code(self) -> int | None:
        """The driver's exit code if it ended by itself; None if it runs, was killed, or died."""
        if not self.has_ended:
            return None
        if self.final_status == "SUCCEEDED":
            return 0
        return told_exit_code(self.diagnostics)

    @property
    def end(self) -> str:
        """How it ended, in a line."""
        told = next((line.strip() for line in self.diagnostics.splitlines() if line.strip()), "")
        lost = ": its node was lost" if _LOST_NODE in self.diagnostics else ""
        return f"{self.id}: {self.state.lower()}" + (f", {told[:300]}" if told else "") + lost


def told_exit_code(diagnostics: str) -> int | None:
    """Return the exit code of a driver that ended by itself, from YARN's diagnostics; None when they have none."""
    told = _OWN_CODE.search(diagnostics)
    # Above that, a signal killed the driver's Python.
    return int(told[1]) if told and int(told[1]) < 128 else None


def configuration() -> Path:
    """Return the folder of Hadoop's configuration: YARN_CONF_DIR, HADOOP_CONF_DIR, else the embedded YARN's.

    Raise ServiceUnreachable when there is none.
    """
    given = os.environ.get("YARN_CONF_DIR") or os.environ.get("HADOOP_CONF_DIR")
    if given:
        return Path(given)
    if is_embedded():
        settings().check_not_copied("yarn")
        return Path(settings().service_state("yarn")["configuration"])
    raise ServiceUnreachable(
        f"the embedded yarn was never started in {settings().home}",
        remedy="./tidemark up yarn; or name the folder of your cluster's configuration by HADOOP_CONF_DIR",
    )


def is_embedded() -> bool:
    """Return whether applications go to the embedded YARN."""
    named = os.environ.get("YARN_CONF_DIR") or os.environ.get("HADOOP_CONF_DIR")
    embedded = settings().service_state("yarn").get("configuration")
    return bool(embedded) and named in (None, "", embedded)


def resource_manager() -> str:
    """Return the URL of the resource manager's REST interface.

    Raise UsageError when the configuration does not name it, and the errors of `configuration`.
    """
    file = configuration() / "yarn-site.xml"
    try:
        root = ElementTree.parse(file).getroot()  # noqa: S314 (the operator's own configuration)
    except (OSError, ElementTree.ParseError) as error:
        raise UsageError(f"{file}: {error}", remedy="name the folder with yarn-site.xml by HADOOP_CONF_DIR") from None
    options = {each.findtext("name", ""): each.findtext("value", "").strip() for each in root.iter("property")}
    address = options.get("yarn.resourcemanager.webapp.address", "")
    if not address and (host := options.get("yarn.resourcemanager.hostname")):
        address = f"{host}:8088"
    if not address or "$" in address:
        raise UsageError(
            f"{file} does not name the resource manager's address",
            remedy="set yarn.resourcemanager.webapp.address, host:port, there",
        )
    return f"http://{address}"


def submitted_id(output: str) -> str:
    """Return the application's id that `spark-submit` printed. Raise TidemarkError when it printed none."""
    match = _SUBMITTED.search(output)
    if match is None:
        raise TidemarkError(
            f"spark-submit handed nothing over to YARN: {first_error(output, 'it named no application')}",
            remedy="./tidemark status shows whether YARN runs; its page shows what it has room for",
        )
    return match[0]


def own_application(environment: Mapping[str, str]) -> str:
    """Return the id of the application whose container this process runs in; empty outside of YARN."""
    named = _CONTAINER.fullmatch(environment.get("CONTAINER_ID", ""))
    return f"application_{named[1]}" if named else ""


def page_of(manager: str, application: str) -> str:
    """Return the URL of an application's page, which leads to its logs."""
    return f"{manager}/cluster/app/{application}"


def find(manager: str, application: str) -> Application | None:
    """Return an application; None where the resource manager does not know it. Raise ServiceUnreachable."""
    answer = _ask("GET", manager, f"/ws/v1/cluster/apps/{application}")
    if answer is None:
        return None
    app = answer["app"]
    return Application(
        id=app["id"],
        state=app["state"],
        final_status=app["finalStatus"],
        diagnostics=app.get("diagnostics") or "",
        log=app.get("amContainerLogs") or "",
        launched_at=datetime.fromtimestamp(app["launchTime"] / 1000, UTC) if app.get("launchTime") else None,
        seconds=app.get("elapsedTime", 0) / 1000,
    )


def kill(manager: str, application: str) -> None:
    """Ask the resource manager to kill an application; without effect on one that ended. Raise ServiceUnreachable."""
    _ask("PUT", manager, f"/ws/v1/cluster/apps/{application}/state", {"state": "KILLED"})


def _ask(method: str, manager: str, path: str, body: dict[str, str] | None = None) -> Any:
    import httpx

    try:
        with httpx.Client(timeout=10, headers={"Accept": "application/json"}, mounts=PAST_PROXY) as client:
            answer = client.request(method, f"{manager}{path}", json=body)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        return answer.raise_for_status().json()
    except (httpx.HTTPError, ValueError) as error:
        raise ServiceUnreachable(
            f"YARN's resource manager at {manager}: {error or type(error).__name__}", remedy="./tidemark status"
        ) from None


@dataclass(frozen=True)
class LogEnd:
    """The end of a driver's log."""

    begin: int = 0
    """Where in the log it begins."""
    content: bytes = b""
    unreadable: str = ""
    """Why nobody can read it now; empty for one that was read, or that does not exist."""

    @property
    def lines(self) -> list[str]:
        """Its whole lines."""
        whole = without_first_line(self.content) if self.begin else self.content
        return whole.decode(errors="replace").splitlines()


def read_log(application: Application, file: DriverFile = "stdout", last: int = 65_536) -> LogEnd:
    """Return the `last` bytes of a driver's log; nothing when its node has none yet, or does not answer."""
    import httpx

    if not application.log:
        return LogEnd()
    parts = urlsplit(application.log)
    # .../node/containerlogs/CONTAINER/USER
    container = parts.path.rstrip("/").split("/")[-2]
    url = f"{parts.scheme}://{parts.netloc}/ws/v1/node/containers/{container}/logs/{file}"
    try:
        with httpx.Client(timeout=10, mounts=PAST_PROXY) as client:
            answer = client.get(url, params={"size": -last})
    except httpx.HTTPError:
        return LogEnd(unreadable=f"its node {parts.netloc} does not answer")
    # The node sends the log's length before its content, and a line of its own after it.
    head = _LOG_HEAD.search(answer.content)
    if answer.status_code != httpx.codes.OK or head is None:
        return LogEnd()
    length = int(head[1])
    shown = min(last, length)
    return LogEnd(length - shown, answer.content[head.end() : head.end() + shown])


class Yarn:
    """YARN, for a command that follows one application."""

    forgets = "its resource manager was restarted"
    """Why an application would be unknown."""

    def __init__(self) -> None:
        self._manager = resource_manager()
        self._shown = 0
        self._unreadable = ""

    def check_answers(self) -> None:
        """Raise ServiceUnreachable when it does not answer: `spark-submit` would try for 15 minutes, without a line."""
        _ask("GET", self._manager, "/ws/v1/cluster/info")

    def submitted_id(self, output: str) -> str:
        """Return the application's id that `spark-submit` printed. Raise TidemarkError when it printed none."""
        return submitted_id(output)

    def find(self, application: str) -> Application | None:
        """Return an application; None where the resource manager does not know it. Raise ServiceUnreachable."""
        return find(self._manager, application)

    def kill(self, application: str) -> None:
        """Ask to kill an application. Raise ServiceUnreachable."""
        kill(self._manager, application)

    def new_lines(self, application: Application) -> list[str]:
        """Return the driver's lines since the last call.

        A line of its own reports what was too much to read, or that the log cannot be read any more.
        """
        log = read_log(application)
        before, self._unreadable = self._unreadable, log.unreadable
        if log.unreadable:
            return [] if before else [f"tidemark: the driver's log cannot be read: {log.unreadable}"]
        new, end = whole_new_lines(log.content, log.begin, self._shown)
        missing, self._shown = end - len(new) - self._shown, end
        lines = new.decode(errors="replace").splitlines()
        return [f"tidemark: {missing} bytes of the driver's log are not shown here", *lines] if missing > 0 else lines

    def last_lines(self, application: Application) -> list[str]:
        """Return the end of the log of the driver's JVM."""
        return read_log(application, "stderr", last=4096).lines
