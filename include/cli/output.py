"""Output of the command: JSON for programs, tables and colour for people, progress on standard error."""

from __future__ import annotations

import json
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from textwrap import indent
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from include.monitor import exact_json
from include.monitor.text import is_shown


class _Console(Console):
    """Rich's console; only a terminal is one, whatever FORCE_COLOR or TTY_COMPATIBLE says: a pipe gets JSON."""

    @property
    def is_terminal(self) -> bool:
        """Whether what is written is shown to a person."""
        return self.file.isatty()


# Without a terminal there is no width to cut or wrap lines to.
console = _Console(width=None if sys.stdout.isatty() else 400)
progress_console = _Console(stderr=True, highlight=False, soft_wrap=True)


def has_reader(stream: int = 1) -> bool:
    """Return whether somebody can read standard output still: the other end of a pipe may be closed."""
    poll = select.poll()
    poll.register(stream, 0)
    return not any(event & select.POLLERR for _, event in poll.poll(0))


def clean(value: object) -> str:
    """Return a value as text that is safe to print: invisible characters replaced, rich's markup escaped."""
    text = str(value)
    if not text.isprintable():
        text = "".join(each if each in "\t\n" or is_shown(each) else "�" for each in text)
    return escape(text)


def progress(line: str) -> None:
    """Print a line of progress on standard error."""
    progress_console.print(f"[dim]tidemark:[/dim] {clean(line)}")


def suggest(command: str) -> None:
    """Name the next useful command, to a person at a terminal only."""
    if progress_console.is_terminal:
        progress(f"next: {command}")


@contextmanager
def working(what: str, total: float | None = None, *, as_json: bool = False) -> Iterator[Callable[[float], None]]:
    """Show a bar during the block, at a terminal and unless JSON is asked for; a log stays as it is.

    Yields a function that takes how much of `total` is done. Without a total the bar only moves.
    """
    if as_json or not progress_console.is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=progress_console, transient=True) as shown:
        task = shown.add_task(clean(what), total=total)
        yield lambda done: shown.update(task, completed=done)


def print_json(value: Any) -> None:
    """Print a JSON document on standard output."""
    print(json.dumps(value, indent=2, default=str))


def print_result(facts: Mapping[str, object], *, as_json: bool) -> None:
    """Print names and values: in two columns on a terminal, as JSON elsewhere and where it is asked for."""
    if as_json or not console.is_terminal:
        print_json(facts)
    else:
        print_facts(facts)


def print_exact_json(value: Any) -> None:
    """Print a JSON document whose decimals are numbers with all their digits."""
    print(exact_json.dumps(value, indent=2))


def print_json_rows(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows as a list of JSON objects; of columns with one name, each later one has a number: `name_2`."""
    names = _distinct(columns)
    print_json_list(dict(zip(names, row, strict=True)) for row in rows)


def print_json_list(values: Iterable[object]) -> None:
    """Print values as a JSON list, each as it comes: there may be more than fit into memory."""
    before = "["
    for each in values:
        print(before, indent(exact_json.dumps(each, indent=2), "  "), sep="\n", end="")
        before = ","
    print("[]" if before == "[" else "\n]")


def _distinct(names: Sequence[str]) -> list[str]:
    """Return the names, each later one of several that are equal with a number."""
    found: dict[str, None] = {}
    for name in names:
        numbered = (name, *(f"{name}_{number}" for number in range(2, len(names) + 1)))
        found[next(each for each in numbered if each not in found)] = None
    return list(found)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines, each as long as it is."""
    for line in lines:
        console.print(clean(line), highlight=False, soft_wrap=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
    """Print a table; title, columns and cells may come from data."""
    header = map(clean, columns)
    table = Table(
        *header, title=clean(title) or None, title_justify="left", header_style="bold", box=None, pad_edge=False
    )
    for row in rows:
        table.add_row(*(clean(value) for value in row))
    console.print(table)


def print_facts(facts: Mapping[str, object]) -> None:
    """Print names and values in two aligned columns."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in facts.items():
        table.add_row(f"[bold]{clean(name)}[/bold]", clean(value))
    console.print(table)
