"""Who gets a page: alone by the token, and with rights per pipeline; the policy of every answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from starlette.routing import Mount

from include.errors import PipelinesClash, TidemarkError, UsageError
from include.ledger.alerts import Alert
from include.monitor import open_alerts
from include.monitor.streams.page import StreamsPage
from include.monitor.web import streams
from include.monitor.web.alone import app_alone
from include.monitor.web.app import monitor_app
from include.monitor.web.pages import POLICY
from include.monitor.web.rights import ActedPipeline, NotKnown, Visitor, readable_refusals
from include.pipelines import Declarations

TOKEN = "t" * 43
PAGES = ("/", "/?format=json", "/pipelines/nest_cameras")


@dataclass(frozen=True)
class Somebody:
    """Known by name, with rights to some pipelines."""

    name: str = "eve"
    reads: frozenset[str] = field(default_factory=frozenset)
    acts: frozenset[str] = field(default_factory=frozenset)

    def may_read(self, pipeline: str) -> bool:
        return pipeline in self.reads

    def may_act(self, pipeline: str) -> bool:
        return pipeline in self.acts


@dataclass(frozen=True)
class Door:
    """Lets in anybody who sends their name."""

    visitors: dict[str, Visitor]

    async def visitor(self, request: Request) -> Visitor:
        try:
            return self.visitors[request.headers.get("x-name", "")]
        except KeyError:
            raise NotKnown("/login?next=here") from None


READER = Somebody(reads=frozenset({"isp_hits"}))
ACTOR = Somebody(reads=frozenset({"isp_hits"}), acts=frozenset({"isp_hits"}))


@pytest.fixture
def alone() -> Iterator[TestClient]:
    with TestClient(app_alone(TOKEN, "eve@host"), base_url="http://127.0.0.1:8090", follow_redirects=False) as client:
        yield client


@pytest.fixture
def guarded() -> FastAPI:
    app = monitor_app(Door({"reader": READER, "actor": ACTOR}))

    @app.post("/quarantine/{pipeline}/act")
    def act(pipeline: ActedPipeline) -> str:
        return pipeline.name

    return app


@pytest.fixture
def client(guarded: FastAPI) -> Iterator[TestClient]:
    with TestClient(guarded, follow_redirects=False) as client:
        yield client


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "t", "é" * 43])
def test_page_alone_is_refused_when_the_token_is_missing(alone: TestClient, path: str, token: str) -> None:
    with_token = f"{path}{'&' if '?' in path else '?'}token={token}" if token else path
    assert alone.get(with_token).status_code == 401
    assert alone.get(path, headers={"Authorization": f"Bearer {token}".encode()}).status_code == 401


def test_token_becomes_a_protected_cookie_when_it_is_in_the_address(alone: TestClient) -> None:
    answer = alone.get(f"/pipelines/nope?format=json&token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/pipelines/nope?format=json")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in answer.text
    assert alone.get("/pipelines/nope?format=json").status_code == 404


def test_redirect_stays_on_this_host_when_the_path_looks_like_another(alone: TestClient) -> None:
    for path in ("//evil.example/", "/\\evil.example/"):
        location = alone.get(f"{path}?token={TOKEN}").headers["location"]
        assert not location.startswith(("//", "/\\"))


def test_program_is_let_in_when_it_sends_the_token_in_a_header(alone: TestClient) -> None:
    sent = {"Authorization": f"Bearer {TOKEN}"}
    assert alone.get("/pipelines/nope?format=json", headers=sent).status_code == 404


def test_page_alone_is_refused_when_this_machine_is_called_by_another_name(alone: TestClient) -> None:
    assert alone.get("/health", headers={"Host": "rebound.example"}).status_code == 400


def test_person_is_sent_to_the_login_when_nobody_is_logged_in(client: TestClient) -> None:
    page = client.get("/", headers={"Accept": "text/html"})
    assert (page.status_code, page.headers["location"]) == (303, "/login?next=here")
    assert client.get("/?format=json", headers={"Accept": "text/html"}).status_code == 401


def test_pipeline_is_shown_only_when_the_visitor_may_read_it(client: TestClient) -> None:
    sent = {"x-name": "reader"}
    assert client.get("/pipelines/nest_cameras", headers=sent).status_code == 403
    assert client.get("/pipelines/nobody", headers=sent).status_code == 404


OPEN = {"/health", "/static", "/pictures"}
"""What everybody may see: it has no data."""

FOREIGN = {
    "pipeline": "nest_cameras",
    "table": "nest_cameras",
    "view": "hourly_counts",
    "label": "2026-11-20T05",
}
"""Parameters of paths, of a pipeline that the reader may not read."""


def test_every_page_is_refused_when_the_visitor_is_unknown_or_has_no_right_to_its_pipeline() -> None:
    app = monitor_app(Door({"reader": READER}))
    assert {each.path for each in app.routes if isinstance(each, Mount)} < OPEN
    answers: dict[tuple[str, str], tuple[int, int]] = {}
    with TestClient(app, raise_server_exceptions=False, follow_redirects=False) as client:
        for route in app.routes:
            if getattr(route, "path", "") in OPEN:
                continue
            assert isinstance(route, APIRoute)
            path = route.path.format_map(FOREIGN)
            for method in route.methods:
                unknown = client.request(method, path).status_code
                # Pages of all pipelines show what the visitor may read.
                is_of_one = path != route.path
                known = client.request(method, path, headers={"x-name": "reader"}).status_code if is_of_one else 403
                answers[method, route.path] = (unknown, known)
    assert {("GET", "/"), ("GET", "/tables/{table}"), ("POST", "/quarantine/{pipeline}/replay")} < answers.keys()
    assert {route: answer for route, answer in answers.items() if answer != (401, 403)} == {}


def test_action_is_refused_when_right_or_form_is_missing(client: TestClient) -> None:
    path = "/quarantine/isp_hits/act"
    assert client.post(path, headers={"x-name": "reader"}).status_code == 403
    assert client.post(path, headers={"x-name": "actor"}).json() == "isp_hits"
    own, other = "http://testserver", "http://evil.example"
    assert client.post(path, headers={"x-name": "actor", "Origin": own}).status_code == 200
    assert client.post(path, headers={"x-name": "actor", "Origin": other}).status_code == 403
    assert client.post(path, headers={"x-name": "actor", "Origin": "null"}).status_code == 403
    assert client.post("/quarantine/nest_cameras/act", headers={"x-name": "actor"}).status_code == 403


@pytest.mark.parametrize("path", ["/", "/pipelines/nobody", "/static/live.js", "/health", "/nothing"])
def test_answer_has_the_policy_when_it_is_sent(alone: TestClient, path: str) -> None:
    answer = alone.get(path)
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == ("private, max-age=86400" if "static" in path else "no-store")
    assert "unsafe" not in POLICY


def test_pictures_of_the_docs_are_shown_when_the_visitor_may_read_a_dag(alone: TestClient) -> None:
    answer = alone.get("/pictures/data-way.svg")
    assert (answer.status_code, answer.headers["content-type"].split("+")[0]) == (200, "image/svg")
    assert alone.get("/pictures/../monitor.md").status_code == 404


@pytest.mark.parametrize(
    "path", ["/docs", "/openapi.json", "/static/../app.py", "/static/%2e%2e/app.py", "/frame.html"]
)
def test_path_is_not_served_when_it_is_unknown(alone: TestClient, path: str) -> None:
    assert alone.get(path).status_code == 404


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("days=400", "days: at most 92"),
        ("days=0", "days: at least 1"),
        ("days=x", "days: a whole number is needed"),
    ],
)
def test_wrong_parameter_is_named_on_a_page(client: TestClient, query: str, words: str) -> None:
    answer = client.get(f"/intervals?{query}", headers={"x-name": "reader"})
    assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (422, "text/html")
    assert words in answer.text
    assert words in client.get(f"/intervals?{query}&format=json", headers={"x-name": "reader"}).json()["error"]
    # Nobody learns anything without a name.
    assert client.get(f"/intervals?{query}").status_code == 401


def test_unknown_path_leads_to_what_exists(client: TestClient) -> None:
    page = client.get("/nothing", headers={"x-name": "reader"}).text
    assert '<p class="pager"><a href="/">Streams</a> <a href="/intervals">Intervals</a></p>' in page


def test_failure_is_a_page_without_its_trace_when_it_is_unexpected(guarded: FastAPI) -> None:
    @guarded.get("/fails")
    def fails() -> None:
        raise FileNotFoundError("secret detail")

    with TestClient(guarded, raise_server_exceptions=False) as client:
        answer = client.get("/fails")
    assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (500, "text/html")
    assert "FileNotFoundError" in answer.text
    assert "secret detail" not in answer.text
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(("path", "status"), [("/health", 200), ("/metrics", 401), ("/", 401)])
def test_head_is_answered_as_get_is_when_a_checker_asks(alone: TestClient, path: str, status: int) -> None:
    answer = alone.head(path)
    assert (answer.status_code, answer.headers["content-security-policy"]) == (status, POLICY)


def test_calendar_is_refused_when_the_visitor_may_not_read_its_pipeline(client: TestClient) -> None:
    assert client.get("/intervals?pipeline=nest_cameras", headers={"x-name": "reader"}).status_code == 403
    assert client.get("/intervals?pipeline=nope", headers={"x-name": "reader"}).status_code == 404


def test_alerts_of_pipelines_that_a_visitor_may_not_read_are_not_shown_when_none_or_others_can_be_loaded(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC)
    raised = [Alert(f"stream/{name}", name, "it ended", "", now, "") for name in ("isp_hits", "refused_one", "gone")]
    monkeypatch.setattr(open_alerts, "open_alerts", lambda: raised)
    shown: list[list[str]] = []

    def page(pipelines: object, refused: object, may_read: Callable[[str], bool]) -> StreamsPage:
        shown.append([each.pipeline for each in open_alerts.alerts_of(may_read)])
        return StreamsPage((), (), 0)

    def metrics(pipelines: object, may_read: Callable[[str], bool]) -> bytes:
        shown.append([each.pipeline for each in open_alerts.alerts_of(may_read)])
        return b""

    monkeypatch.setattr(streams, "streams_page", page)
    monkeypatch.setattr(streams, "metrics_text", metrics)
    for path in ("/", "/metrics"):
        assert client.get(path, headers={"x-name": "reader"}).status_code == 200
    assert shown == [["isp_hits"], ["isp_hits"]]


def test_refusal_names_no_pipeline_that_the_visitor_may_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    clash = PipelinesClash("a and secret both write t", remedy="rename it in secret.py", pipelines=("a", "secret"))
    broken = UsageError("b is broken")
    found = Declarations((), {"a": clash, "b": broken, "secret": clash})
    monkeypatch.setattr("include.monitor.web.rights.declarations", lambda: found)
    shown = readable_refusals(Somebody(reads=frozenset({"a", "b"})))
    assert set(shown) == {"a", "b"}
    assert (shown["a"].message, shown["a"].remedy) == ("it writes what another pipeline writes", "ask its operators")
    assert shown["b"] is broken
    everything: dict[str, TidemarkError] = readable_refusals(Somebody(reads=frozenset({"a", "b", "secret"})))
    assert everything == found.refused
