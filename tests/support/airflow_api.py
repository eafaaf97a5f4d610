"""Airflow's REST API, with what only tests ask of it."""

from __future__ import annotations

from typing import Any

from include.airflow import api


class AirflowApi(api.AirflowApi):
    """Airflow at an address: backfills, logs, answers, asset events, and runs that are cleared or failed."""

    def is_paused(self, dag: str) -> bool:
        """Return whether a DAG is paused, by a person or by Airflow."""
        return bool(self._call("GET", f"/api/v2/dags/{dag}")["is_paused"])

    def watched_run(self, dag: str) -> str | None:
        """Return the running run with a task that a triggerer has taken up; before that, to end it ends no driver."""
        for run in [each["dag_run_id"] for each in self.runs(dag) if each["state"] == "running"]:
            instances = self._call("GET", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
            if any(each["trigger"] and each["trigger"]["triggerer_id"] is not None for each in instances):
                return str(run)
        return None

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
