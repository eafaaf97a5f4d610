"""Tidemark's web pages inside Airflow: below `/tidemark/`, and in the navigation."""

from __future__ import annotations

from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin

from include.airflow.visitors import AirflowRights
from include.monitor.web.app import monitor_app

PREFIX = "/tidemark"


class TidemarkPages(AirflowPlugin):
    """The application and its entry in the navigation."""

    name = "tidemark_pages"
    fastapi_apps: ClassVar[list[Any]] = [
        {"app": monitor_app(AirflowRights()), "url_prefix": PREFIX, "name": "Tidemark"}
    ]
    external_views: ClassVar[list[Any]] = [
        {
            "name": "Tidemark",
            "href": f"{PREFIX}/",
            "destination": "nav",
            "url_route": "tidemark-pages",
            "icon": f"{PREFIX}/static/icon.svg",
        }
    ]
