"""Services of a compose file as processes: what an engine would give a container, by Linux's own namespaces.

Each service has its own network on one bridge, its own process tree, host name and root, and its limits of memory and
processes. Commands, environments, users, volumes, secrets, published ports, health checks and the order of start are
the parsed file's. Nothing is restarted by itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from tests.support.container_images import USERS, Image, Images
from tests.support.container_roots import FIRST_PROCESS, Root
from tests.support.published_ports import PublishedPorts

NETWORK = "10.231.77"
BRIDGE = "tidemark-test"
SECONDS = {"s": 1.0, "m": 60.0}

CONTROLLERS = {"memory": "memory.limit_in_bytes", "pids": "pids.max"}
"""Of the kernel's control groups, and the files that their limits are written to."""


def seconds(duration: str) -> float:
    """The seconds of a duration as Compose writes it, e.g. `1m30s`."""
    return sum(float(number) * SECONDS[unit] for number, unit in re.findall(r"([\d.]+)([sm])", duration))


def control_group(controller: str, name: str) -> Path:
    """The control group of a service's container."""
    return Path("/sys/fs/cgroup") / controller / f"{BRIDGE}-{name}"


@dataclass
class Composition:
    """The services of a parsed compose file, started in its order."""

    model: Mapping[str, Any]
    secrets: Mapping[str, str]
    """Variables of the `.env`."""
    folder: Path
    """Volumes, logs and containers; what is in it belongs to root."""
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    """Names of services in the order of their start."""
    ports: PublishedPorts = field(default_factory=PublishedPorts)

    def __post_init__(self) -> None:
        self.images = Images(self.folder)
        # One that shares the network of another has no address of its own.
        names = sorted(name for name, each in self.model["services"].items() if not each.get("network_mode"))
        self.addresses = {name: f"{NETWORK}.{number}" for number, name in enumerate(names, 10)}

    def volume(self, name: str) -> Path:
        """The folder of a named volume."""
        return self.folder / "volumes" / name

    def peak_memory(self, name: str) -> int:
        """The most bytes that a service's container has had, caches of files included."""
        return int((control_group("memory", name) / "memory.max_usage_in_bytes").read_text())

    def order(self, wanted: Sequence[str]) -> list[str]:
        """The wanted services and what they depend on, in an order that the file allows."""
        graph: dict[str, set[str]] = {}
        todo = list(wanted)
        while todo:
            name = todo.pop()
            if name not in graph:
                graph[name] = set(self.needs(name))
                todo += graph[name]
        return list(TopologicalSorter(graph).static_order())

    def needs(self, name: str) -> dict[str, str]:
        """Return a service's dependencies with their conditions, without optional ones that no profile starts."""
        declared = self.model["services"][name].get("depends_on") or {}
        return {other: each["condition"] for other, each in declared.items() if other in self.model["services"]}

    def up(self, *wanted: str) -> None:
        """Start services, each when what it depends on is as the file says."""
        self._network()
        for name in self.order(wanted):
            for other, condition in self.needs(name).items():
                self._wait(other, condition)
            self.start(name)

    def _wait(self, name: str, condition: str) -> None:
        if condition == "service_completed_successfully":
            code = self.running[name].wait(600)
            assert code == 0, f"{name} ended with {code}: {self.log(name)[-3000:]}"
        elif condition == "service_healthy":
            self.wait_until_healthy(name)

    def wait_until_healthy(self, name: str) -> None:
        """Run the service's own check until it passes, with more patience than the file's: this machine is shared."""
        check = self.model["services"][name]["healthcheck"]
        deadline = time.monotonic() + 300 + 10 * seconds(check["start_period"])
        while True:
            done = self.run(name, check["test"][1:], timeout=120)
            if done.returncode == 0:
                return
            assert self.running[name].poll() is None, f"{name} ended: {self.log(name)[-3000:]}"
            assert time.monotonic() < deadline, f"{name}: {done.stdout}{done.stderr}\n{self.log(name)[-3000:]}"
            time.sleep(min(3.0, seconds(check["interval"])))

    def log(self, name: str) -> str:
        """Return a service's output."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def run(self, name: str, command: Sequence[str], timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """Run a command in a service's container, as `docker compose exec` does; in a new one if it has ended."""
        if first := self._first_process(name):
            enter = ["nsenter", "--target", str(first), "--mount", "--uts", "--net", "--pid"]
            change = f"{self._limited(name)}\n{self._changed_root(name)}"
            inside = [*enter, "bash", "-ec", change, "inside", *self._as_user(name), *command]
        else:
            inside = self._inside(name, command)
        return subprocess.run(inside, env=self._environment(name), capture_output=True, text=True, timeout=timeout)

    def _first_process(self, name: str) -> int | None:
        """The process that a container ends with; None for one that does not run."""
        outside = self.running.get(name)
        while outside is not None and outside.poll() is None:
            with contextlib.suppress(FileNotFoundError):
                if found := Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split():
                    return int(found[0])
            time.sleep(0.05)
        return None

    def start(self, name: str) -> None:
        """Start a service, or start it again, with what its container has."""
        service = self.model["services"][name]
        command = [*self._image(name).entrypoint, *[part.replace("$$", "$") for part in service.get("command") or ()]]
        first = [FIRST_PROCESS, "--"] if service.get("init") else []
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                self._inside(name, [*first, *command]), env=self._environment(name), stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.started.append(name)

    def _image(self, name: str) -> Image:
        return self.images.of(self.model["services"][name]["image"])

    def _environment(self, name: str) -> dict[str, str]:
        given = self.model["services"][name].get("environment") or {}
        return {**self._image(name).environment, **{key: value for key, value in given.items() if value is not None}}

    def _as_user(self, name: str) -> list[str]:
        service = self.model["services"][name]
        given = (service.get("user") or "").split(":")[0]
        user = str(USERS.get(given, given) or self._image(name).user)
        drop = ["--bounding-set", "-all", "--inh-caps", "-all"] if service["cap_drop"] == ["ALL"] else []
        assert service["security_opt"] == ["no-new-privileges:true"]
        return ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", *drop, "--no-new-privs"]

    def _inside(self, name: str, command: Sequence[str]) -> list[str]:
        service = self.model["services"][name]
        root = self._root(name)
        given = {Path(each["target"]).name: self._secret(each["source"]) for each in service.get("secrets") or ()}
        root.make(given, {"localhost": "127.0.0.1", **self.addresses})
        lines = [self._limited(name), *root.mount_commands(), f"hostname {service.get('hostname', name)}"]
        script = "\n".join(["umask 022", *lines, self._changed_root(name)])
        space = (service.get("network_mode") or f"service:{name}").removeprefix("service:")
        return [
            "nsenter", f"--net=/run/netns/{BRIDGE}-{space}",
            "unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--propagation", "private",
            "bash", "-ec", script, "inside", *self._as_user(name), *command,
        ]  # fmt: skip

    def _root(self, name: str) -> Root:
        layer = self.folder / "containers" / name
        service, volumes = self.model["services"][name], self.folder / "volumes"
        return Root(service, self._image(name), layer, volumes, self.images.first_process)

    def _secret(self, name: str) -> str:
        return self.secrets[self.model["secrets"][name]["environment"]]

    def _changed_root(self, name: str) -> str:
        """The command that goes on with the script's arguments inside of the container's root."""
        there = shlex.quote(f'cd {self._image(name).work_folder}; exec "$@"')
        return f'exec chroot {shlex.quote(str(self._root(name).path))} bash -c {there} inside "$@"'

    def _limited(self, name: str) -> str:
        """The command by which a shell, and what it starts, goes below the service's limits of memory and processes."""
        declared, lines = self.model["services"][name]["deploy"]["resources"]["limits"], []
        for controller, file in CONTROLLERS.items():
            group = control_group(controller, name)
            group.mkdir(exist_ok=True)
            (group / file).write_text(str(declared[controller]))
            lines.append(f"echo 0 > {group}/cgroup.procs")
        return "; ".join(lines)

    def _network(self) -> None:
        def ip(*arguments: str) -> None:
            subprocess.run(["ip", *arguments], check=True, capture_output=True)

        ip("link", "add", BRIDGE, "type", "bridge")
        ip("addr", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        for number, (name, address) in enumerate(self.addresses.items()):
            space = f"{BRIDGE}-{name}"
            ip("netns", "add", space)
            ip("link", "add", f"tmt{number}", "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", f"tmt{number}", "master", BRIDGE, "up")
            ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            ip("-n", space, "link", "set", "lo", "up")
        for name, address in self.addresses.items():
            for port in self.model["services"][name].get("ports") or ():
                self.ports.publish(port["host_ip"], int(port["published"]), (address, int(port["target"])))

    def stop(self, name: str) -> int:
        """Stop a service as an engine does, by SIGTERM to its first process, and return its exit code.

        It has more time than the file says: this machine is shared.
        """
        self._signal(name, signal.SIGTERM)
        grace = seconds(self.model["services"][name].get("stop_grace_period") or "10s")
        try:
            return self.running[name].wait(60 + grace)
        except subprocess.TimeoutExpired:
            self._signal(name, signal.SIGKILL)
            return self.running[name].wait(60)
        finally:
            del self.running[name]

    def kill(self, name: str) -> None:
        """End a service at once, as a machine that fails does."""
        self._signal(name, signal.SIGKILL)
        self.running.pop(name).wait(60)

    def _signal(self, name: str, number: signal.Signals) -> None:
        first = self._first_process(name)
        if first is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, number)

    def down(self) -> None:
        """End what still runs, the last one first, and remove the networks."""
        for name in reversed(list(self.running)):
            self.kill(name)
        self.ports.close()
        for controller in CONTROLLERS:
            for name in self.model["services"]:
                with contextlib.suppress(OSError):
                    control_group(controller, name).rmdir()
        for name in self.addresses:
            subprocess.run(["ip", "netns", "del", f"{BRIDGE}-{name}"], capture_output=True)
        subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True)
