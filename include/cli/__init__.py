"""The command `./tidemark`: one module per group of verbs, all errors turned into one line and an exit code.

A verb's module is imported only when the verb is used: `VERBS` holds what the list of verbs needs.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from include.errors import UsageError

AsJson = Annotated[bool, typer.Option("--json", help="print JSON instead of text")]
PipelineName = Annotated[str, typer.Argument(metavar="PIPELINE", help="name of a declared pipeline")]

PASS_ARGUMENTS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Context settings of a verb that gives its arguments to another program."""


def refuse_options(context: typer.Context, where: str, *names: str) -> None:
    """Raise UsageError when the caller gave an option that has no effect, such as one of another mode of the verb.

    `where`: when it has none, e.g. `with --resume`. `names`: of the parameters.
    """
    for each in context.command.params:
        source = context.get_parameter_source(each.name or "")
        if each.name in names and source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"{each.opts[0]} has no effect {where}", remedy=f"leave {each.opts[0]} out")


class Verb(NamedTuple):
    """Where a verb is defined, and what `./tidemark --help` shows of it."""

    module: str
    """Module of this package that defines it, as a function or as a group of verbs."""
    summary: str
    """First sentence of the verb's docstring, without the full stop."""
    passes_on: bool = False
    """Whether it gives its arguments to another program."""
    defined_as: str = ""
    """Name in the module, where it is not the verb's."""


VERBS: dict[str, Verb] = {
    "demo": Verb("demo", "Run a pipeline end to end and show the published table"),
    "up": Verb("services", "Start embedded services (default: kafka and postgres)"),
    "down": Verb("services", "Stop embedded services (default: all); data and logs stay"),
    "status": Verb(
        "services",
        "Show where each service listens and whether it answers, and which intervals were never built",
    ),
    "doctor": Verb("services", "Check machine, services, ledger, catalog and files"),
    "airflow": Verb(
        "services", "Run Airflow's own command with the settings of the embedded Airflow", True, "run_airflow"
    ),
    "setup-database": Verb("services", "Create missing databases and tables on PostgreSQL"),
    "pipelines": Verb("data", "List the declared pipelines with topics, tables and DAGs"),
    "produce": Verb("demo", "Write generated messages or a stream's events to a topic"),
    "ranges": Verb("data", "List the pinned offset ranges of all intervals, or of some"),
    "explain": Verb("data", "Show where a table partition comes from"),
    "lag": Verb("data", "Show how many offsets each query is behind its topics"),
    "verify": Verb("data", "Check the proof of a registered interval"),
    "stream": Verb("jobs", "Run the continuous job in the foreground; SIGTERM or Ctrl-C stops it gracefully"),
    "interval": Verb(
        "jobs",
        "Run one interval end to end, as the DAG does, and print its verdict: in words on a terminal, else as JSON",
    ),
    "approve": Verb(
        "jobs",
        "Decide about an interval that failed only by warnings: it is registered, or, with `--refuse`, it is not",
    ),
    "rebuild": Verb(
        "jobs",
        "Build a registered partition again from its pinned ranges; 0 if it, the ledger and the registered files agree",
    ),
    "report": Verb(
        "live",
        "Give a pipeline's reports and the fates of the records over any offset ranges; nothing is registered",
    ),
    "sql": Verb("live", "Query the catalog with Spark SQL"),
    "tail": Verb(
        "live",
        "Show the records of a pipeline's topics as they come, decoded, or with the reason why not; Ctrl-C ends it",
    ),
    "shell": Verb(
        "live",
        "SQL over a pipeline as it is now; statements from the terminal, or from standard input, separated by `;`",
    ),
    "top": Verb(
        "live",
        "Show the largest keys per window, live, as the pipeline's `Top` report or first view says; Ctrl-C ends it",
    ),
    "monitor": Verb("monitor", "Serve the web pages and /metrics on this machine until Ctrl-C"),
    "alerts": Verb("monitor", "Alerts to operators: list the open ones, and dismiss those that nobody will resolve"),
    "new-generation": Verb(
        "generations",
        "Begin with new checkpoints where the archive ends; speed views are built again from the archive",
    ),
    "accept-loss": Verb(
        "generations",
        "Go on without offsets that Kafka removed before they were archived; they stay on record",
    ),
    "adopt": Verb("generations", "Go on with a topic that was deleted and created again, from its beginning"),
    "unsubscribe": Verb(
        "generations", "Stop reading a topic that was taken out of the source, or deleted where the source is a pattern"
    ),
    "outputs": Verb(
        "generations",
        "Show how far each output of rows has sent, what it waits for, and with --json the rows that it refused",
    ),
    "references": Verb("generations", "List the contents of references that were read from their sources, newest last"),
    "quarantine": Verb("quarantine", "Records that could not be decoded or broke a rule", defined_as="group"),
    "erase": Verb(
        "housekeeping",
        "Erase what is kept about a person or thing: rows of tables, landing, quarantine, views and topics of views",
    ),
    "rename": Verb(
        "housekeeping",
        "Build the intervals again whose files lack a renamed column's new name, so that tables show it",
    ),
    "housekeeping": Verb(
        "housekeeping",
        "Remove landing of registered intervals, old revisions and leftovers after their time; compact closed days",
    ),
    "test": Verb("develop", "Run the test suite, four modules at a time", passes_on=True),
    "bench": Verb("develop", "Run the benchmarks and print their ratios as JSON", passes_on=True),
    "new": Verb("develop", "Write a new pipeline from a sample of its messages"),
}
"""In the order of the list."""
