"""The embedded YARN: Hadoop's resource manager and two node managers, on loopback only.

It is the small cluster on which applications run in cluster deploy mode as they do on a large one. Its containers are
processes of this user; whoever can reach its ports can start programs as this user, so it is for your own machine only.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

import psutil

from include.services import process
from include.services.process import ServiceStatus
from include.settings import PAST_PROXY, settings
from include.spark.jars import classpath, ensure_fetched, java

HEAP = "256m"
"""Heap of the resource manager, and of each node manager."""

NODES = ("yarn-node-1", "yarn-node-2")
"""Each has a state file and a log of its own, by this name."""

NODE_MEMORY = 4096
"""MiB that a node manager gives to containers."""

_MAIN = "org.apache.hadoop.yarn.server."
_MANAGER_PORTS = ("web", "client", "scheduler", "tracker", "admin")
_NODE_PORTS = ("web", "containers", "localizer")

_LOGGING = """\
log4j.rootLogger=WARN,out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.target=System.err
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n
"""


def up() -> None:
    """Start resource manager and node managers on their last ports if free; fetch their jars first if needed.

    Raise ServiceUnreachable when the two nodes have not registered in 120 s.
    """
    ensure_fetched("yarn", lambda line: print(f"tidemark: {line}", file=sys.stderr, flush=True))
    down()
    ports = _ports("yarn", _MANAGER_PORTS)
    _write_configuration(ports)
    address = f"http://127.0.0.1:{ports['web']}"
    manager = process.start_detached("yarn", _command("resourcemanager.ResourceManager"))
    process.write_started("yarn", manager, address=address, configuration=str(configuration()), **ports)
    # A node manager that finds no resource manager gives up after some tries.
    process.wait_until("yarn", lambda: _nodes(address) is not None, manager, 120)
    for name in NODES:
        start_node(name)
    process.wait_until("yarn", lambda: _nodes(address) == len(NODES), manager, 120)


def start_node(name: str) -> psutil.Process:
    """Start one of the `NODES`, and return its process."""
    ports = _ports(name, _NODE_PORTS)
    own = {
        "yarn.nodemanager.address": f"127.0.0.1:{ports['containers']}",
        "yarn.nodemanager.localizer.address": f"127.0.0.1:{ports['localizer']}",
        "yarn.nodemanager.webapp.address": f"127.0.0.1:{ports['web']}",
        "yarn.nodemanager.local-dirs": str(_folder() / name / "local"),
        "yarn.nodemanager.log-dirs": str(_folder() / name / "logs"),
    }
    options = [part for key, value in own.items() for part in ("-D", f"{key}={value}")]
    # HADOOP_CONF_DIR of somebody else's cluster would be on the containers' class path.
    environment = {**os.environ, "HADOOP_CONF_DIR": str(configuration()), "YARN_CONF_DIR": str(configuration())}
    started = process.start_detached(name, _command("nodemanager.NodeManager", *options), environment)
    process.write_started(name, started, address=f"http://127.0.0.1:{ports['web']}", **ports)
    return started


def configuration() -> Path:
    """Return the folder with the client's configuration: what HADOOP_CONF_DIR names."""
    return _folder() / "conf"


def _folder() -> Path:
    return settings().home / "yarn"


def _ports(name: str, uses: tuple[str, ...]) -> dict[str, int]:
    state = process.read_state(name)
    return process.free_ports({use: state.get(use) for use in uses})


def _write_configuration(ports: dict[str, int]) -> None:
    manager = {
        "address": "client",
        "scheduler.address": "scheduler",
        "resource-tracker.address": "tracker",
        "admin.address": "admin",
        "webapp.address": "web",
    }
    yarn = {
        "yarn.resourcemanager.hostname": "127.0.0.1",
        "yarn.resourcemanager.bind-host": "127.0.0.1",
        **{f"yarn.resourcemanager.{key}": f"127.0.0.1:{ports[use]}" for key, use in manager.items()},
        "yarn.resourcemanager.am.max-attempts": "1",
        "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "500",
        # A node that was killed is lost after this time, not after ten minutes.
        "yarn.nm.liveness-monitor.expiry-interval-ms": "30000",
        "yarn.nodemanager.hostname": "127.0.0.1",
        "yarn.nodemanager.bind-host": "127.0.0.1",
        "yarn.nodemanager.resource.memory-mb": str(NODE_MEMORY),
        # The scheduler decides by memory alone; a machine of two cores still runs two applications.
        "yarn.nodemanager.resource.cpu-vcores": "8",
        "yarn.scheduler.minimum-allocation-mb": "128",
        "yarn.scheduler.maximum-allocation-mb": str(NODE_MEMORY),
        # Java reserves address space that it never uses.
        "yarn.nodemanager.vmem-check-enabled": "false",
        # A disk that is nearly full would make both nodes unhealthy; doctor reports the disk.
        "yarn.nodemanager.disk-health-checker.enable": "false",
        "yarn.nodemanager.log.retain-seconds": str(24 * 3600),
        "yarn.nodemanager.sleep-delay-before-sigkill.ms": "2000",
    }
    scheduler = {
        "yarn.scheduler.capacity.root.queues": "default",
        "yarn.scheduler.capacity.root.default.capacity": "100",
        "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
        # Containers go to both nodes, not all to the first that asks.
        "yarn.scheduler.capacity.per-node-heartbeat.multiple-assignments-enabled": "false",
    }
    core = {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(_folder() / "tmp")}
    configuration().mkdir(parents=True, exist_ok=True)
    for name, options in (("core-site", core), ("yarn-site", yarn), ("capacity-scheduler", scheduler)):
        (configuration() / f"{name}.xml").write_text(_xml(options))
    (configuration() / "log4j.properties").write_text(_LOGGING)


def _xml(options: dict[str, str]) -> str:
    lines = [
        f" <property><name>{escape(name)}</name><value>{escape(value)}</value></property>"
        for name, value in options.items()
    ]
    return "\n".join(["<configuration>", *lines, "</configuration>", ""])


def _command(main: str, *arguments: str) -> list[str]:
    options = ["-Xms64m", f"-Xmx{HEAP}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Duser.timezone=UTC"]
    # The folder with all jars, in place of 156 names: the processes' command lines stay readable.
    path = f"{configuration()}:{classpath('yarn')[0].parent}/*"
    # As an IPv6 socket that is mapped to IPv4, 127.0.0.1 has another name.
    return [java(), *options, "-Djava.net.preferIPv4Stack=true", "-cp", path, f"{_MAIN}{main}", *arguments]


def _nodes(address: str) -> int | None:
    """Return how many nodes are ready; None while the resource manager does not answer."""
    import httpx

    try:
        with httpx.Client(timeout=5, headers={"Accept": "application/json"}, mounts=PAST_PROXY) as client:
            answer = client.get(f"{address}/ws/v1/cluster/metrics")
        return int(answer.raise_for_status().json()["clusterMetrics"]["activeNodes"])
    except (httpx.HTTPError, ValueError, KeyError):
        return None


def status() -> ServiceStatus:
    """Return address of the resource manager and health: a healthy YARN has both of its nodes."""
    state = process.read_state("yarn")
    manager = process.running(state)
    nodes = _nodes(state["address"]) if manager is not None else None
    left = [each for each in (manager, *map(process.running, map(process.read_state, NODES))) if each is not None]
    detail = "" if not left else f"{nodes or 0} of {len(NODES)} nodes" if manager else "no resource manager"
    # If a cluster lost its resource manager, a process that is left to stop.
    left_over = [*left, *(containers() if state and not left else ())]
    pid = left_over[0].pid if left_over else None
    is_whole = len(left) == 1 + len(NODES)
    is_healthy = is_whole and nodes == len(NODES)
    is_broken = pid is not None and not is_whole
    return ServiceStatus(state.get("address", ""), is_healthy, pid, detail=detail, is_broken=is_broken)


def down() -> None:
    """Stop node managers, what is left of their containers, and the resource manager."""
    for name in NODES:
        _stop(name)
    for container in containers():
        container.kill()
    _stop("yarn")
    shutil.rmtree(_folder() / "tmp", ignore_errors=True)


def _stop(name: str) -> None:
    process.stop_service(name)
    if state := process.read_state(name):
        process.write_state(name, **{**state, "pid": None})


def containers() -> Iterator[psutil.Process]:
    """Yield processes that run in containers of these nodes; a node manager that is killed leaves them running."""
    folders = tuple(f"{_folder() / name / 'logs'}/" for name in NODES)
    for each in psutil.process_iter():
        try:
            if each.environ().get("LOG_DIRS", "").startswith(folders):
                yield each
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
