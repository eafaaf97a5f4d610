"""Parsing beside finalizers that parse, too."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from include.settings import REPOSITORY

# Garbage that only the collector finds; when it is collected, it parses, and leaves garbage again.
PROGRAM = """
import ast, gc, sys
from pathlib import Path
from include.versions.syntax import parse

class Finalized:
    left = 1000
    def __init__(self):
        self.myself = self
    def __del__(self):
        ast.parse("at * last")
        if Finalized.left:
            Finalized.left -= 1
            Finalized()

Finalized()
gc.set_threshold({often})
try:
    print(len({called}(Path(ast.__file__).read_text()).body) > 10, gc.isenabled())
except SystemError:
    print("lost count")
Finalized.left = 0
"""


def printed(called: str, often: int = 50) -> str:
    """What the program prints, in a process of its own: the fault may come out anywhere in it."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    program = PROGRAM.replace("{called}", called).replace("{often}", str(often))
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_module_is_parsed_when_finalizers_of_garbage_parse_too() -> None:
    assert printed("parse") == "True True"


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="a fault of Python 3.11")
def test_python_s_own_parser_loses_count_then() -> None:
    # Where a collection falls depends on all that was allocated before, as by imports.
    assert any(printed("ast.parse", often) == "lost count" for often in (20, 30, 50, 70, 90))
