"""Tidemark's web pages inside Airflow: below `/tidemark/`, and in the navigation."""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin

PREFIX = "/tidemark"


@cache
def _app() -> Any:
    from include.airflow.visitors import AirflowRights
    from include.monitor.web.app import monitor_app

    return monitor_app(AirflowRights())


async def pages(scope: Any, receive: Any, send: Any) -> None:
    """Answer by the application, which the first request creates: all of Airflow imports this, one process serves."""
    await _app()(scope, receive, send)


class TidemarkPages(AirflowPlugin):
    """The application and its entry in the navigation."""

    name = "tidemark_pages"
    fastapi_apps: ClassVar[list[Any]] = [{"app": pages, "url_prefix": PREFIX, "name": "Tidemark"}]
    external_views: ClassVar[list[Any]] = [
        {
            "name": "Tidemark",
            "href": f"{PREFIX}/",
            "destination": "nav",
            "url_route": "tidemark-pages",
            "icon": f"{PREFIX}/static/icon.svg",
        }
    ]
