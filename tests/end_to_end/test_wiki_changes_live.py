"""Changes of a followed event stream reach the page of `top --serve` in a browser, as they happen."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Home, end_of, iso, wait_for
from tests.support import audit
from tests.support.changes import edits_of, fates_of, top_of
from tests.support.event_server import GrowingServer, made_up_changes

pytestmark = [pytest.mark.services, pytest.mark.browser, pytest.mark.own_drivers, pytest.mark.slow]

# A window that stays the newest one while the test runs; the view takes what is at most ten minutes ahead.
WINDOW = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=datetime.now(UTC).minute % 10)
PATIENCE = 600


@dataclass
class Live:
    """The server, the page in the browser, and the changes sent so far."""

    home: Home
    server: GrowingServer
    browser: Any

    def add(self, count: int, seed: int) -> None:
        """Send more changes, all of them in the window."""
        self.server.add(made_up_changes(count, WINDOW + timedelta(minutes=1), seed=seed))

    def expected(self) -> list[list[str]]:
        """Return the rows that the page must show for the changes: a flag is `yes`, or empty."""
        changes = {("wiki-changes", 0, at): {**each, "moment": WINDOW} for at, each in enumerate(self.server.changes)}
        rows = top_of(edits_of(changes), iso(WINDOW))
        return [[str(user), "yes" if bot else "", str(count)] for user, bot, count in rows]

    def table(self) -> list[list[str]]:
        rows = "[...document.querySelectorAll('#rows tr')]"
        return list(self.script(f"return {rows}.map((r) => [...r.querySelectorAll('td')].map((e) => e.textContent))"))

    def chart(self) -> list[float]:
        """How long the bars are."""
        bars = "[...document.querySelectorAll('#chart rect')]"
        return list(self.script(f"return {bars}.map((e) => e.width.baseVal.value)"))

    def script(self, text: str) -> Any:
        return self.browser.execute_script(text)


@contextmanager
def running(home: Home, log: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command until the end of the block, with its output in a file."""
    with log.open("w") as output:
        process = subprocess.Popen(
            home.command(*arguments), env=home.environment(), stdout=output, stderr=subprocess.STDOUT, text=True
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(120)
            finally:
                end_of(process)


@pytest.fixture
def live(home: Home, browser: Any, tmp_path: Path) -> Iterator[Live]:
    """A server that is followed into the topic, the stream that lands it, and the page that shows what is landed."""
    log = {name: tmp_path / f"{name}.log" for name in ("follower", "stream", "top")}
    with GrowingServer(seed=4) as server, ExitStack() as stack:
        found = Live(home, server, browser)
        found.add(60, seed=1)
        follower = ("produce", "wiki_changes", "--from-stream", server.url)
        stack.enter_context(running(home, log["follower"], *follower))
        wait_for("the topic", lambda: "wiki-changes" in audit.topics(home.kafka), PATIENCE)
        stack.enter_context(running(home, log["stream"], "stream", "wiki_changes"))
        stack.enter_context(running(home, log["top"], "top", "wiki_changes", "--serve"))

        def address() -> str | None:
            said = re.search(r"http://\S+", log["top"].read_text())
            return said[0] if said else None

        browser.get(wait_for("the page's address", address, PATIENCE))
        yield found


@pytest.mark.timeout(2400)
def test_chart_and_table_move_as_the_followed_stream_does(live: Live) -> None:
    for count, seed in ((0, 0), (300, 2), (500, 3)):
        before = live.expected()
        live.add(count, seed)
        expected = live.expected()
        assert expected != before or not count
        wait_for(f"the table of {len(live.server.changes)} changes", lambda e=expected: live.table() == e, PATIENCE)
        most = int(expected[0][2])
        bars = live.chart()
        assert len(bars) == len(expected)
        assert [bar / bars[0] for bar in bars] == pytest.approx([int(row[2]) / most for row in expected], abs=0.01)
        edits = sum(edits_of({("", 0, n): {**c, "moment": WINDOW} for n, c in enumerate(live.server.changes)}).values())
        assert f"{edits} in all" in live.script("return document.getElementById('window').textContent")
    # Cut, doubled and resumed on the way: each change is in the topic, and it is archived once.
    records = audit.read_topic(live.home.kafka, "wiki-changes")
    assert len(records) == len(live.server.changes)
    assert len(live.server.last_event_ids) > 3
    assert audit.check_archive(live.home.kafka, live.home.database, live.home.lake, "wiki-changes", fates_of) == len(
        records
    )
    severe = [each for each in live.browser.get_log("browser") if each["level"] == "SEVERE"]
    assert [each for each in severe if "favicon" not in each["message"]] == []
    assert Counter(record.key is None for record in records.values()) == {False: len(records)}
