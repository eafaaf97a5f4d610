"""The house: which package may import which, how large a module may be, and that names can be told apart."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from include.versions.syntax import parse
from tests.conftest import REPOSITORY

HEAVY = {"pyspark", "great_expectations", "pandas"}

INCLUDE = (
    "include.errors",
    "include.environment",
    "include.times",
    "include.waiting",
    "include.kafka_security",
    "include.setting_values",
    "include.service_states",
    "include.settings",
    "include.offsets",
    "include.crash_points",
    "include.processes",
    "include.reconciliation",
    "include.pipelines.spec",
    "include.pipelines",
    "include.kafka",
    "include.lake",
    "include.ledger",
    "include.spark",
    "include.schemas",
    "include.services",
    "include.producing",
    "include.catalog",
    "include.serving",
    "include.outputs",
    "include.versions",
    "include.proof",
    "include.iceberg",
    "include.completeness",
    "include.quarantine",
    "include.monitor",
    "include.alerts",
    "include.intervals",
    "include.streams",
    "include.housekeeping",
    "include.erasure",
    "include.doctor",
    "include.monitor.streams",
    "include.monitor.web",
    "include.alerts.key_limits",
    "include.alerts.overdue",
    "include.airflow",
    "include.approvals",
    "include.airflow.approvals",
    "include.scaffold",
    "include.deploy",
    "include.cli",
)
"""Units of `include/`, low to high: each imports only units before it."""

SPARK_JOBS = (
    "spark_jobs.spark",
    "spark_jobs.transforms",
    "spark_jobs.decoding",
    "spark_jobs.archive",
    "spark_jobs.views",
    "spark_jobs.references",
    "spark_jobs.sinks",
    "spark_jobs.outputs",
    "spark_jobs.reconciliation",
    "spark_jobs.intervals",
    "spark_jobs.publication",
    "spark_jobs.streaming",
    "spark_jobs.lines",
    "spark_jobs.live",
    "spark_jobs.quarantine",
    "spark_jobs.erasure",
    "spark_jobs.training",
    "spark_jobs.kept",
    "spark_jobs",
)
"""Packages of `spark_jobs/`, low to high; its own modules are the entries."""

MODULE_LINES = 300
ENTRY_LINES = 60
MODULES_IN_A_FOLDER = 13
"""About twelve, and `__init__.py`."""

SQL_READERS = {"include.catalog", "include.catalog.properties", "include.services.metastore", "include.iceberg.catalog"}
"""Modules besides the ledger that use SQL: those that read, write and create the metastore, and PyIceberg's catalog
with its errors."""

MAIL = "include/alerts/mail.py"
"""A command also sends its mails by Airflow's SMTP provider, which it imports when it sends one."""

LONG = {"include/ledger/models.py", "include/proof/verify.py"}
"""The ledger's tables, in one place, and the file that checks a proof without the rest of the project."""


@cache
def modules() -> dict[str, Path]:
    """Path of every module of the project, by its dotted name."""
    named = {}
    for folder in ("include", "spark_jobs", "expectations", "dags"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            if "migrations" not in path.parts:
                name = ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
                named[name.removesuffix(".__init__")] = path
    return named


@cache
def project_imports(module: str) -> frozenset[str]:
    """Modules of the project that a module imports, wherever in it."""
    imported = set()
    for node in ast.walk(parse(modules()[module].read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            submodules = names & modules().keys()
            imported |= submodules
            if len(submodules) < len(names):
                imported.add(node.module)
    return frozenset(imported & modules().keys() - {module})


def libraries(path: Path) -> set[str]:
    """Top-level names of everything that a module imports."""
    imported = set()
    for node in ast.walk(parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.split(".")[0])
    return imported


def unit_of(module: str, units: tuple[str, ...]) -> str:
    """Return the most specific unit that a module belongs to."""
    holding = [unit for unit in units if module == unit or module.startswith(f"{unit}.")]
    return max(holding, key=len)


def imports_between(units: tuple[str, ...], folder: str) -> Iterator[tuple[str, str]]:
    for module in modules():
        if module == folder or module.startswith(f"{folder}."):
            for imported in project_imports(module):
                if imported.startswith(f"{folder}."):
                    yield module, imported


@pytest.mark.parametrize(("folder", "units"), [("include", INCLUDE), ("spark_jobs", SPARK_JOBS)])
def test_package_imports_only_packages_below_it_when_it_imports(folder: str, units: tuple[str, ...]) -> None:
    rank = {unit: number for number, unit in enumerate(units)}
    upward = [
        f"{module} imports {imported}"
        for module, imported in imports_between(units, folder)
        if module != folder and rank[unit_of(imported, units)] > rank[unit_of(module, units)]
    ]
    assert not upward, upward


@pytest.mark.parametrize(("folder", "units"), [("include", INCLUDE), ("spark_jobs", SPARK_JOBS)])
def test_unit_has_its_place_when_the_order_lists_it(folder: str, units: tuple[str, ...]) -> None:
    assert not set(units) - modules().keys()
    for module, path in modules().items():
        # Entries import whatever they start, and nothing imports them.
        is_entry = path.parent == REPOSITORY / "spark_jobs"
        if module.startswith(f"{folder}.") and not is_entry:
            unit = ".".join(module.split(".")[:2])
            assert unit in units, f"{unit} has no place in the order"


def test_modules_import_in_one_direction_only_when_they_import_each_other() -> None:
    # A package's own `__init__` only re-exports its modules' definitions.
    graph = {
        module: {each for each in project_imports(module) if not module.startswith(f"{each}.")}
        for module, path in modules().items()
        if path.name != "__init__.py"
    }
    cycle = ""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle = " -> ".join(error.args[1])
    assert cycle == ""


def test_include_never_imports_the_spark_side_when_it_imports() -> None:
    for module in modules():
        if module.startswith("include."):
            upward = [each for each in project_imports(module) if not each.startswith("include")]
            assert not upward, (module, upward)


@pytest.mark.parametrize("folder", ["dags", "include"])
def test_light_folder_imports_no_heavy_library_when_it_is_imported(folder: str) -> None:
    for path in (REPOSITORY / folder).rglob("*.py"):
        assert not libraries(path) & HEAVY, path


def test_airflow_is_imported_only_by_dags_and_its_folder_when_it_is_used() -> None:
    for folder in ("include", "spark_jobs", "expectations"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            if "airflow" in path.parts or path == REPOSITORY / MAIL:
                continue
            assert "airflow" not in libraries(path), path


def sql_names(path: Path) -> set[str]:
    """What a module imports of SQLAlchemy; a module of it counts by its own name."""
    names = set()
    for node in ast.walk(parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.split(".")[0] == "sqlalchemy"}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "sqlalchemy":
            names |= {alias.name for alias in node.names}
    return names


def test_sql_stays_in_the_ledger_and_the_metastore_s_reader_when_it_is_written() -> None:
    # Others build addresses at most.
    addresses = {"make_url", "URL", "ArgumentError"}
    for module, path in modules().items():
        if not module.startswith("include.ledger") and module not in SQL_READERS:
            assert not sql_names(path) - addresses, module
            assert not {each for each in project_imports(module) if each == "include.ledger.models"}, module


def test_ledger_imports_neither_kafka_s_client_nor_the_lake_when_it_is_imported() -> None:
    for module in modules():
        if module.startswith("include.ledger"):
            outside = {each for each in project_imports(module) if each.startswith(("include.kafka", "include.lake"))}
            assert not outside - {"include.kafka_security"}, (module, outside)


def test_one_module_reads_kafka_when_spark_does() -> None:
    readers = [
        path.name
        for path in (REPOSITORY / "spark_jobs").rglob("*.py")
        if re.search(r"""read(Stream)?\s*\.format\("kafka"\)""", path.read_text())
    ]
    assert readers == ["kafka_source.py"]


def test_spark_module_shadows_no_library_when_it_is_named() -> None:
    # spark-submit puts spark_jobs/ first on sys.path.
    names = {path.stem for path in (REPOSITORY / "spark_jobs").iterdir()}
    assert not names & (set(sys.stdlib_module_names) | {"delta", "avro", "kafka", "pyspark", "pyarrow", "py4j"})


def test_no_heavy_library_is_loaded_when_the_command_is_imported() -> None:
    code = f"import sys, include.cli.__main__; sys.exit(bool(set(sys.modules) & {HEAVY!r}))"
    result = subprocess.run([sys.executable, "-c", code], env=os.environ, cwd=REPOSITORY, check=False)
    assert result.returncode == 0


def test_module_stays_short_when_it_grows() -> None:
    lengths = {
        path.relative_to(REPOSITORY).as_posix(): len(path.read_text().splitlines()) for path in modules().values()
    }
    assert not {path: lines for path, lines in lengths.items() if lines > MODULE_LINES and path not in LONG}


def test_entry_only_parses_arguments_and_runs_when_spark_submit_starts_it() -> None:
    entries = [path for path in (REPOSITORY / "spark_jobs").glob("*.py") if path.name != "__init__.py"]
    assert {path.name for path in entries} >= {"stream.py", "build_interval.py", "publish.py"}
    for path in entries:
        assert len(path.read_text().splitlines()) <= ENTRY_LINES, path.name
        assert '__name__ == "__main__"' in path.read_text(), f"{path.name} is no entry"


def test_folder_holds_few_modules_when_it_grows() -> None:
    folders = {path.parent for path in modules().values()}
    crowded = {
        folder.relative_to(REPOSITORY).as_posix(): count
        for folder in folders
        # A user adds pipelines, so the folders that hold one module each have no bound.
        if folder.name not in ("pipelines", "transforms", "messages", "expectations")
        if (count := len(list(folder.glob("*.py")))) > MODULES_IN_A_FOLDER
    }
    assert not crowded


def test_words_differ_when_two_modules_are_named() -> None:
    seen: dict[frozenset[str], Path] = {}
    for path in modules().values():
        words = frozenset(path.stem.split("_"))
        if len(words) > 1 and path.name != "__init__.py":
            other = seen.setdefault(words, path)
            assert other.stem == path.stem, f"{other} and {path} have the same words in another order"


def test_tests_mirror_the_packages_when_they_are_listed() -> None:
    tests = REPOSITORY / "tests"
    for side in ("include", "spark_jobs"):
        for folder in (path for path in (tests / side).iterdir() if path.is_dir() and path.name != "__pycache__"):
            assert (REPOSITORY / side / folder.name).is_dir(), f"{folder} mirrors no package"
    loose = {path.name for path in tests.glob("*.py")}
    assert loose == {"conftest.py", "test_dependencies.py", "test_layers.py"}, "helpers of tests live in tests/support"


def test_no_server_of_a_test_has_a_port_of_connections_when_it_ends_before_its_clients() -> None:
    """Clients that try again would meet another program's socket there, and Spark's sockets take one connection."""
    ephemeral = re.compile(r'\("127\.0\.0\.1", 0\)')
    for path in (REPOSITORY / "tests").rglob("*.py"):
        assert not ephemeral.search(path.read_text()), f"{path}: take `free_port()`"
