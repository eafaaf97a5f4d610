"""Field names of a sample come from elsewhere: in the modules that are made of it they are names and nothing else."""

from __future__ import annotations

import ast
import json
import random
from pathlib import Path

import pytest

from include.errors import UsageError
from include.pipelines.spec.ddl import Field, fields_of
from include.producing.samples import Sampled
from include.scaffold import new_pipeline
from include.scaffold.new_pipeline import write_pipeline
from include.scaffold.schema import read_sample
from tests.support.corpora import NAUGHTY

HOSTILE = [
    '"""\nraise SystemExit("run")\nNAME = """',
    'ends with a quote"',
    '""',
    "back\\slash",
    "\\",
    "\\N{DIGIT ONE}\\x41\\",
    "two\nlines\r\tand a tab",
    "{{ 7 * 7 }}{% raw %}",
    "a,evil: TIMESTAMP>,b<",
    "caf\u00e9 \U0001f600 \u202e\u2028\u00a0\x00\x1b[2J",
    "' + exit(1) + '",
]


def sample_of(folder: Path, name: str) -> Path:
    """A message with the name at the top, in an object, and in objects of an array."""
    at = "2026-11-20T05:00:00Z"
    message = {"at": at, name: 1, "by": {"at": at, name: {name: 1.5}}, "all": [{name: True}]}
    file = folder / "sample.jsonl"
    file.write_text(json.dumps(message) + "\n", encoding="utf-8")
    return file


def texts_of(module: Path) -> dict[str, str]:
    """The texts that a module assigns. It may hold nothing that runs beside them, the declaration and imports."""
    found: dict[str, str] = {}
    docstring, *statements = ast.parse(module.read_text(encoding="utf-8")).body
    assert isinstance(docstring, ast.Expr)
    assert isinstance(docstring.value, ast.Constant)
    for each in statements:
        assert isinstance(each, ast.ImportFrom | ast.Assign), ast.unparse(each)
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant):
            found[ast.unparse(each.targets[0])] = each.value.value
    return found


def names_within(fields: tuple[Field, ...]) -> list[str]:
    return [name for each in fields for name in ([each.name] if each.name else []) + names_within(each.inner)]


def check_modules(folder: Path, name: str) -> None:
    made = write_pipeline("hostile", sample_of(folder, name))
    texts = texts_of(folder / "include/pipelines/hostile.py")
    assert set(texts) <= {"MESSAGE", "ROW"}
    assert names_within(fields_of(texts["MESSAGE"])) == ["at", name, "by", "at", name, name, "all", name]
    assert made.event_time == "at"
    row = fields_of(texts.get("ROW", texts["MESSAGE"]))
    assert names_within(row)[2:] == ["by", "at", name, name, "all", name]
    transforms = ast.parse((folder / "spark_jobs/transforms/hostile.py").read_text(encoding="utf-8"))
    maps = [ast.literal_eval(each) for each in ast.walk(transforms) if isinstance(each, ast.Dict)]
    columns = {"at": "at", name: row[1].name, "by": "by", "all": "all"}
    assert maps == ([columns] if "ROW" in texts else [])
    for path in made.files:
        (folder / path).unlink()


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_exactly_those_of_the_sample_when_they_look_like_code(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_pipeline, "REPOSITORY", tmp_path)
    check_modules(tmp_path, name)


def test_names_of_an_object_are_exactly_its_own_when_they_are_naughty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_pipeline, "REPOSITORY", tmp_path)
    # Names that differ in case alone are refused.
    names = list({each.lower(): each for each in NAUGHTY if each and "`" not in each}.values())
    assert len(names) > 400
    sample = tmp_path / "sample.jsonl"
    sample.write_text(json.dumps({"at": "2026-11-20T05:00:00Z", "by": dict.fromkeys(names, 1)}), encoding="utf-8")
    write_pipeline("hostile", sample)
    texts = texts_of(tmp_path / "include/pipelines/hostile.py")
    assert names_within(fields_of(texts["MESSAGE"])) == ["at", "by", *names]


def test_times_are_found_when_names_beside_them_hold_signs_of_types(tmp_path: Path) -> None:
    sample = read_sample(sample_of(tmp_path, "a,b: TIMESTAMP>,c<"))
    assert sample.times() == ["at", "by.at"]
    with pytest.raises(UsageError, match="cannot be a column"):
        read_sample(sample_of(tmp_path, "`"))


def test_message_is_whole_when_it_holds_a_character_that_python_takes_for_the_end_of_a_line(tmp_path: Path) -> None:
    messages = [{"at": "2026-11-20T05:00:00Z", "by": f"a{each}b"} for each in ("\x85", "\u2028", "\u2029")]
    file = tmp_path / "sample.jsonl"
    file.write_text("".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in messages), encoding="utf-8")
    assert read_sample(file).messages == messages
    generated, rng = Sampled(file, event_time="at"), random.Random(1)
    drawn = {json.loads(generated.message(None, rng))["by"] for _ in range(50)}
    assert drawn == {each["by"] for each in messages}
