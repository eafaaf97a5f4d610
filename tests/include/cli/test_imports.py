"""What a verb imports: commands that only read are felt at once, and one import of a large library undoes that.

Modules are counted, not seconds: what a second holds depends on the machine.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys

import pytest
import typer

from include.cli import PASS_ARGUMENTS_ON, VERBS
from include.cli.__main__ import app
from include.ledger.intervals.revisions import registered_of_interval
from tests.conftest import REPOSITORY, Home
from tests.support.proved import PIPELINE, register_hour

HEAVY = {
    "airflow", "alembic", "fastapi", "great_expectations", "httpx", "jinja2", "pandas", "pydantic", "pyspark",
    "sqlalchemy",
}  # fmt: skip
"""Libraries whose import takes longer than a read-only command may take in total."""

ASK = """
import json, runpy, sys
chains = {}

class Chains:
    def find_spec(self, name, path=None, target=None):
        if "." not in name and name not in chains:
            frame, chain = sys._getframe(1), [name]
            while frame is not None:
                importer, function = frame.f_globals.get("__name__", "?"), frame.f_code.co_name
                if frame.f_code.co_filename[:7] != "<frozen":
                    chain.append(importer if function == "<module>" else f"{importer}.{function}")
                frame = frame.f_back
            chains[name] = chain[::-1]

sys.meta_path.insert(0, Chains())
sys.argv[:] = ["tidemark", *sys.argv[1:]]
try:
    runpy.run_module("include.cli", run_name="__main__", alter_sys=True)
except SystemExit as end:
    code = end.code
print(json.dumps([code, sorted(sys.modules), chains]), file=sys.stderr)
"""


def imported(home: Home, *arguments: str) -> tuple[set[str], dict[str, list[str]]]:
    """Return the names of all modules that a successful command has loaded, and the chain of imports per library."""
    result = subprocess.run(
        [sys.executable, "-c", ASK, *arguments],
        env=home.environment(),
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=120,
        check=True,
    )
    code, names, chains = json.loads(result.stderr.splitlines()[-1])
    assert code == 0, result.stderr
    return set(names), chains


@pytest.mark.services
@pytest.mark.parametrize(
    ("arguments", "also_not"),
    [
        (["--help"], {"confluent_kafka", "psycopg2", "pyarrow", "rich"}),
        (["pipelines"], {"confluent_kafka", "psycopg2", "pyarrow"}),
        (["ranges", "nest_cameras"], {"confluent_kafka", "pyarrow"}),
        (["lag", "nest_cameras"], {"prometheus_client", "pyarrow"}),
        (["status"], {"prometheus_client", "pyarrow"}),
        (["alerts", "list"], {"confluent_kafka", "prometheus_client", "pyarrow"}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_no_heavy_library_is_imported_when_a_verb_only_reads(
    home: Home, arguments: list[str], also_not: set[str]
) -> None:
    modules, chains = imported(home, *arguments)
    heavy = {name.split(".")[0] for name in modules} & (HEAVY | also_not)
    assert {name: " > ".join(chains[name]) for name in heavy} == {}, f"./tidemark {' '.join(arguments)} imports them"


@pytest.mark.services
def test_no_heavy_library_is_imported_when_a_partition_is_explained(in_process: Home) -> None:
    (registered,) = registered_of_interval(register_hour(0))
    modules, chains = imported(in_process, "explain", PIPELINE, registered.partition)
    heavy = {name.split(".")[0] for name in modules} & (HEAVY | {"confluent_kafka", "prometheus_client", "pyarrow"})
    assert {name: " > ".join(chains[name]) for name in heavy} == {}


@pytest.mark.services
def test_importers_are_named_when_a_verb_imports_a_library(home: Home) -> None:
    _, chains = imported(home, "pipelines")
    assert chains["rich"][-3:] == ["include.cli.data", "include.cli.output", "rich"]


@pytest.mark.services
def test_only_the_verbs_own_module_is_imported_when_it_runs(home: Home) -> None:
    modules = {name for name in imported(home, "pipelines")[0] if name.startswith("include.cli.")}
    assert modules == {"include.cli.data", "include.cli.output"}


def test_list_of_verbs_equals_their_modules_when_both_are_read() -> None:
    group = typer.main.get_command(app)
    context = typer.Context(group)
    for name, verb in VERBS.items():
        command = group.get_command(context, name)
        assert command.get_short_help_str(1000).rstrip(".") == verb.summary, name
        assert (command.context_settings == PASS_ARGUMENTS_ON) == verb.passes_on, name


def test_no_function_is_left_over_when_its_verb_was_removed() -> None:
    for module in {verb.module for verb in VERBS.values()}:
        verbs = {verb.defined_as or name.replace("-", "_") for name, verb in VERBS.items() if verb.module == module}
        tree = ast.parse((REPOSITORY / "include" / "cli" / f"{module}.py").read_text())
        # Those of a group are decorated.
        defined = {each.name for each in tree.body if isinstance(each, ast.FunctionDef) and not each.decorator_list}
        used = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}
        assert {name for name in defined - used - verbs if not name.startswith("_")} == set(), module
