"""A client of a Confluent-compatible schema registry: subjects, versions, and schemas by id.

Source: the registry's REST interface, https://docs.confluent.io/platform/current/schema-registry/develop/api.html.
Only the configured host is contacted: redirects and references to other schemas are not followed.
Why this is not Confluent's client: `include/decisions/009-schema-registry-client.md`.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
from sqlalchemy.engine import URL, make_url

from include.errors import AnswerTooLong, ServiceUnreachable, UsageError
from include.settings import PAST_PROXY, settings

TIMEOUT = 10.0
"""Seconds until a registry that does not answer counts as unreachable."""

MAX_ANSWER = 1_048_576
"""How many bytes of an answer are read at most."""

_SCHEMA_NOT_FOUND = 40403
_SUBJECT_NOT_FOUND = 40401
_VERSION_NOT_FOUND = 40402
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema as the registry keeps it."""

    schema: str
    kind: str = "AVRO"
    references: int = 0
    """How many other schemas it refers to."""


class SchemaRegistry:
    """A registry at its address, which may carry `user:password@` for basic authentication."""

    def __init__(self, address: str) -> None:
        url = make_url(address)
        self.address = without_user(url).rstrip("/")
        """Without user and password."""
        auth = (url.username, str(url.password or "")) if url.username else None
        headers = {"Accept": f"{_MEDIA_TYPE}, application/json"}
        # The machine's authorities, to which an organisation adds its own; httpx has a list of others.
        trusted = ssl.create_default_context()
        self._client = httpx.Client(
            auth=auth, timeout=TIMEOUT, follow_redirects=False, headers=headers, mounts=PAST_PROXY, verify=trusted
        )

    def subjects(self) -> list[str]:
        """Return all subjects. Raises ServiceUnreachable."""
        return list(self._ask("GET", "/subjects"))

    def versions(self, subject: str) -> list[int]:
        """Return the version numbers of a subject; none for an unknown one. Raises ServiceUnreachable."""
        numbers = self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions", missing=(_SUBJECT_NOT_FOUND,))
        return list(numbers or [])

    def version(self, subject: str, version: int) -> tuple[int, RegisteredSchema] | None:
        """Return the schema of a subject's version, with its id; None when it was deleted.

        Raises ServiceUnreachable, AnswerTooLong.
        """
        path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
        answer = self._ask("GET", path, missing=(_SUBJECT_NOT_FOUND, _VERSION_NOT_FOUND))
        return None if answer is None else (int(answer["id"]), _registered(answer))

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """Return the schema of that id; None when the registry has none. Raises ServiceUnreachable, AnswerTooLong."""
        answer = self._ask("GET", f"/schemas/ids/{schema_id}", missing=(_SCHEMA_NOT_FOUND,))
        return None if answer is None else _registered(answer)

    def register(self, subject: str, schemas: Sequence[str]) -> list[int]:
        """Register Avro schemas as versions of a subject, in order, and return their ids; a known one keeps its id.

        Raises UsageError when the registry refuses one, ServiceUnreachable when it does not answer.
        """
        path = f"/subjects/{quote(subject, safe='')}/versions"
        return [int(self._ask("POST", path, body={"schema": schema})["id"]) for schema in schemas]

    def _ask(
        self, method: str, path: str, *, body: Mapping[str, str] | None = None, missing: Sequence[int] = ()
    ) -> Any:
        """Return the answer's JSON; None for an error 404 with a code of `missing`."""
        headers = {"Content-Type": _MEDIA_TYPE} if body is not None else {}
        try:
            with self._client.stream(method, self.address + path, json=body, headers=headers) as response:
                text = self._read(response)
        except httpx.HTTPError as error:
            raise self._unreachable(str(error) or type(error).__name__) from error
        try:
            answer = httpx.Response(200, content=text).json()
        except (ValueError, RecursionError):
            raise self._unreachable(f"{response.status_code}, and not JSON: is this a schema registry?") from None
        if response.status_code == httpx.codes.OK:
            return answer
        code = answer.get("error_code") if isinstance(answer, dict) else None
        # Any other 404 is a wrong address, not a missing schema.
        if response.status_code == httpx.codes.NOT_FOUND and code in missing:
            return None
        said = str(answer.get("message", ""))[:200] if isinstance(answer, dict) else ""
        if response.status_code in (httpx.codes.CONFLICT, httpx.codes.UNPROCESSABLE_ENTITY):
            raise UsageError(f"the registry at {self.address} refuses a schema: {said}", remedy="correct the schema")
        if response.status_code == httpx.codes.FORBIDDEN:
            raise self._unreachable(
                f"403 {said}: its user has no right to {path}",
                remedy="grant it to the user of TIDEMARK_REGISTRY_URL: a schema id needs the right to read its subject",
            )
        if response.status_code == httpx.codes.UNAUTHORIZED:
            raise self._unreachable(f"401 {said}".strip(), remedy="user and password of TIDEMARK_REGISTRY_URL")
        raise self._unreachable(f"{response.status_code} {said}".strip())

    def _read(self, response: httpx.Response) -> bytes:
        text = b""
        for chunk in response.iter_bytes():
            text += chunk
            if len(text) > MAX_ANSWER:
                raise AnswerTooLong(
                    f"the registry at {self.address} answers with more than {MAX_ANSWER} bytes",
                    remedy="see what it holds; schemas are a few thousand bytes",
                )
        return text

    def _unreachable(self, reason: str, remedy: str = "./tidemark status") -> ServiceUnreachable:
        return ServiceUnreachable(f"the schema registry at {self.address}: {reason}", remedy=remedy)


def _registered(answer: Mapping[str, Any]) -> RegisteredSchema:
    kind, references = answer.get("schemaType"), answer.get("references")
    return RegisteredSchema(str(answer["schema"]), str(kind or "AVRO"), len(references or []))


def without_user(url: URL) -> str:
    """Return a registry's URL as it may be shown: without password and user, who may be a key."""
    # Its `set` keeps what is to be None.
    return url._replace(username=None, password=None).render_as_string()


def registry() -> SchemaRegistry:
    """Return the configured or the embedded registry. Raises ServiceUnreachable when there is neither."""
    return SchemaRegistry(settings().registry().render_as_string(hide_password=False))
