"""Applications on Kubernetes: Spark's options, and a driver's pod as a command follows it.

Requests go to the API server as the pod's service account, or through `kubectl proxy`, which needs none.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from include.errors import ServiceUnreachable, TidemarkError, UsageError
from include.settings import PAST_PROXY, Settings
from include.spark.driver_lines import first_error
from include.spark.jars import pyspark_home

if TYPE_CHECKING:
    import httpx

_SCHEME = "k8s://"
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Token and certificate of a pod's service account."""

CONTAINER = "spark-kubernetes-driver"
"""The driver's container in its pod."""

DRIVER_ACCOUNT, EXECUTOR_ACCOUNT = "tidemark-driver", "tidemark-executor"
"""Service accounts: a driver may create executors, an executor may do nothing."""

_BESIDE_THE_HEAP = "1g"
"""A driver's memory for classes, compiled code and Python. Spark's default of 40 % would get the pod killed."""

_SUBMITTED = re.compile(r"submission ID (?P<namespace>[a-z0-9-]+):(?P<pod>[a-z0-9.-]+)")
_SIGNAL = 128
_NOTHING_YET = ("ContainerCreating", "PodInitializing")


def is_master(master: str) -> bool:
    """Return whether a master's URL names Kubernetes."""
    return master.startswith(_SCHEME)


def options(current: Settings, jars: Sequence[Path]) -> dict[str, str]:
    """Return Spark's options of an application on Kubernetes: code, jars and Python are the image's.

    Raise UsageError without an image, or a template.
    """
    if not current.spark_image:
        raise UsageError(
            f"{current.spark_master} without an image",
            remedy="name the image of include/deploy/Dockerfile in your registry by TIDEMARK_SPARK_IMAGE",
        )
    templates = {role: current.pod_templates / f"{role}.yaml" for role in ("driver", "executor")}
    for path in templates.values():
        if not path.is_file():
            raise UsageError(f"TIDEMARK_POD_TEMPLATES: {path} is no file", remedy="copy the shipped one there")
    return {
        "spark.jars": ",".join(f"local://{jar}" for jar in jars),
        "spark.executor.instances": str(current.spark_executors),
        "spark.executor.memory": current.executor_memory,
        # A driver answers an executor with its whole configuration, the catalog's password included. With these, only
        # one that has the secret that Spark makes for each application.
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        "spark.kubernetes.namespace": current.spark_namespace,
        "spark.kubernetes.container.image": current.spark_image,
        "spark.kubernetes.authenticate.executor.serviceAccountName": EXECUTOR_ACCOUNT,
        "spark.kubernetes.executor.podTemplateFile": str(templates["executor"]),
        "spark.executorEnv.SPARK_HOME": str(pyspark_home()),
    }


def mode_options(current: Settings, mode: Literal["client", "cluster"]) -> dict[str, str]:
    """Return the options of a driver in a pod of its own, or of one that shares the pod of its command."""
    if mode == "cluster":
        return {
            "spark.kubernetes.driver.podTemplateFile": str(current.pod_templates / "driver.yaml"),
            "spark.kubernetes.authenticate.driver.serviceAccountName": DRIVER_ACCOUNT,
            "spark.driver.memoryOverhead": _BESIDE_THE_HEAP,
            # The pod is followed by its name: the process that submitted it need not live as long.
            "spark.kubernetes.submission.waitAppCompletion": "false",
        }
    # Executors belong to the driver's pod, and are removed with it.
    pod = os.environ.get("HOSTNAME") if _ACCOUNT.exists() else None
    return {"spark.kubernetes.driver.pod.name": pod} if pod else {}


@dataclass(frozen=True)
class DriverPod:
    """A driver's pod as the API server knows it."""

    id: str
    phase: str
    waits_for: str
    """Why it does not run yet, e.g. because its image is missing; empty once it runs."""
    exit_code: int | None
    reason: str
    """Why its container ended."""

    @property
    def has_ended(self) -> bool:
        """Whether no part of it runs any more."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a node, its image or its volumes."""
        return self.phase == "Pending"

    @property
    def own_exit_code(self) -> int | None:
        """The driver's exit code if it ended by itself; None if it runs, was killed or evicted."""
        if not self.has_ended or self.exit_code is None or self.exit_code >= _SIGNAL:
            return None
        # A pod that was evicted has failed, whatever its container says.
        return None if self.phase == "Failed" and self.exit_code == 0 else self.exit_code

    @property
    def end(self) -> str:
        """How it ended, in a line."""
        code = "" if self.exit_code is None else f", exit code {self.exit_code}"
        return f"{self.id}: {self.phase.lower()}{code}" + (f", {self.reason[:300]}" if self.reason else "")


def driver_pod(application: str, pod: Mapping[str, Any]) -> DriverPod:
    """Return the driver that the API server's answer describes."""
    status: Mapping[str, Any] = pod.get("status") or {}
    containers = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
    waiting = [state for each in containers if (state := each.get("state", {}).get("waiting"))]
    held_up = [state for state in waiting if state.get("reason") not in _NOTHING_YET]
    unscheduled = [each for each in status.get("conditions") or () if each.get("reason") == "Unschedulable"]
    ended: Mapping[str, Any] = next(
        (each["state"]["terminated"] for each in containers
         if each.get("name") == CONTAINER and "terminated" in each.get("state", {})), {}
    )  # fmt: skip
    code = ended.get("exitCode")
    told = [status.get("reason"), status.get("message"), ended.get("reason"), ended.get("message")]
    return DriverPod(
        id=application,
        phase=status.get("phase", "Pending"),
        waits_for=" ".join(_told(each) for each in (*held_up, *unscheduled)[:1]),
        exit_code=code if isinstance(code, int) else None,
        reason=" ".join(" ".join(str(each).split()) for each in told if each),
    )


def _told(state: Mapping[str, Any]) -> str:
    return " ".join(f"{state.get('reason', '')}: {state.get('message', '')}".split()).rstrip(": ")[:300]


class Kubernetes:
    """Kubernetes, for a command that follows one driver's pod."""

    forgets = "its pod was deleted"
    """Why a driver would be unknown."""

    def __init__(self, master: str) -> None:
        address = master.removeprefix(_SCHEME)
        self._address = (address if "://" in address else f"https://{address}").rstrip("/")
        self._last = ""
        """Time of the last line shown, as the API server wrote it."""

    def submitted_id(self, output: str) -> str:
        """Return namespace and pod that `spark-submit` printed. Raise TidemarkError when it printed none."""
        match = _SUBMITTED.search(output)
        if match is None:
            raise TidemarkError(
                f"spark-submit handed nothing over to Kubernetes: {first_error(output, 'it named no pod')}",
                remedy="run it in a pod of tidemark-submit; kubectl auth can-i create pods shows what it may do",
            )
        return f"{match['namespace']}:{match['pod']}"

    def find(self, application: str) -> DriverPod | None:
        """Return a driver's pod; None where it was deleted. Raise ServiceUnreachable."""
        answer = self._ask("GET", application)
        return None if answer is None else driver_pod(application, answer.json())

    def kill(self, application: str) -> None:
        """Delete a driver's pod, and with it its executors'. Raise ServiceUnreachable."""
        self._ask("DELETE", application)

    def new_lines(self, application: DriverPod) -> list[str]:
        """Return the driver's lines since the last call."""
        since = {"sinceTime": self._last} if self._last else {}
        lines = []
        for line in self._log(application, timestamps="true", **since):
            time, _, text = line.partition(" ")
            # The API server knows whole seconds only, and returns the same line again.
            if time > self._last:
                self._last = time
                lines.append(text)
        return lines

    def last_lines(self, application: DriverPod) -> list[str]:
        """Return the end of the driver's log."""
        return self._log(application, tailLines="40")

    def _log(self, application: DriverPod, **parameters: str) -> list[str]:
        try:
            answer = self._ask("GET", application.id, "/log", container=CONTAINER, **parameters)
        except ServiceUnreachable:
            # There is no log before the container has started, or while its node does not answer.
            return []
        return [] if answer is None else answer.content.decode(errors="replace").splitlines()

    def _ask(self, method: str, application: str, of: str = "", **parameters: str) -> httpx.Response | None:
        import httpx

        namespace, pod = application.split(":", 1)
        token = _ACCOUNT / "token"
        headers = {"Authorization": f"Bearer {token.read_text().strip()}"} if token.exists() else {}
        certificate = _ACCOUNT / "ca.crt"
        trusted = ssl.create_default_context(cafile=str(certificate) if certificate.exists() else None)
        url = f"{self._address}/api/v1/namespaces/{namespace}/pods/{pod}{of}"
        try:
            with httpx.Client(headers=headers, verify=trusted, timeout=10, mounts=PAST_PROXY) as client:
                answer = client.request(method, url, params=parameters)
            if answer.status_code == httpx.codes.NOT_FOUND:
                return None
            return answer.raise_for_status()
        except httpx.HTTPError as error:
            raise ServiceUnreachable(
                f"Kubernetes at {self._address}: {error or type(error).__name__}",
                remedy="run the command in a pod of tidemark-submit, or through kubectl proxy",
            ) from None
