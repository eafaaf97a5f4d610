"""What a root reaches, shown on small trees: only that is in the text, and no name of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.errors import TidemarkError
from include.versions.executed_code import executed_code

ROOT = """
from include import tools
from include.tools import scaled as larger, Box

FACTOR = 2

def helper(value):
    return value * FACTOR

def unused(value):
    return value

def root(value):
    def inner(unused):
        return unused
    from include.late import late
    return tools.first(larger(helper(value))), Box(value).size, late(inner(value))
"""

TOOLS = """
import re
from include.deep import depth

class Box:
    side: int = 1

    def size(self):
        return depth()

def scaled(value):
    return re.sub("a", "b", value)

def first(value):
    return first(value[0]) if value else LIMIT

LIMIT = 3

def other():
    return 1
"""

FILES = {
    "include/__init__.py": "",
    "include/root.py": ROOT,
    "include/tools.py": TOOLS,
    "include/deep.py": "def depth():\n    return 7\n",
    "include/late.py": "def late(value):\n    return value\n",
}


def text(folder: Path, *boundary: str, **changes: tuple[str, str]) -> str:
    """Return the code that `include.root:root` reaches after these changes of files, by their stems."""
    for path, source in FILES.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        old, new = changes.get(file.stem, ("", ""))
        assert old in source
        file.write_text(source.replace(old, new) if old else source)
    return executed_code(["include.root:root"], boundary, folder)


@pytest.mark.parametrize(
    ("stem", "old", "new"),
    [
        ("root", "value * FACTOR", "value + FACTOR"),
        ("root", "FACTOR = 2", "FACTOR = 3"),
        ("tools", 're.sub("a"', 're.subn("a"'),
        ("tools", "import re", "import regex as re"),
        ("tools", "LIMIT = 3", "LIMIT = 4"),
        ("tools", "side: int = 1", "side: int = 2"),
        ("deep", "return 7", "return 8"),
        ("late", "return value", "return -value"),
    ],
)
def test_text_changes_when_what_is_reached_does(tmp_path: Path, stem: str, old: str, new: str) -> None:
    assert text(tmp_path, **{stem: (old, new)}) != text(tmp_path)


@pytest.mark.parametrize(
    ("stem", "old", "new"),
    [
        ("root", "def unused(value):\n    return value", "def unused(value):\n    return 2 * value"),
        ("root", "from include import tools", "import include.tools as tools"),
        ("root", "scaled as larger, Box", "Box, scaled as larger"),
        ("root", "def helper(value):", 'def helper(value: "Any") -> int:\n    """Words."""\n    # More words.'),
        ("root", "FACTOR = 2", 'FACTOR: int = 2\n"""Words."""'),
        ("tools", "def other():\n    return 1", "def other():\n    return 2"),
        ("tools", "import re\n", "import os\nimport re\n"),
    ],
)
def test_text_stays_when_only_other_code_words_or_imports_change(tmp_path: Path, stem: str, old: str, new: str) -> None:
    assert text(tmp_path, **{stem: (old, new)}) == text(tmp_path)


def test_only_constants_count_when_code_is_outside_the_boundary(tmp_path: Path) -> None:
    before = text(tmp_path, "include.tools")
    assert text(tmp_path, "include.tools", tools=("value[0]", "value[1]"), deep=("7", "8")) == before
    assert text(tmp_path, "include.late", late=("return value", "return -value")) == text(tmp_path, "include.late")
    constant = ("tools.first(", "tools.LIMIT, tools.first(")
    named = text(tmp_path, "include.tools", root=constant)
    assert text(tmp_path, "include.tools", root=constant, tools=("LIMIT = 3", "LIMIT = 4")) != named


def test_public_functions_count_when_a_module_is_a_value(tmp_path: Path) -> None:
    passed = ("return tools.first(", "return tools, tools.first(")
    before = text(tmp_path, root=passed)
    assert text(tmp_path, root=passed, tools=("def other():\n    return 1", "def other():\n    return 2")) != before


def test_definitions_are_written_once_when_they_name_each_other(tmp_path: Path) -> None:
    found = text(tmp_path, late=("return value", "from include.root import root\n    return root(value)"))
    assert len(found.splitlines()) == len(text(tmp_path).splitlines())


def test_error_names_a_root_or_boundary_when_it_does_not_exist(tmp_path: Path) -> None:
    text(tmp_path)
    for roots, boundary in ((["include.root:gone"], []), (["include.root:root"], ["include.gone"])):
        with pytest.raises(TidemarkError, match="gone, which is not there"):
            executed_code(roots, boundary, tmp_path)
