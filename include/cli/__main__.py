"""The `tidemark` command; the launcher runs `python -m include.cli`."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import typer

from include.cli import data, demo, develop, generations, housekeeping, jobs, monitor, quarantine, services, top
from include.errors import TidemarkError, UsageError
from include.lake import object_store
from include.settings import settings

# Typer bundles its own copy of Click and does not export the base class of that copy's usage errors.
_WRONG_USAGE: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

app = typer.Typer(
    name="tidemark",
    help="A Lambda pipeline for Kafka, Spark and Airflow in which every offset is accounted for.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for module in (demo, services, data, jobs, top, monitor, generations, quarantine, housekeeping, develop):
    module.register(app)


@app.callback()
def _main(debug: bool = typer.Option(False, "--debug", help="show tracebacks")) -> None:
    if debug:
        os.environ["TIDEMARK_DEBUG"] = "1"


def main() -> int:
    """Run the command line and return its exit code (see include/errors.py)."""
    try:
        code = app(standalone_mode=False, prog_name="tidemark")
    except TidemarkError as error:
        if os.environ.get("TIDEMARK_DEBUG"):
            traceback.print_exc()
        print(f"tidemark: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        unreachable = object_store.unreachable_error(settings().lake_uri, str(error))
        if unreachable is None:
            raise
        if os.environ.get("TIDEMARK_DEBUG"):
            traceback.print_exc()
        print(f"tidemark: {unreachable}", file=sys.stderr)
        return unreachable.exit_code
    except _WRONG_USAGE as error:
        message = error.format_message()
        if type(error).__name__ == "NoArgsIsHelpError":
            print(message)
        else:
            print(f"tidemark: {' '.join(message.split())} — see ./tidemark --help", file=sys.stderr)
        return UsageError.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return 130
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
