"""Visitors of the web pages inside Airflow: Airflow knows who they are, and its auth manager what they may do.

Airflow itself does not guard an application that a plugin mounts, so each request is checked here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import bearer_scheme, get_user
from fastapi import HTTPException, Request

from include.monitor.web.rights import NotKnown, Visitor


@dataclass(frozen=True)
class AirflowVisitor:
    """A user of Airflow."""

    user: Any
    _answers: dict[tuple[str, str], bool] = field(default_factory=dict, compare=False, repr=False)
    """The auth manager's answers in this request: it may be asked over a network."""

    @property
    def name(self) -> str:
        """The user's name in Airflow."""
        return f"airflow:{self.user.get_name()}"

    def may_read(self, pipeline: str) -> bool:
        """Return whether the user may read the pipeline's DAG."""
        return self._ask("GET", pipeline, None)

    def may_act(self, pipeline: str) -> bool:
        """Return whether the user may start a run of the pipeline's DAG."""
        return self._ask("POST", pipeline, DagAccessEntity.RUN)

    def _ask(self, method: Any, pipeline: str, entity: Any) -> bool:
        if (method, pipeline) not in self._answers:
            self._answers[method, pipeline] = get_auth_manager().is_authorized_dag(
                method=method, access_entity=entity, details=DagDetails(id=f"interval__{pipeline}"), user=self.user
            )
        return self._answers[method, pipeline]


class AirflowRights:
    """Who is logged in to Airflow, by its session cookie or a token in the header."""

    async def visitor(self, request: Request) -> Visitor:
        """Return the user of the request. Raise NotKnown."""
        try:
            user = await get_user(request, None, await bearer_scheme(request))
        except HTTPException as error:
            raise NotKnown(get_auth_manager().get_url_login(next_url=str(request.url))) from error
        return AirflowVisitor(user)
