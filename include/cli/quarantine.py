"""`quarantine list`, `show`, `replay` and `discard`."""

from __future__ import annotations

import sys
from collections import Counter
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from include import quarantine
from include.cli import AsJson, PipelineName
from include.cli.output import (
    console,
    print_facts,
    print_json,
    print_json_list,
    print_result,
    print_table,
    suggest,
    working,
)
from include.errors import UsageError
from include.offsets import TopicPartition
from include.pipelines import load_pipeline
from include.processes import user_at_host
from include.quarantine import Selection
from include.quarantine.misfits import misfits

Topic = Annotated[str | None, typer.Option("--topic", help="records of this topic")]
Partition = Annotated[int | None, typer.Option("--partition", min=0, help="records of this topic partition")]
Offset = Annotated[int | None, typer.Option("--offset", min=0, help="the record at this offset")]
TopicId = Annotated[
    str | None, typer.Option("--topic-id", help="of the topic with this id, where it was deleted and created again")
]
ReasonCode = Annotated[str | None, typer.Option("--code", "--reason", help="records with this reason code")]


class State(StrEnum):
    """What became of a quarantined record."""

    quarantined = "quarantined"
    replayed = "replayed"
    discarded = "discarded"


_SHOWN = 50
"""Records that are listed to a person."""

group = typer.Typer(help="Records that could not be decoded or broke a rule.", no_args_is_help=True)


@group.command(name="list")
def list_records(
    pipeline: PipelineName,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help=f"how many records to list; {_SHOWN}, or all with --json")
    ] = None,
    reason: ReasonCode = None,
    state: Annotated[State | None, typer.Option("--state", help="records of this state")] = None,
    as_json: AsJson = False,
) -> None:
    """Records in quarantine with coordinates, reasons and state, and how many there are of each."""
    declared = load_pipeline(pipeline)
    records = quarantine.records(declared.name, Selection(reason=reason), state=state and state.value)
    if as_json:
        print_json_list(islice(records, limit))
        return
    limit = limit or _SHOWN
    counted: Counter[tuple[str, str]] = Counter()
    shown: list[list[object]] = []
    first = ""
    for record in records:
        counted[record["reason"], record["state"]] += 1
        if len(shown) < limit:
            first = first or f"{record['kafka_topic']} {record['kafka_partition']} {record['kafka_offset']}"
            where = f"{record['kafka_topic']}-{record['kafka_partition']}"
            became = " ".join(str(record[name]) for name in ("state", "since", "interval") if record[name])
            coordinates = [where, record["kafka_offset"], record["kafka_timestamp"]]
            shown.append([*coordinates, record["reason"], record["detail"], became, record["note"]])
    if not counted:
        console.print("no such record is in quarantine" if reason or state else "nothing is in quarantine")
        return
    print_table(["topic partition", "offset", "timestamp", "reason", "detail", "state", "note"], shown)
    console.print()
    print_table(["reason", "state", "records"], [[*names, count] for names, count in counted.most_common()])
    suggest(f"./tidemark quarantine show {declared.name} {first}")


@group.command()
def show(
    pipeline: PipelineName,
    topic: Annotated[str, typer.Argument(help="topic of the record")],
    partition: Annotated[int, typer.Argument(min=0, help="number of its topic partition")],
    offset: Annotated[int, typer.Argument(min=0, help="its offset")],
    raw: Annotated[
        Path | None, typer.Option("--raw", help="write the value's bytes to this file (- for standard output) instead")
    ] = None,
    topic_id: TopicId = None,
    as_json: AsJson = False,
) -> None:
    """One record whole: coordinates, reason, key, value and headers, safe to print."""
    declared = load_pipeline(pipeline)
    record = quarantine.find(declared.name, TopicPartition(topic, partition), offset, topic_id)
    if raw is not None:
        _write_raw(raw, record["value"])
        return
    headers = [(quarantine.printable(name), quarantine.printable(value)) for name, value in _pairs(record["headers"])]
    safe = {name: quarantine.printable(record[name]) for name in ("key", "value")}
    facts = {**record, **safe, "headers": headers, "detail": quarantine.printable(record["detail"].encode())}
    wrong = misfits(declared.decoder, record)
    if as_json:
        print_json({**facts, "misfits": wrong})
    else:
        print_facts({**facts, "misfits": "; ".join(wrong)} if wrong else facts)
        named = f"--topic {topic} --partition {partition} --offset {offset}"
        of_id = f" --topic-id {topic_id}" if topic_id else ""
        suggest(f"./tidemark quarantine replay {declared.name} {named}{of_id}")


def _pairs(headers: list[dict[str, bytes]] | None) -> list[tuple[bytes, bytes | None]]:
    return [(str(header["key"]).encode(), header["value"]) for header in headers or []]


def _write_raw(target: Path, value: bytes | None) -> None:
    if value is None:
        raise UsageError("the record has no value (null)", remedy="leave out --raw")
    if str(target) == "-":
        sys.stdout.buffer.write(value)
        sys.stdout.buffer.flush()
    else:
        target.write_bytes(value)


@group.command()
def replay(
    pipeline: PipelineName,
    topic: Topic = None,
    partition: Partition = None,
    offset: Offset = None,
    reason: ReasonCode = None,
    topic_id: TopicId = None,
    as_json: AsJson = False,
) -> None:
    """Decode quarantined records again with the current code; what passes lands in the interval pinned next.

    Without selectors: all that are still in quarantine. Print counts; a repeated replay delivers nothing twice.
    A discarded record is replayed only when its offset is named.
    """
    declared = load_pipeline(pipeline)
    selection = Selection.of(declared, topic, partition=partition, offset=offset, reason=reason, topic_id=topic_id)
    with working(f"{declared.name}: decoding again", as_json=as_json):
        code, counts = quarantine.replay(declared, selection, by=user_at_host())
    if code:
        raise typer.Exit(code)
    print_result(counts, as_json=as_json)
    suggest(f"./tidemark quarantine list {declared.name}")


@group.command()
def discard(
    pipeline: PipelineName,
    why: Annotated[str, typer.Option("--reason", help="why, in words; it is recorded")],
    topic: Topic = None,
    partition: Partition = None,
    offset: Offset = None,
    code: Annotated[str | None, typer.Option("--code", help="records with this reason code")] = None,
    topic_id: TopicId = None,
    everything: Annotated[bool, typer.Option("--all", help="all records that are still in quarantine")] = False,
    as_json: AsJson = False,
) -> None:
    """Discard records: recorded with reason, who and when. Their bytes stay; a replay skips them.

    What was discarded together is taken back one by one: by a replay with the record's offset.
    """
    declared = load_pipeline(pipeline)
    selection = Selection.of(declared, topic, partition=partition, offset=offset, reason=code, topic_id=topic_id)
    if selection.everything is not everything:
        raise UsageError(
            "say which records to discard: a selector, or all of them, not both",
            remedy="--topic, --partition, --offset, --code, --topic-id, or --all",
            pipeline=declared.name,
        )
    if not why.strip():
        raise UsageError("a discard needs its reason in words", remedy='--reason "…"', pipeline=declared.name)
    counts = quarantine.discard(declared.name, selection, reason=why.strip(), by=user_at_host())
    print_result(counts, as_json=as_json)
