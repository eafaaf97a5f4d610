"""What a pipeline can read instead of Kafka: files of a folder, or a socket; one message per line, and no offsets.

Such a run goes under a name of its own (`isp_hits_files`, `isp_hits_socket`): lease, checkpoints, landing,
quarantine, topics and tables are never those of the Kafka archive. No interval can be pinned over it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from os.path import normpath
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from include.errors import UsageError
from include.pipelines.spec.decoders import Avro, KafkaDeserializer
from include.pipelines.spec.pipeline import Pipeline
from include.pipelines.spec.views import AdditiveView, KafkaMessages


@dataclass(frozen=True)
class TextFiles:
    """The files of a folder, those that appear later included."""

    folder: str
    """URI without a trailing slash."""
    kind: ClassVar[str] = "files"
    guarantee: ClassVar[str] = (
        "each line of a file once, identified by the file's URI and line number, so a renamed one is read again; there "
        "are no Kafka offsets"
    )

    def __str__(self) -> str:
        return self.folder


@dataclass(frozen=True)
class SocketLines:
    """What a TCP server sends to whoever connects."""

    host: str
    port: int
    kind: ClassVar[str] = "socket"
    guarantee: ClassVar[str] = (
        "at most once: what is received but not yet written to a file of the lake, up to a second of it, is lost with "
        "the driver, and so is what is sent while nobody listens; from that file on each line once, identified by "
        "connection and order of receipt; there are no Kafka offsets"
    )

    def __str__(self) -> str:
        return f"socket://{self.host}:{self.port}"


LineSource = TextFiles | SocketLines


def parse_line_source(text: str) -> LineSource:
    """Return the source of `socket://host:port` or of a folder's URI. Raises UsageError for other text.

    A local folder has one spelling, because its files are known by it.
    """
    wrong = UsageError(
        f"{text!r} is not a source of lines", remedy="write it like socket://127.0.0.1:9999 or file:///some/folder"
    )
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise wrong from None
    if not parts.scheme or parts.query or parts.fragment:
        raise wrong
    if parts.scheme == "socket":
        if not parts.hostname or not port or parts.path:
            raise wrong
        return SocketLines(parts.hostname, port)
    if not parts.path.startswith("/") or (parts.scheme == "file" and parts.hostname not in (None, "localhost")):
        raise wrong
    return TextFiles(one_spelling(text).rstrip("/"))


def one_spelling(location: str) -> str:
    """Return the URI by which a local file or folder is known, however this one is written; any other as it is."""
    parts = urlsplit(location)
    if parts.scheme != "file":
        return location
    # Python keeps two slashes at the beginning.
    return Path("/", normpath(unquote(parts.path)).lstrip("/")).as_uri()


def read_from_lines(pipeline: Pipeline, kind: str) -> Pipeline:
    """Return the pipeline as it runs over lines: its decoder, rules, transforms and views, under names of its own.

    Raises UsageError when its messages cannot be read from lines, or its rows need what only a Kafka record has.
    """
    needs = "what only Kafka records have" if pipeline.archive.takes_record else ""
    if isinstance(pipeline.decoder, Avro):
        needs = "binary messages, which cannot be read from lines"
    if isinstance(pipeline.decoder, KafkaDeserializer):
        needs = "by a deserializer that takes a record's topic"
    if needs:
        raise UsageError(
            f"it reads {needs}", remedy=f"./tidemark stream {pipeline.name}, from Kafka", pipeline=pipeline.name
        )
    return replace(
        pipeline,
        name=f"{pipeline.name}_{kind}",
        declared_as=pipeline.name,
        views=tuple(_renamed(view, kind) for view in pipeline.views),
        flags=None,
        outputs=(),
        reports=(),
    )


def _renamed(view: AdditiveView, kind: str) -> AdditiveView:
    sinks = tuple(
        replace(sink, topic_suffix=f"-{kind}") if isinstance(sink, KafkaMessages) else sink for sink in view.sinks
    )
    return replace(view, speed=replace(view.speed, topic=f"{view.speed.topic}-{kind}"), sinks=sinks)


def declared_name(name: str, declared: Collection[str]) -> str | None:
    """Return the declared pipeline that runs under this name when it reads lines; None for every other name."""
    base, _, kind = name.rpartition("_")
    return base if base in declared and kind in (TextFiles.kind, SocketLines.kind) else None


def no_offsets(name: str, declared: str) -> UsageError:
    """Return the error of a command that needs offsets when the pipeline reads lines."""
    return UsageError(
        f"{name} is {declared} read from lines, not from Kafka: its records have no offsets, so no interval can be "
        "pinned over them, and there are no ranges, verdicts or registered partitions",
        remedy=f"produce the lines into Kafka and stream {declared}; as they are, ./tidemark shell {name} shows them",
    )
