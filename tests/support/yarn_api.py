"""Answers as YARN's resource manager and a node do: one application that has ended, and its driver's logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.json_server import answering

APPLICATION = "application_1_0001"


@contextmanager
def ended_application(*, diagnostics: str = "", stdout: str = "", stderr: str = "") -> Iterator[str]:
    """Serve an application whose driver failed, and yield the address of its resource manager."""
    logs = {"stdout": stdout.encode(), "stderr": stderr.encode()}

    def answer(_: str, path: str, __: dict[str, Any]) -> tuple[int, object]:
        url = urlsplit(path)
        if not url.query:
            app = {"id": APPLICATION, "state": "FINISHED", "finalStatus": "FAILED", "diagnostics": diagnostics}
            return 200, {"app": app | {"amContainerLogs": f"{address}/node/containerlogs/container_1/tidemark"}}
        log = logs[url.path.rpartition("/")[2]]
        last = log[int(parse_qs(url.query)["size"][0]) :]
        return 200, b"LogLength:%d\nLogContents:\n%b\nEnd of LogType\n" % (len(log), last)

    with answering(answer) as address:
        yield address


def site_of(address: str) -> str:
    """Return the `yarn-site.xml` of a resource manager at an address."""
    name, host = "yarn.resourcemanager.webapp.address", urlsplit(address).netloc
    return f"<configuration><property><name>{name}</name><value>{host}</value></property></configuration>"
