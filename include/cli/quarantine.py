"""`quarantine list` and `quarantine show`."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Annotated

import typer

from include import quarantine
from include.cli.data import PipelineName
from include.cli.output import console, print_facts, print_json, print_table
from include.cli.services import AsJson
from include.offsets import TopicPartition
from include.pipelines import load_pipeline


def register(app: typer.Typer) -> None:
    """Add the group to the command."""
    group = typer.Typer(help="Records that could not be decoded or broke a rule.", no_args_is_help=True)
    group.command(name="list")(list_records)
    group.command()(show)
    app.add_typer(group, name="quarantine")


def list_records(
    pipeline: PipelineName,
    limit: Annotated[int, typer.Option("--limit", min=1, help="how many records to list")] = 50,
    as_json: AsJson = False,
) -> None:
    """Records in quarantine with their coordinates and reasons, and how many there are of each."""
    declared = load_pipeline(pipeline)
    if as_json:
        print_json(list(islice(quarantine.records(declared.name), limit)))
        return
    reasons: Counter[str] = Counter()
    shown: list[list[object]] = []
    for record in quarantine.records(declared.name):
        reasons[record["reason"]] += 1
        if len(shown) < limit:
            where = f"{record['kafka_topic']}-{record['kafka_partition']}"
            shown.append([where, record["kafka_offset"], record["kafka_timestamp"], record["reason"], record["detail"]])
    print_table(["topic partition", "offset", "timestamp", "reason", "detail"], shown)
    console.print()
    print_table(["reason", "records"], reasons.most_common())


def show(
    pipeline: PipelineName,
    topic: Annotated[str, typer.Argument(help="topic of the record")],
    partition: Annotated[int, typer.Argument(help="number of its topic partition")],
    offset: Annotated[int, typer.Argument(help="its offset")],
    as_json: AsJson = False,
) -> None:
    """One record whole: coordinates, reason, key, value and headers, safe to print."""
    declared = load_pipeline(pipeline)
    found = quarantine.find(declared.name, TopicPartition(topic, partition), offset)
    headers = [(name, quarantine.printable(value)) for name, value in _pairs(found.pop("headers"))]
    safe = {**found, "key": quarantine.printable(found["key"]), "value": quarantine.printable(found["value"])}
    if as_json:
        print_json({**safe, "headers": headers})
    else:
        print_facts({**safe, "headers": headers})


def _pairs(headers: list[dict[str, bytes]] | None) -> list[tuple[str, bytes | None]]:
    return [(str(header["key"]), header["value"]) for header in headers or []]
