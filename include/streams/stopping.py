"""Streams that are asked to stop, those included that outlive their declaration: no page and no DAG knows them."""

from __future__ import annotations

from dataclasses import dataclass

from include.ledger.streams import writers
from include.ledger.streams.writers import LiveWriter
from include.pipelines import as_lines, has_stream, load_pipeline
from include.pipelines.spec.lines import parse_line_source
from include.times import format_time


@dataclass(frozen=True)
class UndeclaredStream:
    """A running stream of a pipeline that is not declared."""

    pipeline: str
    writer: LiveWriter

    def __str__(self) -> str:
        return f"{self.pipeline}: a stream of this name runs, and no such pipeline is declared: {self.writer.holder}"

    @property
    def remedy(self) -> str:
        """The command that ends it."""
        return f"./tidemark stream {self.pipeline} --stop"

    def as_json(self) -> dict[str, object]:
        """Return the form that `--json` prints."""
        since = format_time(self.writer.acquired_at)
        return {"pipeline": self.pipeline, "holder": str(self.writer.holder), "since": since}


def undeclared_streams() -> list[UndeclaredStream]:
    """Return the running streams of pipelines that are not declared, by name. Raises ServiceUnreachable."""
    live = sorted(writers.live_writers().items())
    return [UndeclaredStream(name, writer) for name, writer in live if not has_stream(name) and not writer.command]


def request_stop(pipeline: str, line_source: str | None = None) -> str:
    """Ask the driver of a pipeline, over lines if they are named, to stop after its micro-batch; return what was done.

    Raises UsageError for a name that is not declared and under which no stream ever ran.
    """
    name = pipeline
    if line_source is not None:
        name = as_lines(load_pipeline(pipeline), parse_line_source(line_source).kind).name
    elif not writers.was_acquired(pipeline):
        name = load_pipeline(pipeline).name
    if writers.request_stop(name):
        return "asked to stop"
    live, what = writers.live_writer(name), "no driver is running"
    if live is not None and live.command:
        what += f": the command {live.command} holds the lease ({live.holder}), and is not stopped by this"
    return what
