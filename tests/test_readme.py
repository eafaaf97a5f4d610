"""The README against the code: verbs, links, exit codes, settings, and the examples' names."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from include import errors
from include.settings import Settings

REPOSITORY = Path(__file__).resolve().parents[1]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
CHANGELOG = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")


def _raised() -> Iterator[type[errors.TidemarkError]]:
    kinds = [errors.TidemarkError]
    while kinds:
        kind = kinds.pop()
        yield kind
        kinds += kind.__subclasses__()


def _documented_verbs() -> set[str]:
    verbs = set(re.findall(r"\./tidemark ([a-z][a-z-]*)", README))
    together = re.search(r"`\./tidemark up [^`]*`, `(\w+)`, `(\w+)`", README)
    return verbs | (set(together.groups()) if together else set())


@pytest.fixture(scope="module")
def verbs() -> set[str]:
    """Verbs that the command knows."""
    command = [sys.executable, "-m", "include.cli", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY, timeout=120)
    commands = result.stdout.split("Commands:", 1)[1]
    return set(re.findall(r"^ {2}([a-z][a-z-]*)(?: |$)", commands, re.MULTILINE))


def test_every_verb_exists_when_the_readme_names_it(verbs: set[str]) -> None:
    assert _documented_verbs() - verbs == set()


def test_every_verb_is_documented_when_the_command_has_it(verbs: set[str]) -> None:
    assert verbs - _documented_verbs() - {"setup-database"} == set()


@pytest.mark.parametrize("text", [README, CHANGELOG], ids=["README", "CHANGELOG"])
def test_every_relative_link_leads_somewhere(text: str) -> None:
    targets = [t for t in re.findall(r"\]\(([^)\s]+)\)", text) if not t.startswith(("http:", "https:", "#"))]
    assert [target for target in targets if not (REPOSITORY / target.split("#")[0]).exists()] == []


def test_exit_codes_equal_the_errors_when_documented() -> None:
    table = README.split("### Exit codes", 1)[1].split("\n## ", 1)[0]
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert documented == {kind.exit_code for kind in _raised()} | {0}


def test_settings_equal_the_code_when_documented() -> None:
    documented = set(re.findall(r"^\| `(TIDEMARK_\w+)` \|", README, re.MULTILINE))
    assert documented == {f"TIDEMARK_{name.upper()}" for name in Settings.model_fields}


def test_example_is_valid_when_copied() -> None:
    from include.pipelines import spec

    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    names = {name: getattr(spec, name) for name in dir(spec) if name[0].isupper()}
    exec(compile(code[1], "README.md", "exec"), names)
    assert names["PIPELINE"].tables == ("door_bells",)


def test_picture_is_self_contained_when_shown() -> None:
    picture = ElementTree.parse(REPOSITORY / "include" / "docs" / "images" / "data-way.svg")
    assert picture.getroot().get("viewBox")
    text = ElementTree.tostring(picture.getroot(), encoding="unicode")
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"<[^>]*(href|src)=|<script|@import", text.replace("xmlns:href", ""))


def test_no_path_of_a_machine_is_named() -> None:
    for text in (README, CHANGELOG):
        assert not re.search(r"(?<![\w.])/(?:home|root|work|Users)/", text)


def test_changelog_names_the_version_of_the_project() -> None:
    version = re.search(r'^version = "(.+)"$', (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert f"## [{version[1]}]" in CHANGELOG


def test_license_is_the_unmodified_text() -> None:
    text = (REPOSITORY / "LICENSE").read_text(encoding="utf-8")
    assert text.lstrip().startswith("Apache License\n                           Version 2.0, January 2004")
    assert text.rstrip().endswith("limitations under the License.")
    assert len(text.splitlines()) == 202
