"""A home and a checkout whose paths have blanks, letters outside of ASCII and signs: all that runs means one folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Home, last_hours
from tests.support.checkout import copy_checkout

pytestmark = [pytest.mark.services, pytest.mark.slow]

START = last_hours(2)


@pytest.fixture
def home(new_home: Callable[..., Home], tmp_path: Path) -> Iterator[Home]:
    folder = tmp_path / "my höme @2+(1)&=~;"
    folder.mkdir()
    # Drivers of its own: `spark-submit` is a chain of shell scripts.
    made = new_home(folder, own_drivers=True)
    made.run("up")
    yield made
    made.end()


def test_every_record_is_registered_when_paths_have_blanks_and_signs(home: Home, tmp_path: Path) -> None:
    checkout = copy_checkout(tmp_path / "my chöckout @2+(1)&=~;", home)
    span = ("--start", f"{START:%Y-%m-%dT%H:%M:%SZ}", "--span", "1h")
    checkout.run("produce", "nest_cameras", "--events", "400", "--bad-fraction", "0.1", *span)
    checkout.run("stream", "nest_cameras", "--until-caught-up")
    bounds = ("--from", f"{START:%Y-%m-%dT%H:%M:%SZ}", "--to", f"{last_hours(1):%Y-%m-%dT%H:%M:%SZ}")
    verdict = checkout.json("interval", "nest_cameras", *bounds)
    assert (verdict["records"]["in_ranges"], verdict["records"]["gaps"]) == (400, 0)
    (archive,) = (each for each in verdict["registered"] if each["table"] == "nest_cameras")
    assert archive["location"].startswith(f"file://{home.lake}/tables/nest_cameras/")
    counted = checkout.json("sql", "SELECT count(*) AS n FROM lake.nest_cameras", "--json")
    assert counted == [{"n": archive["rows"]}]
    assert checkout.json("rebuild", "nest_cameras", archive["partition"], "--json")["equal"]
    # A path that was escaped for one reader only would be a folder beside them.
    assert {each.name for each in tmp_path.iterdir()} == {home.path.name, checkout.path.name}
    assert not [each for each in checkout.json("doctor", "--json", expect=None)["findings"] if each["kind"]]
