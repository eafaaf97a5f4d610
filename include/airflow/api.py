"""A small client of Airflow's REST API, for `demo` and the tests."""

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

    def is_paused(self, dag: str) -> bool:
        """Return whether a DAG is paused, by a person or by Airflow."""
        return bool(self._call("GET", f"/api/v2/dags/{dag}")["is_paused"])

    def runs(self, dag: str) -> list[dict[str, Any]]:
        """Return the DAG's runs, newest first."""
        parameters = {"limit": 100, "order_by": "-run_after"}
        return list(self._call("GET", f"/api/v2/dags/{dag}/dagRuns", params=parameters)["dag_runs"])

    def trigger(self, dag: str, **conf: Any) -> str:
        """Trigger a run and return its id."""
        body: dict[str, Any] = {"logical_date": None, "conf": conf}
        return str(self._call("POST", f"/api/v2/dags/{dag}/dagRuns", json=body)["dag_run_id"])

    def backfill(
        self,
        dag: str,
        from_date: str,
        to_date: str,
        *,
        again: bool = False,
        max_active_runs: int = 1,
        run_backwards: bool = False,
    ) -> int:
        """Create a backfill over the data intervals that begin in `[from_date, to_date]` and return its id."""
        body: dict[str, Any] = {
            "dag_id": dag,
            "from_date": from_date,
            "to_date": to_date,
            "reprocess_behavior": "completed" if again else "none",
            "max_active_runs": max_active_runs,
            "run_backwards": run_backwards,
            "dag_run_conf": {},
        }
        return int(self._call("POST", "/api/v2/backfills", json=body)["id"])

    def backfill_ended(self, backfill: int) -> bool:
        """Return whether Airflow has closed the backfill, some time after its last run; it refuses another before."""
        return self._call("GET", f"/api/v2/backfills/{backfill}")["completed_at"] is not None

    def tasks(self, dag: str, run: str) -> dict[str, str]:
        """Return the state of each task of a run."""
        instances = self._call("GET", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        return {each["task_id"]: each["state"] for each in instances}

    def log(self, dag: str, run: str, task: str, try_number: int = 1) -> str:
        """Return the log of a try of a task, a line per event, those of its trigger included."""
        path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}/logs/{try_number}"
        content = self._call("GET", path, params={"full_content": True}, headers={"Accept": "application/json"})
        return "\n".join(str(each["event"] if isinstance(each, dict) else each) for each in content["content"])

    def answer(self, dag: str, run: str, task: str, option: str, **fields: Any) -> None:
        """Answer what a task that awaits input has asked."""
        path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}/-1/hitlDetails"
        self._call("PATCH", path, json={"chosen_options": [option], "params_input": fields})

    def asset_events(self, run: str) -> list[dict[str, Any]]:
        """Return the asset events of a run's tasks, newest first: name, partition_key, extra and more."""
        parameters: dict[str, Any] = {"source_run_id": run, "order_by": "-timestamp", "limit": 100}
        return list(self._call("GET", "/api/v2/assets/events", params=parameters)["asset_events"])

    def emit(self, asset_id: int, partition_key: str) -> None:
        """Emit a keyed event of an asset."""
        self._call("POST", "/api/v2/assets/events", json={"asset_id": asset_id, "partition_key": partition_key})

    def clear(self, dag: str, run: str, task: str, *, downstream: bool = True) -> None:
        """Clear a task of an ended run, so that it runs again, with `downstream` also the tasks that follow it."""
        body: dict[str, Any] = {
            "dry_run": False,
            "dag_run_id": run,
            "task_ids": [task],
            "only_failed": False,
            "include_downstream": downstream,
        }
        self._call("POST", f"/api/v2/dags/{dag}/clearTaskInstances", json=body)

    def fail_run(self, dag: str, run: str) -> None:
        """Mark a run as failed, which ends its tasks."""
        self._call("PATCH", f"/api/v2/dags/{dag}/dagRuns/{run}", json={"state": "failed"})
