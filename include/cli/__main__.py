"""`python -m include.cli`: what the launcher runs."""

from __future__ import annotations

import os
import sys
import traceback

import click
import typer

from include.cli import data, demo, develop, jobs, quarantine, services
from include.errors import TidemarkError, UsageError

app = typer.Typer(
    name="tidemark",
    help="A Lambda pipeline for Kafka, Spark and Airflow in which every offset is accounted for.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for module in (demo, services, data, jobs, quarantine, develop):
    module.register(app)


@app.callback()
def _main(debug: bool = typer.Option(False, "--debug", help="Show tracebacks.")) -> None:
    if debug:
        os.environ["TIDEMARK_DEBUG"] = "1"


def main() -> int:
    """Run the command line; the exit code (CONTRACT: exit codes)."""
    try:
        code = app(standalone_mode=False)
    except TidemarkError as error:
        if os.environ.get("TIDEMARK_DEBUG"):
            traceback.print_exc()
        print(f"tidemark: {error}", file=sys.stderr)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return UsageError.exit_code
    except click.ClickException as error:
        print(f"tidemark: {' '.join(error.format_message().split())} — see ./tidemark --help", file=sys.stderr)
        return UsageError.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
