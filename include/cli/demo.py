"""The verb `demo`: the main job on a fresh machine, through Airflow."""

from __future__ import annotations

from typing import Annotated

import typer

from include.cli.output import console, print_facts, print_table, progress
from include.pipelines import load_pipeline


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command()(demo)


def demo(
    pipeline: Annotated[str, typer.Argument(metavar="[PIPELINE]", help="name of a declared pipeline")] = "nest_cameras",
) -> None:
    """Run a pipeline end to end and show the published table.

    Start all services, produce records, and run stream and first interval through Airflow.
    """
    from include.airflow.demo_run import run_demo

    declared = load_pipeline(pipeline)
    result = run_demo(declared, progress)
    console.print()
    print_table(
        ["registered table", "partition", "rows", "content hash"],
        [[f"lake.{r['table']}", r["partition"], r["rows"], r["content_hash"]] for r in result.verdict["registered"]],
    )
    console.print()
    pages = f"{result.airflow.rstrip('/')}/tidemark"
    archive = next((r for r in result.verdict["registered"] if r["table"] == declared.table), None)
    print_facts(
        {
            "Airflow": f"{result.airflow}  (user {result.user}, password {result.password})",
            "Pages": f"{pages}/  (with the same login)",
            "Report": _report(pages, declared.name, result.verdict["report"]),
            "Records": _sum_of_fates(result.verdict["records"]),
            "Reconciled": _key_counts(result.verdict["reconciliation"]),
            "Where from": f"./tidemark explain {archive['table']} {archive['partition']}" if archive else "",
            "Query": f'./tidemark sql "SELECT count(*) FROM lake.{declared.table}"',
            "Live": f"./tidemark top {declared.name} --serve" if declared.views else "",
            "Stop it all": "./tidemark down",
        }
    )


def _report(pages: str, pipeline: str, location: str) -> str:
    """Return where a browser finds the interval's report: its file, or its page where the file lies in a bucket."""
    if "://" not in location:
        return f"file://{location}"
    return f"{pages}/intervals/{pipeline}/{location.rsplit('/', 1)[-1].removesuffix('.html')}/report"


def _sum_of_fates(records: dict[str, int]) -> str:
    parts = " + ".join(f"{records[name]} {name}" for name in ("archived", "empty", "quarantined", "gaps"))
    return f"{records['in_ranges']} in ranges = {parts}"


def _key_counts(reconciliation: dict[str, int]) -> str:
    return "keys per window: " + ", ".join(f"{count} {name}" for name, count in sorted(reconciliation.items()))
