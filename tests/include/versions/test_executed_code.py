"""What a root reaches, shown on small trees: only that is in the text, and no name of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.errors import TidemarkError, UsageError
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
    "statement",
    [
        'CODES["b"] = 2',
        'CODES["a"]["b"] += 2',
        "CODES.update(b=2)",
        'CODES.setdefault("b", {}).default = 2',
        'for name in "xy":\n    CODES[name] = 2',
        "if CODES:\n    CODES.pop(2)",
        "filled(CODES, 2)",
        "[CODES.pop(2) for _ in CODES]",
    ],
)
def test_text_changes_when_a_statement_changes_a_value_that_is_reached(tmp_path: Path, statement: str) -> None:
    declared = "CODES = {}\nFACTOR = CODES"
    found = [
        text(tmp_path, root=("FACTOR = 2", f"{declared}\n{each}"))
        for each in ("", statement, statement.replace("2", "3"))
    ]
    assert len(set(found)) == 3
    outside = [
        text(tmp_path, "include.root:CODES", root=("FACTOR = 2", f"{declared}\n{each}")) for each in ("", statement)
    ]
    assert outside[0] != outside[1]


def test_text_stays_when_a_statement_changes_what_is_not_reached_or_only_calls_it(tmp_path: Path) -> None:
    before = text(tmp_path)
    for statement in ("OTHERS = {}\nOTHERS.update(a=2)", "helper(2)", "tools.first(2)"):
        assert text(tmp_path, root=("FACTOR = 2", f"FACTOR = 2\n{statement}")) == before


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


@pytest.mark.parametrize("content", [b"def root(:\n", b"\xff", b"a = 1\0"])
def test_error_names_the_module_when_it_cannot_be_read_as_python(content: bytes, tmp_path: Path) -> None:
    text(tmp_path)
    (tmp_path / "include" / "root.py").write_bytes(content)
    with pytest.raises(UsageError, match=r"^include\.root cannot be read as Python: "):
        executed_code(["include.root:root"], [], tmp_path)


COMMON = """
from include.jobs.deeper.measures import *

_UNIT = 1

def clean(value):
    return value * _UNIT

def other(value):
    return value

def _hidden(value):
    return value
"""


def package_text(folder: Path, imported: str, called: str, changes: dict[str, tuple[str, str]] | None = None) -> str:
    """Return the code of a root that imports and calls this, beside helpers with these changes of files, by stem."""
    files = {
        "include/__init__.py": "",
        "include/jobs/__init__.py": "from .common import other as shown\n",
        "include/jobs/root.py": f"{imported}\n\ndef root(value):\n    return {called}\n",
        "include/jobs/common.py": COMMON,
        "include/jobs/later.py": "def clean(value):\n    return value + 5\n",
        "include/jobs/deeper/__init__.py": "from . import measures\n",
        "include/jobs/deeper/measures.py": "from ..common import _hidden\n\ndef scaled(n):\n    return _hidden(n)\n",
    }
    for path, source in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        old, new = (changes or {}).get(file.stem, ("", ""))
        assert old in source
        file.write_text(source.replace(old, new) if old else source)
    return executed_code(["include.jobs.root:root"], (), folder)


HELPER = {"common": ("value * _UNIT", "value - _UNIT")}
HIDDEN = {"common": ("def _hidden(value):\n    return value", "def _hidden(value):\n    return -value")}


@pytest.mark.parametrize(
    ("imported", "called", "changes"),
    [
        ("from .common import clean", "clean(value)", HELPER),
        ("from . import common", "common.clean(value)", HELPER),
        ("from . import common as helpers", "helpers.clean(value)", HELPER),
        ("from ..jobs.common import clean", "clean(value)", HELPER),
        ("from .. import jobs", "jobs.common.clean(value)", HELPER),
        ("from . import shown", "shown(value)", {"common": ("return value\n\ndef _", "return -value\n\ndef _")}),
        ("from .deeper import measures", "measures.scaled(value)", HIDDEN),
        ("from include.jobs.common import *", "clean(value)", HELPER),
        ("from .common import *", "clean(value)", HELPER),
        ("from .common import *", "scaled(value)", HIDDEN),
        ("from .common import *\nfrom .later import *", "clean(value)", {"later": ("+ 5", "+ 6")}),
    ],
)
def test_text_changes_when_a_helper_does_that_is_imported_relatively_or_by_a_star(
    tmp_path: Path, imported: str, called: str, changes: dict[str, tuple[str, str]]
) -> None:
    assert package_text(tmp_path, imported, called, changes) != package_text(tmp_path, imported, called)


@pytest.mark.parametrize(
    ("imported", "called"),
    [
        ("from .common import clean", "clean(value)"),
        ("from . import common", "common.clean(value)"),
        ("from .common import *", "clean(value)"),
        ("from .common import clean\nfrom .later import *\nfrom .common import clean", "clean(value)"),
    ],
)
def test_text_is_the_same_however_a_helper_is_imported(tmp_path: Path, imported: str, called: str) -> None:
    absolute = package_text(tmp_path, "from include.jobs.common import clean", "clean(value)")
    assert package_text(tmp_path, imported, called) == absolute
    unused = {"common": ("def other(value):\n    return value", "def other(value):\n    return -value")}
    assert package_text(tmp_path, imported, called, unused) == absolute


@pytest.mark.parametrize(
    ("named", "changes_version"),
    [
        ('__all__ = ["clean"]', True),
        ('__all__ = ("other",)\n__all__ += ["clean"]', True),
        ('__all__ = ["other"]', False),
    ],
)
def test_star_imports_only_what_all_names(tmp_path: Path, named: str, changes_version: bool) -> None:
    declared = {"common": ("_UNIT = 1", f"_UNIT = 1\n{named}")}
    changed = {"common": ("_UNIT = 1", f"_UNIT = 2\n{named}")}
    before = package_text(tmp_path, "from .common import *", "clean(value)", declared)
    assert (package_text(tmp_path, "from .common import *", "clean(value)", changed) != before) == changes_version


def test_error_says_what_to_write_when_a_star_s_names_are_made_at_run_time(tmp_path: Path) -> None:
    made = {"common": ("_UNIT = 1", "_UNIT = 1\n__all__ = [each for each in dir()]")}
    with pytest.raises(TidemarkError, match=r"include\.jobs\.common.*__all__"):
        package_text(tmp_path, "from .common import *", "clean(value)", made)


def test_modules_that_import_each_other_by_stars_have_a_text(tmp_path: Path) -> None:
    each_other = {
        "later": ("def clean", "from .common import *\n\ndef clean"),
        "common": ("_UNIT = 1", "from .later import *"),
    }
    assert package_text(tmp_path, "from .common import *\nfrom .later import *", "other(len(value))", each_other)


def test_error_names_the_module_when_a_relative_import_leaves_the_packages(tmp_path: Path) -> None:
    with pytest.raises(TidemarkError, match=r"include\.jobs\.root"):
        package_text(tmp_path, "from ....common import clean", "clean(value)")
