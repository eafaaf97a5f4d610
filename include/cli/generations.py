"""`new-generation`, `accept-loss`, `adopt`: the ways on when a stream refuses to continue; and `references`."""

from __future__ import annotations

from typing import Annotated

import typer

from include.cli import AsJson, PipelineName
from include.cli.output import print_facts, print_json, print_table, progress, suggest
from include.intervals.references import contents_of_generation
from include.ledger import reference_versions
from include.pipelines import load_line_pipeline, load_pipeline
from include.streams import generations
from include.times import format_time
from include.user import user_at_host

Reason = Annotated[str, typer.Option("--reason", help="why; kept for ever")]


def register(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    app.command(name="new-generation")(new_generation)
    app.command(name="accept-loss")(accept_loss)
    app.command()(adopt)
    app.command()(references)


def new_generation(pipeline: PipelineName, reason: Reason, as_json: AsJson = False) -> None:
    """Begin with new checkpoints where the archive ends; speed views are built again from the archive."""
    declared = load_line_pipeline(pipeline) or load_pipeline(pipeline)
    number = generations.new_generation(declared, reason=reason, started_by=user_at_host())
    if as_json:
        print_json({"pipeline": declared.name, "generation": number})
    else:
        progress(f"{declared.name}: generation {number} begins with the next ./tidemark stream {declared.code}")


def accept_loss(pipeline: PipelineName, reason: Reason, as_json: AsJson = False) -> None:
    """Go on without offsets that Kafka removed before they were archived; they stay on record."""
    declared = load_pipeline(pipeline)
    lost = generations.accept_loss(declared, reason=reason, accepted_by=user_at_host())
    if as_json:
        rows = [
            {
                "topic": each.topic_partition.topic,
                "topic_id": each.topic_id,
                "partition": each.topic_partition.partition,
                "from_offset": each.from_offset,
                "until_offset": each.until_offset,
            }
            for each in lost
        ]
        print_json(rows)
    for each in lost:
        progress(f"{declared.name}: {each} ({len(each)} offsets) is accepted as lost")
    suggest(f"./tidemark stream {declared.name}")


def adopt(
    pipeline: PipelineName,
    topic: Annotated[str, typer.Argument(help="the topic that was deleted and created again")],
    reason: Reason,
    as_json: AsJson = False,
) -> None:
    """Go on with a topic that was deleted and created again, from its beginning."""
    declared = load_pipeline(pipeline)
    adopted = generations.adopt(declared, topic, reason=reason, adopted_by=user_at_host())
    if as_json:
        print_json(adopted)
    else:
        print_facts(adopted)
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
