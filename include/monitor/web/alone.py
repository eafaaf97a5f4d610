"""The page alone, on loopback: whoever has the token may do everything, as the user who started it."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

from fastapi import FastAPI, Request
from starlette.datastructures import QueryParams
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from include.monitor.live_page import HOST
from include.monitor.web.app import monitor_app
from include.monitor.web.rights import NotKnown, Visitor

PARAMETER = "token"
"""Parameter of the URL that `./tidemark monitor` prints."""


def app_alone(token: str, user: str) -> FastAPI:
    """Return the application for whoever has the token; what they decide is recorded under the user's name."""
    rights = TokenRights(token, user)
    app = monitor_app(rights)
    app.add_middleware(TokenInUrl, rights=rights)
    # Against DNS rebinding: another site's host name that resolves to this address gets no answer.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])
    return app


@dataclass(frozen=True)
class Holder:
    """Somebody who holds the token."""

    name: str

    def may_read(self, pipeline: str) -> bool:
        """Return True."""
        return True

    def may_act(self, pipeline: str) -> bool:
        """Return True."""
        return True


@dataclass(frozen=True)
class TokenRights:
    """A visitor sends the token in a cookie, or as `Authorization: Bearer …`, as Prometheus does."""

    token: str
    user: str

    @property
    def cookie(self) -> str:
        """The cookie's name: cookies of all ports of a host are sent to each, so every token has its own."""
        return f"tidemark_{hashlib.sha256(self.token.encode()).hexdigest()[:12]}"

    async def visitor(self, request: Request) -> Visitor:
        """Return the holder of the token. Raise NotKnown."""
        scheme, _, sent = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            sent = request.cookies.get(self.cookie, "")
        if not self.is_token(sent):
            raise NotKnown
        return Holder(self.user)

    def is_token(self, text: str) -> bool:
        """Return whether the text is the token, in a time that does not depend on how much of it is right."""
        return secrets.compare_digest(text.encode(), self.token.encode())


class TokenInUrl:
    """Turns a URL with the token into the cookie and the same URL without it, so that no history keeps it."""

    def __init__(self, app: ASGIApp, rights: TokenRights) -> None:
        self._app, self._rights = app, rights

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a GET with the right token by a redirect; pass on everything else."""
        query = QueryParams(scope.get("query_string", b"")) if scope["type"] == "http" else QueryParams()
        if scope.get("method") != "GET" or not self._rights.is_token(query.get(PARAMETER, "")):
            await self._app(scope, receive, send)
            return
        rest = QueryParams([(name, value) for name, value in query.multi_items() if name != PARAMETER])
        # One leading slash: two would name another host.
        path = "/" + scope["path"].lstrip("/\\")
        answer = RedirectResponse(f"{path}?{rest}" if rest else path, status_code=303)
        answer.set_cookie(self._rights.cookie, self._rights.token, httponly=True, samesite="strict", path="/")
        answer.headers.update({"Referrer-Policy": "no-referrer", "Cache-Control": "no-store"})
        await answer(scope, receive, send)
