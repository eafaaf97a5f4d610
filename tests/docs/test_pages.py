"""README and pages against the code: commands, settings, exit codes, messages, links, paths, declarations, names."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args
from xml.etree import ElementTree

import pytest
import typer

from include import errors
from include.housekeeping.sweep import Done
from include.intervals.verdict import Verdict
from include.monitor.lag import as_metrics
from include.pipelines import load_pipeline, nest_cameras, pipeline_names, spec
from include.pipelines.spec.file_formats import FILE_FORMATS
from include.pipelines.spec.lines import declared_name
from include.producing.followed import Followed
from include.producing.generate import Produced
from include.reconciliation import DifferenceClass
from include.scaffold import new_pipeline
from include.services.supervisor import SERVICES, service_names
from include.settings import Settings
from include.times import parse_duration
from include.versions.syntax import parse
from tests.benchmarks import __main__ as benchmarks
from tests.support.shipped import SHIPPED

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = {
    path.relative_to(REPOSITORY).as_posix(): path.read_text(encoding="utf-8")
    for path in (REPOSITORY / "README.md", *sorted((REPOSITORY / "include" / "docs").glob("*.md")))
}
README = PAGES["README.md"]
CHANGELOG = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")

EXAMPLES = ("door_events", "door_bells")
"""Pipelines that the pages invent; their files are those that `./tidemark new` writes."""

MOST_LINES, MOST_WORDS = 170, 1500
"""Of the README."""

MOST_WORDS_OF_FIGURES = 4500
"""The page has the newest measurement of each kind; earlier ones are in Git."""

LONGEST_CELL = 400
"""Characters; what needs more has a heading and a table of its own."""

each_page = pytest.mark.parametrize("page", PAGES)


def docs(name: str) -> str:
    """The text of a page below include/docs."""
    return PAGES[f"include/docs/{name}.md"]


def section(text: str, heading: str) -> str:
    """Return the text under a heading, up to the next one of its level or above. Raises IndexError without it."""
    level = heading.split(" ", 1)[0]
    below = f"\n{text}\n".split(f"\n{heading}\n", 1)[1]
    return re.split(rf"^#{{1,{len(level)}}} ", below, maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> list[list[str]]:
    """The cells of all rows of tables whose header is left out."""
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines]
    rules = {number for number, line in enumerate(cells) if all(re.fullmatch(r":?-+:?", cell) for cell in line)}
    return [line for number, line in enumerate(cells) if number not in rules and number + 1 not in rules]


def code_spans(text: str) -> list[str]:
    """The inline code of a text without its fenced blocks."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


def fenced_lines(text: str) -> list[str]:
    """The lines of fenced blocks."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


# Commands


@dataclass(frozen=True)
class Usage:
    """A `./tidemark …` as a page writes it."""

    verb: str
    arguments: tuple[str, ...]
    options: frozenset[str]

    def __str__(self) -> str:
        return " ".join(("./tidemark", self.verb, *self.arguments, *sorted(self.options)))


@dataclass(frozen=True)
class Verb:
    """A verb of the command."""

    parameters: tuple[str, ...]
    """Names of its arguments."""
    options: frozenset[str]
    required: int = 0
    """How many of its arguments it cannot do without."""


@cache
def verbs() -> dict[str, Verb]:
    """All verbs by their name, those of a group as `quarantine list`; the command itself under an empty name."""
    from include.cli.__main__ import app

    root: Any = typer.main.get_command(app)
    context = typer.Context(root)
    found = {"": root}
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        found |= {f"{name} {part}": each for part, each in getattr(command, "commands", {name: command}).items()}
    read = {
        " ".join(dict.fromkeys(name.split(" "))): Verb(
            tuple(p.name for p in each.params if p.param_type_name == "argument"),
            frozenset(opt for p in each.params if p.param_type_name == "option" and not p.hidden for opt in p.opts),
            sum(p.required for p in each.params if p.param_type_name == "argument"),
        )
        for name, each in found.items()
    }
    bench = frozenset(option for option in benchmarks._parser()._option_string_actions if option.startswith("--"))
    return {**read, "bench": Verb(("name",), bench - {"--help"})}


def usages(text: str) -> list[Usage]:
    """Return every command that a page writes as code, except `./tidemark VERB`."""
    found = [usage for code in (*code_spans(text), *fenced_lines(text)) for usage in _usages(code)]
    return [usage for usage in found if usage.verb and not usage.verb.isupper()]


def _usages(code: str) -> Iterator[Usage]:
    if "./tidemark" not in code:
        return
    lexer = shlex.shlex(code, posix=True, punctuation_chars=";|&")
    lexer.whitespace_split = True
    commands: list[list[str]] = []
    for token in lexer:
        if token == "./tidemark":
            commands.append([])
        elif set(token) <= set(";|&"):
            commands.append(["end"])
        elif commands:
            commands[-1].append(token.strip("[]"))
    for words in commands:
        if words[:1] != ["end"]:
            yield _usage(words)


def _usage(words: Sequence[str]) -> Usage:
    options = frozenset(word.split("=", 1)[0] for word in words if word.startswith("--"))
    plain = [word for word in words if not word.startswith("-")]
    verb = " ".join(plain[:2]) if " ".join(plain[:2]) in verbs() else " ".join(plain[:1])
    arguments = plain[len(verb.split()) :]
    return Usage(verb, tuple(arguments), options)


def wrong_in(usage: Usage) -> str:
    """Return the part of a command that does not exist; empty if all of it does."""
    groups = {name.split(" ")[0] for name in verbs() if " " in name}
    if usage.verb not in verbs():
        return "" if usage.verb in groups and not usage.options else "no such verb"
    verb = verbs()[usage.verb]
    if usage.verb == "airflow":
        return wrong_of_airflow(usage)
    if usage.verb == "test":
        paths = [each for each in usage.arguments if each.startswith("tests/")]
        return ", ".join(path for path in paths if not is_there(path))
    if unknown := usage.options - verb.options - verbs()[""].options - {"--help"}:
        return f"no {', '.join(sorted(unknown))}"
    first = next(iter(usage.arguments), "").rstrip("…")
    if not first or not first.islower():
        return ""
    known: Mapping[str, Sequence[str]] = {
        "pipeline": (*pipeline_names(), *EXAMPLES),
        "names": (*SERVICES, "all"),
        "name": (*benchmarks.BENCHMARKS, *EXAMPLES),
    }
    kind = next(iter(verb.parameters), "")
    is_known = first in known.get(kind, (first,)) or declared_name(first, pipeline_names())
    return "" if is_known else f"no {kind} {first}"


def wrong_of_airflow(usage: Usage) -> str:
    """Return the part of a command of Airflow that does not exist, by Airflow's own declarations."""
    from airflow.cli.cli_config import ActionCommand, core_commands

    known: Sequence[Any] = core_commands
    for word in usage.arguments:
        command = next((each for each in known if each.name == word), None)
        if command is None:
            return "" if word.isupper() else f"no {word} of airflow"
        if isinstance(command, ActionCommand):
            flags = {flag for argument in command.args for flag in argument.flags}
            return ", ".join(f"no {each}" for each in sorted(usage.options - flags))
        known = command.subcommands
    return ", ".join(f"no {each}" for each in sorted(usage.options))


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md"])
def test_every_command_exists_when_a_page_names_it(page: str) -> None:
    written = usages(PAGES.get(page, CHANGELOG))
    assert [f"{usage}: {wrong}" for usage in written if (wrong := wrong_in(usage))] == []


def test_command_of_airflow_is_the_embedded_one_s_or_said_to_be_one_s_own_when_a_page_names_it() -> None:
    paragraphs = [each for text in PAGES.values() for each in re.split(r"\n\n(?!```)", text)]
    written = [(each, code) for each in paragraphs for code in (*code_spans(each), *fenced_lines(each))]
    bare = [(text, code) for text, code in written if re.match(r"airflow [a-z]", code)]
    assert [code for text, code in bare if "our own Airflow" not in text] == []
    assert any(code.startswith("./tidemark airflow db clean") for _, code in written)


def remedies_in(module: Path) -> Iterator[Usage]:
    """Yield the commands that a module's errors tell a person to run; what is filled in is a word in capitals."""
    keywords = [each for each in ast.walk(parse(module.read_text())) if isinstance(each, ast.keyword)]
    for remedy in (each.value for each in keywords if each.arg == "remedy"):
        texts = [part for part in ast.walk(remedy) if isinstance(part, ast.Constant | ast.FormattedValue)]
        filled = {id(inner) for part in texts if isinstance(part, ast.FormattedValue) for inner in ast.walk(part.value)}
        written = [part for part in texts if id(part) not in filled]
        text = "".join(str(part.value) if isinstance(part, ast.Constant) else "FILLED" for part in written)
        # A sentence goes on after the command: it ends with its code, or with the word before a comma or colon.
        for code in re.findall(r"\./tidemark ([^`;|—)\n]+)", text):
            yield _usage([word.strip("[]") for word in re.sub(r"[,:](\s.*|$)", "", code).split()])


def test_every_command_exists_with_its_argument_when_an_error_names_it() -> None:
    modules = [path for package in ("include", "spark_jobs", "dags") for path in (REPOSITORY / package).rglob("*.py")]
    written = [(path, usage) for path in sorted(modules) for usage in remedies_in(path)]
    assert len(written) > 50
    unknown = {f"{path.name}: {usage}: {wrong}" for path, usage in written if (wrong := wrong_in(usage))}
    known = [(path, usage) for path, usage in written if not wrong_in(usage)]
    short = {f"{path.name}: {usage}" for path, usage in known if len(usage.arguments) < verbs()[usage.verb].required}
    assert (unknown, short) == (set(), set())


def test_every_verb_has_all_its_options_when_commands_are_documented() -> None:
    documented: dict[str, set[str]] = {}
    for usage in usages(docs("commands")):
        documented.setdefault(usage.verb, set()).update(usage.options)
    wanted = {name: set(verb.options) for name, verb in verbs().items() if name and name != "test"}
    assert {name: documented.get(name) for name in wanted} == wanted
    assert "test" in documented


def test_benchmarks_and_their_options_equal_the_code_when_bench_is_documented() -> None:
    options = {action.dest: action.option_strings for action in benchmarks._parser()._actions}
    taken = {name: benchmarks._options(name) & options.keys() for name in benchmarks.BENCHMARKS}
    declared = {name: {option for each in names for option in options[each]} for name, names in taken.items()}
    table = rows(section(docs("commands"), "### bench"))
    assert {code_spans(name)[0]: set(code_spans(takes)) for name, _, takes in table} == declared


def test_every_option_exists_when_a_page_names_it_alone() -> None:
    known = {option for verb in verbs().values() for option in verb.options}
    named = {code.split()[0].split("=")[0] for text in PAGES.values() for code in code_spans(text) if code[:2] == "--"}
    assert named - known == set()


def test_every_dag_is_named_when_a_set_up_says_what_to_unpause() -> None:
    dags = {code_spans(name)[0] for name, _ in rows(section(docs("interface"), "## Airflow"))}
    table = rows(section(docs("deployment"), "## DAGs to unpause"))
    assert {code_spans(name)[0] for name, _ in table} == dags
    for way in ("## One machine", "## Containers", "## Kubernetes"):
        assert "(#dags-to-unpause)" in section(docs("deployment"), way), way


def test_airflow_stops_before_the_streams_when_code_is_replaced() -> None:
    stopping = section(docs("runbook"), "### Upgrades").split("\n2. ")[0]
    # Else it starts the next driver, which goes on over the copy and the migration.
    assert stopping.index("./tidemark down airflow") < stopping.index("--stop")
    assert "`no driver is running`" in stopping
    assert "no driver is running" in _text(REPOSITORY / "include" / "streams" / "stopping.py")


def test_restored_postgresql_is_the_one_that_was_backed_up_when_the_runbook_s_commands_ran(tmp_path: Path) -> None:
    """With a command that only notes what it is asked for."""
    parts = [section(docs("runbook"), heading) for heading in ("### Back up", "### Restore")]
    [backup], [restore] = [re.findall(r"^```\n(.*?)^```$", part, re.M | re.S) for part in parts]
    home, copies = tmp_path / "a home", tmp_path / "copies"
    for folder in (home / "postgres", home / "services", home / "airflow", home / "streams", copies):
        folder.mkdir(parents=True)
    (home / "services" / "postgres.json").write_text("password")
    (home / "airflow" / "fernet.key").write_text("of Airflow")
    (home / "streams" / "wiki_changes.json").write_text("position")
    (tmp_path / "tidemark").write_text("#!/bin/sh\necho $* >> asked\n")
    (tmp_path / "tidemark").chmod(0o700)
    kept = home / "postgres" / "PG_VERSION"

    def run(commands: str) -> None:
        named = commands.replace("COPY", str(copies)).replace("ASIDE", str(tmp_path / "aside"))
        environment = {**os.environ, "TIDEMARK_HOME": str(home)}
        subprocess.run(["sh", "-e", "-c", named], cwd=tmp_path, env=environment, check=True)

    kept.write_text("when it was backed up")
    run(backup)
    kept.write_text("later")
    (home / "postgres" / "of later").touch()
    run(restore)
    assert [(each.name, each.read_text()) for each in (home / "postgres").iterdir()] == [
        ("PG_VERSION", "when it was backed up")
    ]
    others = [(copies / name).read_text() for name in ("postgres.json", "fernet.key", "streams/wiki_changes.json")]
    assert others == ["password", "of Airflow", "position"]
    # A running server's files are no copy.
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [each.split()[0] for each in asked] == ["down", "down", "up"]


def test_file_that_a_setting_names_is_copied_when_it_exists_nowhere_else() -> None:
    named = {
        f"TIDEMARK_{name.upper()}" for name, each in Settings.declared().items() if "0600 file" in str(each.metadata)
    }
    assert len(named) > 3
    assert named - set(code_spans(section(docs("runbook"), "### Back up"))) == set()


@pytest.mark.parametrize("heading", ["### Back up", "### Restore", "### Upgrades"])
def test_every_service_starts_again_when_a_procedure_has_stopped_all(heading: str) -> None:
    started = [usage.arguments for usage in usages(section(docs("runbook"), heading)) if usage.verb == "up"]
    assert {name for names in started for name in service_names(names)} == set(service_names(["all"]))


# Settings


def test_settings_equal_the_code_when_documented() -> None:
    table = {row[0].strip("`"): row[2] for row in rows(section(docs("deployment"), "## Settings")) if len(row) == 3}
    assert set(table) == {f"TIDEMARK_{name.upper()}" for name in Settings.declared()}
    for name, field in Settings.declared().items():
        if field.default and isinstance(field.default, str | float):
            default = f"{field.default:g}" if isinstance(field.default, float) else field.default
            assert table[f"TIDEMARK_{name.upper()}"] == f"`{default}`"


def test_one_page_documents_a_setting_when_it_is_declared() -> None:
    found = [row[0].strip("`") for text in PAGES.values() for row in rows(text) if row[0].startswith("`TIDEMARK_")]
    assert {name for name in found if found.count(name) > 1} == set()


def test_every_variable_is_a_setting_or_said_not_to_be_one_when_a_page_names_it() -> None:
    settings = {f"TIDEMARK_{name.upper()}" for name in Settings.declared()}
    others = {
        name
        for row in rows(section(docs("deployment"), "## Settings"))
        if len(row) == 2
        for name in re.findall(r"TIDEMARK_\w+", row[0])
    }
    sources = "".join(_text(path) for path in (*_sources("include", "tests"), REPOSITORY / "docker-compose.yml"))
    assert {name for name in others if name not in sources} == set()
    named = {name for text in (*PAGES.values(), CHANGELOG) for name in re.findall(r"TIDEMARK_[A-Z_]*[A-Z]", text)}
    assert named - settings - others == set()


# Exit codes and messages


def _kinds() -> Iterator[type[errors.TidemarkError]]:
    kinds = [errors.TidemarkError]
    while kinds:
        kind = kinds.pop()
        yield kind
        kinds += [each for each in kind.__subclasses__() if each.__module__ == errors.__name__]


def test_exit_codes_equal_the_errors_when_documented() -> None:
    raised: dict[int, tuple[set[str], set[str]]] = {0: (set(), {""})}
    for kind in _kinds():
        names, may_pass = raised.setdefault(kind.exit_code, (set(), set()))
        names.add(kind.__name__)
        may_pass.add("yes" if kind.retryable else "no")
    table = rows(section(docs("runbook"), "## Exit codes").split("\n### ", 1)[0])
    codes = [code.strip("[").split("]")[0] for code, *_ in table]
    documented = {code: (set(code_spans(row[2])), {row[3]}) for code, row in zip(codes, table, strict=True)}
    assert {int(code): of for code, of in documented.items()} == raised
    sections = re.findall(r"^### Exit code (\d+):", docs("runbook"), re.MULTILINE)
    assert {int(code) for code in sections} == raised.keys() - {0}
    mentioned = {int(code) for text in PAGES.values() for code in re.findall(r"exit code\s+(\d+)", text, re.IGNORECASE)}
    assert mentioned - raised.keys() == set()


def test_tree_of_errors_is_drawn_as_the_classes_are() -> None:
    drawn, above = [], list[str]()
    for line in re.findall(r"^    ([ │├└─]*\w+ +\d+)  \S", str(errors.__doc__), re.MULTILINE):
        name, code = line.lstrip(" │├└─").split()
        above[(len(line) - len(line.lstrip(" │├└─"))) // 4 :] = [name]
        drawn.append(f"{'/'.join(above)} {code}")
    lines = [[each.__name__ for each in kind.__mro__ if issubclass(each, errors.TidemarkError)] for kind in _kinds()]
    declared = [f"{'/'.join(reversed(line))} {kind.exit_code}" for line, kind in zip(lines, _kinds(), strict=True)]
    assert sorted(drawn) == sorted(declared)


def _sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((REPOSITORY / folder).rglob("*.py"))]


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def _nodes(*folders: str) -> list[ast.AST]:
    trees = (parse(_text(path)) for path in _sources(*folders))
    return [node for tree in trees for node in ast.walk(tree)]


def _literal(node: ast.AST) -> str:
    """The text of a string in the source, `…` for what it fills in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_literal(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _pattern(symptom: str) -> re.Pattern[str]:
    """The pattern of the messages that a page quotes so, with `…` for what they fill in."""
    return re.compile(".*".join(map(re.escape, symptom.split("…"))))


@cache
def symptoms() -> dict[str, re.Pattern[str]]:
    """The messages that the runbook's tables quote, each with the pattern of what it stands for."""
    parts = re.findall(r"^### Exit code .*?(?=^##)", docs("runbook"), re.MULTILINE | re.DOTALL)
    cells = [row[0] for part in parts for row in rows(part)]
    quoted = [code for cell in cells for code in code_spans(cell) if " " in code and not code.startswith("./tidemark")]
    return {symptom: _pattern(symptom) for symptom in quoted}


def test_symptom_of_the_runbook_is_a_message_of_the_code_when_it_is_quoted() -> None:
    # Each symptom has a blank, so its message has one.
    messages = {text for node in _nodes("include", "spark_jobs", "expectations") if " " in (text := _literal(node))}
    assert len(symptoms()) > 40
    assert [each for each, pattern in symptoms().items() if not any(map(pattern.search, messages))] == []


def test_symptom_is_in_its_exit_code_s_table_when_one_error_alone_is_raised_with_it() -> None:
    codes = {kind.__name__: kind.exit_code for kind in _kinds()}
    nodes = _nodes("include", "spark_jobs", "expectations")
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    written = [text for node in nodes if id(node) not in parts and " " in (text := _literal(node))]
    raised = [
        (_literal(node.args[0]), codes[kind])
        for node in nodes
        if isinstance(node, ast.Call) and node.args and (kind := ast.unparse(node.func).split(".")[-1]) in codes
    ]
    wrong, known = set(), 0
    for code, part in re.findall(r"^### Exit code (\d+):(.*?)(?=^##)", docs("runbook"), re.MULTILINE | re.DOTALL):
        for symptom in {each for row in rows(part) for each in code_spans(row[0])} & symptoms().keys():
            is_said = symptoms()[symptom].search
            found = [of for text, of in raised if is_said(text)]
            if found and len(found) == sum(1 for text in written if is_said(text)):
                known += 1
                wrong |= set() if int(code) in found else {f"{symptom}: {set(found)}, not {code}"}
    assert known > 100
    assert wrong == set()


OF_OPERATION = {
    kind.__name__ for kind in _kinds() if 2 <= kind.exit_code <= 7 and kind is not errors.ServiceUnreachable
} | {"MetadataGone", "DiskFull", "FileUnreadable", "MessageRefused", "CheckpointDamaged", "PipelinesClash"}
"""Errors that only operation raises; others are raised for wrong arguments and declarations, too."""

FILLED_IN = {
    "… …, nothing was registered",
    "… …; nothing was registered",
    "… in …, nothing was registered yet: …",
    "… was …",
    "……",
}
"""Messages whose own words are filled in."""


def test_message_has_a_row_of_the_runbook_when_it_is_met_in_operation() -> None:
    raised = [
        _literal(node.args[0])
        for node in _nodes("include", "spark_jobs", "expectations")
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).split(".")[-1] in OF_OPERATION
    ]
    messages = {each for each in raised if each} - FILLED_IN
    assert len(messages) > 50
    assert {each for each in messages if not any(of.search(each) for of in symptoms().values())} == set()


def _left() -> set[str]:
    """What housekeeping says of that which it leaves as it is."""
    nodes = _nodes("include/housekeeping", "include/iceberg", "include/lake")
    tells = ("done.kept.append", "left.append")
    said = [node.args[0] for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) in tells]
    said += [node.value for node in nodes if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "line"]
    whys = {"_read_otherwise", "_elsewhere", "damage_of"}
    reasons = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name in whys]
    assert len(reasons) == len(whys)
    returned = [each for node in reasons for each in ast.walk(node) if isinstance(each, ast.Return)]
    said += [part for node in returned for part in ast.walk(node) if isinstance(part, ast.JoinedStr)]
    said += [node.value for node in returned if isinstance(node.value, ast.Constant)]
    merging = ast.walk(parse(_text(REPOSITORY / "include" / "housekeeping" / "compaction.py")))
    calls = [node for node in merging if isinstance(node, ast.Call)]
    said += [node.args[0] for node in calls if ast.unparse(node.func) == "TidemarkError"]
    # What a line begins with before its reason, and an error's message with its remedy.
    return {text for node in said if " " in (text := _literal(node))} - {"landing of …: …", "… — …"}


def test_line_of_housekeeping_has_a_row_when_something_is_left() -> None:
    table = rows(section(docs("runbook"), "#### Lines of housekeeping"))
    quoted = [_pattern(code) for row in table for code in code_spans(row[0])]
    assert len(_left()) > 10
    assert {text for text in _left() if not any(each.search(text) for each in quoted)} == set()


def test_alert_has_a_row_when_a_module_raises_it() -> None:
    words = {
        "include/airflow/notifier.py": ("a task failed", "housekeeping of a pipeline", "a stream"),
        "include/alerts/erasures.py": ("an [erasure]",),
        "include/alerts/key_limits.py": ("a view without a window",),
        "include/alerts/overdue.py": ("intervals are overdue",),
        "include/alerts/refused.py": ("a declaration is [refused]",),
        "include/intervals/reporting/asking.py": ("an interval waits for approval",),
    }
    raising = {path for path in _sources("include", "spark_jobs", "dags") if "alerts.raise_alert(" in _text(path)}
    assert {path.relative_to(REPOSITORY).as_posix() for path in raising} == words.keys()
    table = [row[0] for row in rows(section(docs("runbook"), "### Alerts"))]
    begins = [begin for each in words.values() for begin in each]
    assert [begin for begin in begins if not any(cell.startswith(begin) for cell in table)] == []


def test_reasons_equal_the_code_when_documented() -> None:
    raised = {"poison", "unknown_schema"}
    for node in _nodes("spark_jobs/decoding"):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            reason = _literal(node.args[0])
            if node.func.id in {"because", "_because", "failure", "Unusable"} and re.fullmatch(r"[a-z_0-9]+", reason):
                raised.add(reason)
    table = rows(section(docs("interface"), "## Quarantine"))
    assert {reason for cell, _ in table for reason in code_spans(cell)} == raised


def test_fates_are_the_same_when_readme_and_interface_list_them() -> None:
    [short] = re.findall(r"\*\*Every offset has one fate\*\*: ([^.]+)\.", README)
    [(_, full)] = [row for row in rows(section(docs("interface"), "## Words")) if row[0] == "fate"]
    fates = "archived", "empty", "quarantined", "erased", "gap"
    assert [tuple(re.findall("|".join(fates), text)) for text in (short, full)] == [fates, fates]


def test_columns_of_the_quarantine_equal_the_code_when_documented() -> None:
    module = parse(_text(REPOSITORY / "spark_jobs" / "sinks" / "landing.py"))
    written = next(
        ast.literal_eval(node.value)
        for node in module.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "QUARANTINE_COLUMNS"
    )
    columns = next(line for line in docs("interface").splitlines() if line.startswith("Columns: "))
    assert code_spans(columns) == written


def test_field_is_documented_when_the_verdict_has_it() -> None:
    text = section(docs("interface"), "## Verdict")
    named = {*re.findall(r'"(\w+)"', text), *code_spans(text)}
    assert Verdict(pipeline="", interval={}, code_version="").as_json().keys() - named == set()
    classes = rows(text.split("one of these classes", 1)[1])
    assert {code_spans(name)[0] for name, _ in classes} == {*_members(DifferenceClass), "matched"}


def _members(closed: Any) -> set[str]:
    """The members of a closed set, a Literal or an Enum of texts."""
    return {str(each) for each in get_args(closed) or closed}


def test_verb_has_a_row_when_it_prints_json() -> None:
    text = section(docs("interface"), "## JSON of the commands")
    described = {usage.verb for row in rows(text) for usage in usages(row[0])}
    assert {name for name, verb in verbs().items() if "--json" in verb.options} - described == set()


def test_key_is_documented_when_a_command_s_json_has_it() -> None:
    text = section(docs("interface"), "## JSON of the commands")
    named = set(re.findall(r'"(\w+)"', text))
    kinds: tuple[Any, ...] = (Done, Produced, Followed)
    assert {field.name for kind in kinds for field in fields(kind)} - named == {"check"}


def test_field_is_documented_when_a_proof_has_it() -> None:
    [made] = [
        node.value
        for function in _nodes("include/proof")
        if isinstance(function, ast.FunctionDef) and function.name == "assemble"
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Dict)
    ]
    written = {ast.literal_eval(key) for key in made.keys if key is not None}
    table = rows(section(docs("proofs"), "## What a proof says"))
    assert written - {name for row in table for name in code_spans(row[0])} == set()


def test_metrics_equal_the_code_when_documented() -> None:
    gauges = set(re.findall(r"^# TYPE (\w+) gauge", as_metrics([]), re.MULTILINE))
    assert set(re.findall(r"`(tidemark_[a-z_]+)`", docs("interface"))) == gauges


# Declarations


def _declared(text: str, **names: Any) -> Any:
    code = re.search(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert code is not None
    known = {name: getattr(spec, name) for name in spec.__all__} | names
    exec(compile(code[1], "page", "exec"), known)
    return known["PIPELINE"]


def is_part_of(shown: Any, declared: Any) -> bool:
    """Return whether a declaration says only what another one says; parts may be left out."""
    if isinstance(shown, tuple) and any(is_dataclass(each) for each in shown):
        rest = iter(declared)
        return all(any(is_part_of(each, other) for other in rest) for each in shown)
    if not is_dataclass(shown):
        return bool(shown == declared)
    values = ((field, getattr(shown, field.name)) for field in fields(shown))
    return type(shown) is type(declared) and all(
        value == _default(field) or is_part_of(value, getattr(declared, field.name)) for field, value in values
    )


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def test_declaration_equals_the_shipped_one_when_the_readme_shortens_it() -> None:
    shown = _declared(README, NEST_LOG=nest_cameras.NEST_LOG, CAMERA=nest_cameras.CAMERA)
    assert is_part_of(shown, nest_cameras.PIPELINE)


def test_example_is_valid_when_copied() -> None:
    assert _declared(docs("declaring")).tables == ("door_bells",)


def test_word_is_documented_when_declarations_may_use_it() -> None:
    words = {name for name in spec.__all__ if isinstance(getattr(spec, name), type)}
    # The format of the files adds it by itself.
    assert words - set(code_spans(docs("declaring"))) == {"Fits"}


def test_pipelines_and_topics_equal_the_code_when_documented() -> None:
    table = {code_spans(name)[0]: reads for name, reads, *_ in rows(docs("pipelines").split("\n## ", 1)[0])}
    assert tuple(sorted(table)) == SHIPPED
    for name, reads in table.items():
        assert set(load_pipeline(name).source.named) <= set(code_spans(reads))


def test_copies_keep_their_revisions_too_when_a_page_shows_longer_retention() -> None:
    shown = [code for text in PAGES.values() for code in code_spans(text) if re.match(r"Retention\(.*replaced=", code)]
    declared = [eval(code, {"Retention": spec.Retention}) for code in shown]
    assert declared
    assert [each for each in declared if parse_duration(each.revisions) < parse_duration(each.replaced)] == []


def test_tries_of_an_interval_equal_the_code_when_documented() -> None:
    [retries] = re.findall(r'"retries": (\d+)', (REPOSITORY / "dags" / "intervals.py").read_text(encoding="utf-8"))
    assert retries == "6"
    for name, said in (
        ("runbook", "six times, within a quarter of an hour"),
        ("deployment", "each of the task's seven tries"),
    ):
        assert said in docs(name)
    assert "interval is tried seven times, within a quarter of an hour" in docs("deployment").replace("\n", " ")


def test_formats_equal_the_code_when_documented() -> None:
    text = section(docs("formats"), "## Files of an archive table")
    assert {each for name, *_ in rows(text) for each in code_spans(name)} == set(FILE_FORMATS)


# Links and paths


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-")
        again = sum(bool(re.fullmatch(rf"{re.escape(slug)}(-\d+)?", each)) for each in found)
        found.append(f"{slug}-{again}" if again else slug)
    return set(found)


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md"])
def test_relative_link_leads_somewhere_when_a_page_has_it(page: str) -> None:
    text = PAGES.get(page, CHANGELOG)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http:", "https:")):
            continue
        path, _, anchor = target.partition("#")
        file = (REPOSITORY / page).parent / path if path else REPOSITORY / page
        if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
            broken.append(target)
    assert broken == []


def test_link_leads_to_the_procedure_when_it_leads_to_the_runbook_s_operations() -> None:
    assert [page for page, text in PAGES.items() if re.search(r"(runbook\.md|\()#operations\)", text)] == []


def test_heading_of_the_runbook_exists_when_a_message_quotes_it() -> None:
    texts = [_literal(node) for node in _nodes("include", "spark_jobs", "expectations")]
    quoted = {heading for text in texts if "docs/runbook.md" in text for heading in re.findall("“([^”]+)”", text)}
    assert len(quoted) > 3
    assert quoted - set(re.findall(r"^#+ (.+)$", docs("runbook"), re.MULTILINE)) == set()


def test_page_is_linked_from_the_readme_when_it_exists() -> None:
    linked = {target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", README)}
    assert PAGES.keys() - linked == {"README.md"}


def is_there(path: str) -> bool:
    """Whether a cited path of the repository exists; those of the invented pipelines as `./tidemark new` names them."""
    scaffolded = (*new_pipeline._FILES.values(), new_pipeline._SAMPLE)
    if path in {pattern.format(name) for pattern in scaffolded for name in EXAMPLES}:
        return True
    return any(REPOSITORY.glob(path)) if "*" in path else (REPOSITORY / path).exists()


@each_page
def test_every_path_exists_when_a_page_cites_it(page: str) -> None:
    pattern = r"(?<![\w/.<-])(?:include|spark_jobs|tests|dags|expectations)/[\w./*-]*"
    cited = {path.rstrip(".") for path in re.findall(pattern, PAGES[page])}
    assert {path for path in cited if not is_there(path)} == set()


def test_contract_is_not_cited_when_it_is_not_shipped() -> None:
    assert [page for page, text in PAGES.items() if "CONTRACT" in text] == []


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md"])
def test_path_of_a_machine_is_not_named_when_a_page_is_written(page: str) -> None:
    assert not re.search(r"(?<![\w.])/(?:home|root|work|Users)/", PAGES.get(page, CHANGELOG))


# The README itself, and what lies beside it


@each_page
def test_cast_gives_null_when_a_page_recommends_one(page: str) -> None:
    # In Spark's ANSI mode a plain one throws, and a text that is no number would end the stream.
    plain = r"(?<!try_)\bcast (?:it|them|the (?:text|value|column))\b"
    assert re.findall(plain, " ".join(PAGES[page].replace("`", "").split())) == []


def test_readme_is_short_when_it_is_read() -> None:
    assert len(README.splitlines()) <= MOST_LINES
    assert len(README.split()) <= MOST_WORDS


def test_figures_are_short_and_begin_with_targets_met_or_missed_when_they_are_read() -> None:
    opening = rows(docs("figures").split("\n## ", 1)[0])
    assert opening
    assert [row for row in opening if bool(row[2]) != bool(re.search("met|missed", row[3]))] == []
    assert len(docs("figures").split()) <= MOST_WORDS_OF_FIGURES


@each_page
def test_cell_is_short_when_a_page_has_a_table(page: str) -> None:
    assert [cell for row in rows(PAGES[page]) for cell in row if len(cell) > LONGEST_CELL] == []


def test_picture_is_self_contained_when_shown() -> None:
    picture = ElementTree.parse(REPOSITORY / "include" / "docs" / "images" / "data-way.svg")
    assert picture.getroot().get("viewBox")
    text = ElementTree.tostring(picture.getroot(), encoding="unicode")
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"<[^>]*(href|src)=|<script|@import", text.replace("xmlns:href", ""))


def test_changelog_names_the_version_when_the_project_has_it() -> None:
    version = re.search(r'^version = "(.+)"$', (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert f"## [{version[1]}]" in CHANGELOG


def test_text_is_unmodified_when_the_license_is_read() -> None:
    text = (REPOSITORY / "LICENSE").read_text(encoding="utf-8")
    assert text.lstrip().startswith("Apache License\n                           Version 2.0, January 2004")
    assert text.rstrip().endswith("limitations under the License.")
    assert len(text.splitlines()) == 202
