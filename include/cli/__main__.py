"""The `tidemark` command; the launcher runs `python -m include.cli`."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import Any

import typer
from typer.core import TyperGroup

from include.cli import PASS_ARGUMENTS_ON, VERBS
from include.environment import foreign
from include.errors import TidemarkError, UsageError, one_line

# Typer bundles its own copy of Click and does not export the base class of that copy's usage errors.
_WRONG_USAGE: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


class _AsGiven:
    """Leaves an option's text or flag unchanged. Otherwise Typer would use Pydantic, for any kind of value."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value; leave to Typer what is not simply a text or a flag."""
        if not param.multiple and param.nargs == 1 and (value is None or isinstance(value, self._kind)):
            return value
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def _read_lightly(params: list[Any]) -> list[Any]:
    """Leave texts and flags as they are given; return the parameters."""
    for param in params:
        described = getattr(param, "type_descriptor", None)
        if described is not None and described.annotation in (str, bool) and described.parameter_info.parser is None:
            param._runtime_param = _AsGiven(described.annotation)
    return params


class Verbs(TyperGroup):
    """All verbs; each is imported with its module when it is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all verbs in the order of the list."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the verb of that name; None when there is none."""
        if cmd_name not in VERBS:
            return None
        verb = VERBS[cmd_name]
        defined = getattr(import_module(f"include.cli.{verb.module}"), verb.defined_as or cmd_name.replace("-", "_"))
        verbs = typer.Typer(rich_markup_mode=None)
        if isinstance(defined, typer.Typer):
            verbs.add_typer(defined, name=cmd_name)
        else:
            verbs.command(cmd_name, context_settings=PASS_ARGUMENTS_ON if verb.passes_on else None)(defined)
        # With a callback it is a group even if it has one verb.
        verbs.callback()(lambda: None)
        group: Any = typer.main.get_command(verbs)
        command = group.commands[cmd_name]
        for each in (command, *getattr(command, "commands", {}).values()):
            # When requested here, they include `--help`, and the command keeps them.
            _read_lightly(each.get_params(typer.Context(each, **each.context_settings)))
        return command

    def get_params(self, ctx: Any) -> Any:
        """Return the options before the verb."""
        return _read_lightly(super().get_params(ctx))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of verbs."""
        limit = formatter.width - 6 - max(map(len, VERBS))
        with formatter.section("Commands"):
            formatter.write_dl([(name, shorten(verb.summary, limit, placeholder="…")) for name, verb in VERBS.items()])


app = typer.Typer(
    name="tidemark",
    cls=Verbs,
    help="A Lambda pipeline for Kafka, Spark and Airflow in which every offset is accounted for.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _main(debug: bool = typer.Option(False, "--debug", help="show tracebacks")) -> None:
    if debug:
        os.environ["TIDEMARK_DEBUG"] = "1"


class _Output(io.FileIO):
    """A standard stream that discards what is written once its reader has gone, e.g. `head`.

    That is no failure: the command goes on, and ends with its own exit code.
    """

    def write(self, data: Any, /) -> int:
        """Write bytes and return how many are done with."""
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def _open_streams() -> None:
    """Let a standard stream fail no command because the caller has closed it, or its reader has gone."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # The caller has closed it.
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif stream is getattr(sys, f"__{name}__"):
            raw = io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False))
            # With PYTHONUNBUFFERED, Python's own writes through, to a file without a buffer.
            by_line = stream.line_buffering or stream.write_through
            opened = io.TextIOWrapper(raw, stream.encoding, stream.errors, line_buffering=by_line)
            setattr(sys, name, opened)


def _check_utf8(arguments: Sequence[str]) -> None:
    """Raise UsageError when an argument is not UTF-8: the ledger, Kafka and JSON take no such text."""
    for number, each in enumerate(arguments, 1):
        if any("\ud800" <= character <= "\udfff" for character in each):
            raise UsageError(f"argument {number} is not UTF-8", remedy="encode it in UTF-8")


def _with_debug_first(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `--debug` before the verb where it comes after it.

    What follows `--` is left, and so is what a verb gives to another program.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    before, verb = arguments[:end], VERBS.get(_verb(arguments))
    if "--debug" not in before or verb is None or verb.passes_on:
        return list(arguments)
    return ["--debug", *(each for each in before if each != "--debug"), *arguments[end:]]


def _verb(arguments: Sequence[str]) -> str:
    """Return the verb; empty if there is none."""
    return next((each for each in arguments if not each.startswith("-")), "")


def _end_on_signals() -> None:
    """End with 0 at SIGTERM and SIGINT: a stream that is asked to stop while its verb is imported has read nothing."""
    for number in (signal.SIGTERM, signal.SIGINT):
        # Not by an exception: an import may make another one of it.
        signal.signal(number, lambda *_: os._exit(0))


def main() -> int:
    """Run the command line and return its exit code (see include/errors.py)."""
    _open_streams()
    foreign.take_out_proxies(os.environ)
    arguments = _with_debug_first(sys.argv[1:])
    # With `--stop`, 0 says that the running driver was asked.
    if _verb(arguments) == "stream" and "--stop" not in arguments:
        _end_on_signals()
    try:
        _check_utf8(sys.argv[1:])
        code = app(arguments, standalone_mode=False, prog_name="tidemark")
    except TidemarkError as error:
        if os.environ.get("TIDEMARK_DEBUG") == "1":
            traceback.print_exc()
        if not error.is_reported:
            print(f"tidemark: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        from include.lake import disks, object_store
        from include.settings import settings

        if os.environ.get("TIDEMARK_DEBUG") == "1":
            traceback.print_exc()
        if error.errno == errno.ENOSPC:
            failed: TidemarkError = disks.full_disk(str(error.filename or ""))
        else:
            failed = object_store.unreachable_error(settings().lake_uri, str(error)) or TidemarkError(
                one_line(str(error)), remedy="check that it exists, and that this user may write it"
            )
        print(f"tidemark: {failed}", file=sys.stderr)
        return failed.exit_code
    except _WRONG_USAGE as error:
        message = error.format_message()
        if type(error).__name__ == "NoArgsIsHelpError":
            print(message)
        else:
            print(f"tidemark: {' '.join(message.split())} — see ./tidemark --help", file=sys.stderr)
        return UsageError.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except Exception as error:
        if os.environ.get("TIDEMARK_DEBUG") == "1":
            traceback.print_exc()
        said = f"{type(error).__name__}: {one_line(str(error))}"
        unexpected = TidemarkError(said, remedy="a defect of Tidemark: --debug shows where")
        print(f"tidemark: {unexpected}", file=sys.stderr)
        return unexpected.exit_code
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
