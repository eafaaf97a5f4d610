"""`new-generation`, `accept-loss`, `adopt`, `unsubscribe`: how a stream goes on; `references`, `outputs`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from include.cli import AsJson, PipelineName
from include.cli.output import print_facts, print_json, print_table, progress, suggest
from include.erasure.new_generation import begin_generation
from include.ledger import reference_versions
from include.ledger.archive import row_outputs
from include.pipelines import declarations, load_line_pipeline, load_pipeline
from include.processes import user_at_host
from include.streams import generations
from include.streams.checkpoints import contents_of_generation
from include.times import format_time

_MOST_REFUSED = 100
"""How many refused rows are listed, the newest."""

Reason = Annotated[str, typer.Option("--reason", help="why; kept for ever")]


def new_generation(pipeline: PipelineName, reason: Reason, as_json: AsJson = False) -> None:
    """Begin with new checkpoints where the archive ends; speed views are built again from the archive."""
    declared = load_line_pipeline(pipeline) or load_pipeline(pipeline)
    number = begin_generation(declared, reason=reason, by=user_at_host(), tell=progress)
    if as_json:
        print_json({"pipeline": declared.name, "generation": number})
    else:
        progress(f"{declared.name}: generation {number} begins with the next ./tidemark stream {declared.code}")


def accept_loss(pipeline: PipelineName, reason: Reason, as_json: AsJson = False) -> None:
    """Go on without offsets that Kafka removed before they were archived; they stay on record."""
    declared = load_pipeline(pipeline)
    lost = generations.accept_loss(declared, reason=reason, accepted_by=user_at_host())
    if as_json:
        print_json([each.as_json() for each in lost])
    for each in lost:
        progress(f"{declared.name}: {each} ({len(each)} offsets) is accepted as lost")
    suggest(f"./tidemark stream {declared.name}")


def adopt(
    pipeline: PipelineName,
    topic: Annotated[str, typer.Argument(help="the topic that was deleted and created again")],
    reason: Reason,
    read_again: Annotated[
        bool, typer.Option("--read-again", help="also if the new topic has records that were archived of the old one")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a topic that was deleted and created again, from its beginning."""
    declared = load_pipeline(pipeline)
    adopted = generations.adopt(declared, topic, reason=reason, adopted_by=user_at_host(), read_again=read_again)
    if as_json:
        print_json(adopted)
    else:
        print_facts(adopted)
        suggest(f"./tidemark stream {declared.name}")


def unsubscribe(
    pipeline: PipelineName,
    topic: Annotated[str, typer.Argument(help="the topic that the source does not name any more")],
    reason: Reason,
    as_json: AsJson = False,
) -> None:
    """Stop reading a topic that was taken out of the source, or deleted where the source is a pattern."""
    declared = load_pipeline(pipeline)
    left = generations.unsubscribe(declared, topic, reason=reason, left_by=user_at_host())
    if as_json:
        print_json(left)
    else:
        print_facts(left)
        suggest(f"./tidemark stream {declared.name}")


def references(pipeline: PipelineName, as_json: AsJson = False) -> None:
    """List the contents of references that were read from their sources, newest last."""
    declared = load_line_pipeline(pipeline) or load_pipeline(pipeline)
    streamed = contents_of_generation(declared.name)
    rows: list[dict[str, object]] = [
        {
            "name": each.name,
            "content": each.sha256,
            "rows": each.rows,
            "source": each.source,
            "taken_at": format_time(each.taken_at),
            "streamed": streamed.get(each.name) == each.sha256,
        }
        for each in reference_versions.versions(declared.name)
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(
            ["name", "content", "rows", "source", "taken_at", "streamed"], [list(each.values()) for each in rows]
        )


def outputs(
    pipeline: Annotated[str, typer.Argument(metavar="[PIPELINE]", help="default: all pipelines")] = "",
    as_json: AsJson = False,
) -> None:
    """Show how far each output of rows has sent, what it waits for, and with --json the rows that it refused."""
    declared = [load_pipeline(pipeline)] if pipeline else declarations().loaded
    for reason in () if pipeline else declarations().reasons:
        progress(reason)
    places = {(one.name, each.name): str(each.to) for one in declared for each in one.outputs}
    states = [state for one in declared for state in row_outputs.states(one.name, [each.name for each in one.outputs])]
    if as_json:
        print_json([_output_json(each, places[each.pipeline, each.output]) for each in states])
        return
    columns = ["pipeline", "output", "to", "rows", "refused", "behind", "sent_at", "waits_for"]
    rows = [
        [
            *(each.pipeline, each.output, places[each.pipeline, each.output], each.rows, each.refused, each.behind),
            *(format_time(each.sent_at) if each.sent_at else "", each.waits_for),
        ]
        for each in states
    ]
    print_table(columns, rows)
    suggest(f"./tidemark outputs {pipeline or 'PIPELINE'} --json lists the refused rows")


def _output_json(state: row_outputs.OutputState, place: str) -> dict[str, object]:
    times = {name: format_time(at) if (at := getattr(state, name)) else None for name in ("sent_at", "waits_since")}
    refused = row_outputs.refused_rows(state.pipeline, state.output, _MOST_REFUSED)
    return {**asdict(state), **times, "to": place, "refused_rows": [asdict(row) for row in refused]}
