"""The modules of `expectations/`: a suite file for each pipeline, beside Tidemark's own."""

from __future__ import annotations

import importlib
from types import ModuleType

from include.errors import UsageError
from include.pipelines.spec import Pipeline


def suite_file(pipeline: Pipeline) -> ModuleType:
    """Return the pipeline's suite file. Raises UsageError when it is not there, or declares no `SUITES`."""
    name = f"expectations.{pipeline.name}"
    found = None
    try:
        found = importlib.import_module(name)
    except ModuleNotFoundError as error:
        # What the file itself imports may be missing, too.
        if error.name != name:
            raise
    if not hasattr(found, "SUITES"):
        raise UsageError(
            f"expectations/{pipeline.name}.py {'declares no SUITES' if found else 'is not there'}",
            remedy=f"write expectations/{pipeline.name}.py with SUITES = {{"
            + ", ".join(f'"{table}": []' for table in pipeline.tables)
            + "}, and what must hold of each table's rows",
            pipeline=pipeline.name,
        )
    assert found is not None
    return found
