"""A small client of Airflow's REST API."""

from __future__ import annotations

from typing import Any

import httpx

from include.errors import ServiceUnreachable, TidemarkError
from include.settings import PAST_PROXY


class AirflowApi:
    """Airflow at an address, as a user of its simple auth manager."""

    def __init__(self, address: str, user: str, password: str) -> None:
        self.address = address
        self._client = httpx.Client(base_url=address, timeout=30, mounts=PAST_PROXY)
        token = self._call("POST", "/auth/token", json={"username": user, "password": password})
        self._client.headers["Authorization"] = f"Bearer {token['access_token']}"

    def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            response = self._client.request(method, path, **options)
            response.raise_for_status()
        except httpx.HTTPStatusError as error:
            raise TidemarkError(f"Airflow refused {method} {path}: {error.response.text[:300]}") from None
        except httpx.HTTPError as error:
            raise ServiceUnreachable(f"Airflow at {self.address}: {error}", remedy="./tidemark up airflow") from None
        answer: dict[str, Any] = response.json()
        return answer

    def import_errors(self) -> list[dict[str, Any]]:
        """Return the DAG files that could not be read."""
        return list(self._call("GET", "/api/v2/importErrors")["import_errors"])

    def dag_ids(self) -> set[str]:
        """Return the ids of the DAGs that Airflow knows."""
        return {dag["dag_id"] for dag in self._call("GET", "/api/v2/dags", params={"limit": 100})["dags"]}

    def set_paused(self, dag: str, paused: bool) -> None:
        """Pause or unpause a DAG."""
        self._call("PATCH", f"/api/v2/dags/{dag}", json={"is_paused": paused})

    def runs(self, dag: str) -> list[dict[str, Any]]:
        """Return the DAG's runs, newest first."""
        parameters = {"limit": 100, "order_by": "-run_after"}
        return list(self._call("GET", f"/api/v2/dags/{dag}/dagRuns", params=parameters)["dag_runs"])

    def trigger(self, dag: str, **conf: Any) -> str:
        """Trigger a run and return its id."""
        body: dict[str, Any] = {"logical_date": None, "conf": conf}
        return str(self._call("POST", f"/api/v2/dags/{dag}/dagRuns", json=body)["dag_run_id"])

    def tasks(self, dag: str, run: str) -> dict[str, str]:
        """Return the state of each task of a run."""
        instances = self._call("GET", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        return {each["task_id"]: each["state"] for each in instances}
