"""What a verb imports: commands that only read are felt at once, and one import of a large library undoes that.

Modules are counted, not seconds: what a second holds depends on the machine.
"""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest
import typer

from include.cli import VERBS
from include.cli.__main__ import app
from tests.conftest import REPOSITORY, Home

HEAVY = {
    "airflow", "alembic", "fastapi", "great_expectations", "httpx", "jinja2", "pandas", "pydantic_settings", "pyspark",
    "sqlalchemy",
}  # fmt: skip
"""Libraries that take longer to import than a command that only reads may take in all."""

ASK = """
import runpy, sys
sys.argv[:] = ["tidemark", *sys.argv[1:]]
try:
    runpy.run_module("include.cli", run_name="__main__", alter_sys=True)
except SystemExit as end:
    code = end.code
print(code, sorted(sys.modules), file=sys.stderr)
"""


def imported(home: Home, *arguments: str) -> set[str]:
    """Names of all modules that are loaded when a command has succeeded."""
    result = subprocess.run(
        [sys.executable, "-c", ASK, *arguments],
        env=home.environment(),
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=120,
        check=True,
    )
    code, _, names = result.stderr.splitlines()[-1].partition(" ")
    assert code == "0", result.stderr
    return set(ast.literal_eval(names))


def libraries(modules: set[str]) -> set[str]:
    return {name.split(".")[0] for name in modules}


@pytest.mark.services
@pytest.mark.parametrize(
    ("arguments", "also_not"),
    [
        (["--help"], {"confluent_kafka", "psycopg2", "pyarrow", "pydantic", "rich"}),
        (["pipelines"], {"confluent_kafka", "psycopg2", "pyarrow"}),
        (["ranges", "nest_cameras"], {"confluent_kafka", "pyarrow"}),
        (["lag", "nest_cameras"], {"prometheus_client", "pyarrow"}),
        (["status"], {"prometheus_client", "pyarrow"}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_no_heavy_library_is_imported_when_a_verb_only_reads(
    home: Home, arguments: list[str], also_not: set[str]
) -> None:
    modules = imported(home, *arguments)
    assert libraries(modules) & (HEAVY | also_not) == set(), f"./tidemark {' '.join(arguments)} imports them"


@pytest.mark.services
def test_only_the_verbs_own_module_is_imported_when_it_runs(home: Home) -> None:
    modules = {name for name in imported(home, "pipelines") if name.startswith("include.cli.")}
    assert modules == {"include.cli.data", "include.cli.output"}


def test_list_of_verbs_equals_their_modules() -> None:
    group = typer.main.get_command(app)
    context = typer.Context(group)
    for name, verb in VERBS.items():
        assert group.get_command(context, name).get_short_help_str(1000).rstrip(".") == verb.summary, name
    assert {verb.module for verb in VERBS.values()} == {
        path.stem
        for path in (REPOSITORY / "include" / "cli").glob("*.py")
        if "def register(" in path.read_text(encoding="utf-8")
    }
