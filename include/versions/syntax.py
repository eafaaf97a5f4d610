"""Python's parser, as drivers can use it."""

from __future__ import annotations

import ast
import gc


def parse(text: str) -> ast.Module:
    """Return the syntax tree of a module's text.

    No garbage is collected meanwhile: a finalizer that parses too, as one of Py4J's whose error is logged with its
    stack, makes Python 3.11 lose count of its recursion and raise SystemError.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        if was_enabled:
            gc.enable()
