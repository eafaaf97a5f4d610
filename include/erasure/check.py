"""Refuse what cannot be erased yet, before anything is done, and report what stays elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from include import lake
from include.erasure import open_tables
from include.erasure.keys import Keys
from include.erasure.names import columns_of, namesakes_of
from include.errors import TidemarkError, UsageError
from include.housekeeping.leftovers import left_tables
from include.lake.object_store import is_bucket_uri
from include.ledger import proofs
from include.ledger.erasures import former, named_partitions, unfinished
from include.ledger.erasures.unfinished import Begun
from include.ledger.streams import lines
from include.monitor.text import quantity
from include.pipelines import declarations
from include.pipelines.spec import JdbcTable, KafkaMessages, Pipeline
from include.pipelines.spec.archive import check_subject
from include.producing.position import refused_files
from include.proof.lost import lost_files
from include.proof.signing import own_public_key
from include.serving import refusal
from include.serving.follow import differences
from include.settings import settings
from include.streams.fingerprint import KEPT, TABLE
from include.times import format_time


def subject_columns(pipeline: Pipeline, named: Sequence[str]) -> tuple[str, ...]:
    """Return the paths inside archive rows that hold the key: those that were named, else the declared subject.

    Raises UsageError without either, and for a path that is not a single value of a row.
    """
    columns = tuple(dict.fromkeys(named)) or ((pipeline.archive.subject,) if pipeline.archive.subject else ())
    if not columns:
        raise UsageError(
            "it is not declared which column names the person or thing that a row is about",
            remedy='declare Archive(subject="COLUMN"), or name it: --column COLUMN',
            pipeline=pipeline.name,
        )
    for each in columns:
        check_subject(each, pipeline.archive_columns)
    return columns


def check_can_sign_proofs(pipeline: Pipeline, columns: Sequence[str]) -> None:
    """Raise UsageError if proofs would have to be signed, in the place of others or after them, without a key."""
    if own_public_key():
        return
    if columns_of(pipeline, columns) and proofs.any_signed(pipeline.name):
        what = "signed proofs name the key, a partition column, and no key is set to sign others in their place"
    elif proofs.last_is_signed(pipeline.name, pipeline.tables):
        what = "its proofs are signed, and no key is set to sign those of the intervals that are built again"
    else:
        return
    remedy = "set TIDEMARK_PROOF_KEY"
    if unfinished.unfinished(pipeline.name) is None:
        raise UsageError(f"{what}; nothing was changed", remedy=remedy, pipeline=pipeline.name)
    raise UsageError(
        f"{what}; the erasure is unfinished",
        remedy=f"{remedy}, then: ./tidemark erase {pipeline.name} --resume",
        pipeline=pipeline.name,
    )


def all_that_remains(pipeline: Pipeline, erasure: Begun) -> list[str]:
    """Return what an erasure has not reached, in words."""
    return [
        *remaining(pipeline),
        *remaining_in_proofs(pipeline, erasure),
        *remaining_in_names(pipeline, erasure),
        *remaining_without_column(pipeline, erasure),
    ]


def remaining(pipeline: Pipeline) -> list[str]:
    """Return what no erasure of the pipeline reaches, in words."""
    topics = ", ".join(sorted(pipeline.source.named)) or "those of its pattern"
    clean = f"{settings().airflow_command()} db clean"
    told = [
        f"Kafka's own log of the source topics ({topics}), until their retention removes the records",
        "backups and copies of Kafka, the lake and PostgreSQL; PostgreSQL's own files until VACUUM, and its log",
        "logs and messages that were sent: notifications, alerts, lineage events",
        f"results of Airflow's tasks and its questions to persons, which may quote a key: {clean}",
        "copies of the tables that consumers of Airflow's asset events keep: no event tells of an erasure, nor of a "
        "partition that it removed; clear the task announce of the intervals' runs to announce what is registered now",
    ]
    if is_bucket_uri(lake.root()):
        told.append(
            "earlier versions of deleted and replaced objects, and uploads that killed drivers left, where the lake's "
            "bucket keeps them: let its lifecycle rules delete noncurrent versions and abort uploads"
        )
    if pipeline.archive.partition_by:
        told.append(f"events of Airflow's assets, which list registered partitions with their values: {clean}")
    if pipeline.views:
        written = ", ".join(view.speed.topic for view in pipeline.views)
        told.append(f"older values in the compacted topics ({written}), until Kafka's cleaner has passed")
    if pipeline.flags:
        topic = pipeline.flags.topic
        told.append(f"flags in the topic {topic}, until its retention removes them: their keys are the coordinates")
    plain = {
        t for view in pipeline.views for sink in view.sinks if isinstance(sink, KafkaMessages) for t in sink.topics
    }
    if plain:
        told.append(f"messages in the plain topics {', '.join(sorted(plain))}, until their retention removes them")
    told += [
        f"what the output {each.name} sent to {each.to}, and the details of rows that it refused: delete it by the "
        "coordinates"
        for each in pipeline.outputs
    ]
    told += _in_other_pipelines(pipeline)
    told += _of_former_declarations(pipeline)
    told += _in_postgres(pipeline)
    told += [f"what was read from lines as {name}" for name in lines.sources_of(pipeline.name)]
    told += [
        f"events that Kafka refused, whole: look through {path} and delete it" for path in refused_files(pipeline.name)
    ]
    if others := open_tables.files_of_others(pipeline):
        told.append(f"{quantity(others, 'file')} that others wrote to the folders of its Iceberg tables")
    told += [
        f"what killed attempts left below tables/{table}, which is no longer declared: look through it and delete that"
        for table in _tables_not_swept(pipeline)
    ]
    if _has_lost_and_found():
        told.append("what doctor --repair moved to lost+found: look through it and delete it")
    return told


def _in_other_pipelines(pipeline: Pipeline) -> list[str]:
    """Return in words which pipelines read a topic that this one reads or writes."""
    names = [
        other.name
        for other in declarations().loaded
        if other.name != pipeline.name
        and (other.source.common(pipeline.source) or any(map(other.source.reads, pipeline.written_topics)))
    ]
    if not names:
        return []
    return [
        f"what other pipelines keep of topics that this one reads or writes ({', '.join(names)}): erase it there, too"
    ]


def _in_postgres(pipeline: Pipeline) -> list[str]:
    """Return in words which registered values PostgreSQL still serves that are others than the ledger's."""
    told, unknown = "registered values in PostgreSQL", "whether they hold a key is not known"
    try:
        # Each publication follows the ledger. Where that is the remedy, it could not: a file of the view is gone.
        mend = "./tidemark doctor --deep, run the intervals again that it names, then ./tidemark doctor --repair"
        left = [f"{told}: {what}" + ("" if remedy else f": {mend}") for _, what, remedy in differences(pipeline)]
        # Of a view that other processes alone began to serve, nothing differs then.
        refused = refusal() if pipeline.views else ""
    except TidemarkError as error:
        # The erasure is finished, and what follows must not be left out.
        return [f"{told}: {unknown}: {error.message}; see what ./tidemark doctor finds"]
    return [*left, f"{told}: {unknown}: {refused}"] if refused else left


def _of_former_declarations(pipeline: Pipeline) -> list[str]:
    """Return in words where the ledger knows that views, outputs and flags wrote to that are not declared any more."""
    topics = {view.speed.topic for view in pipeline.views}
    in_tables = {view.name for view in pipeline.views if any(isinstance(sink, JdbcTable) for sink in view.sinks)}
    started = former.views_ever(pipeline.name)
    gone = sorted({topic for _, facts in started if (topic := facts.get("speed topic")) and topic not in topics})
    told = [
        f"all values in the topic {topic}, which no view of this installation writes any more: delete it if it is "
        "there, unless another installation writes it"
        for topic in gone
    ]
    undeclared = {name for name, _ in started} - {view.name for view in pipeline.views}
    tables = undeclared | {name for name, facts in started if facts.get(TABLE) == KEPT and name not in in_tables}
    told += [
        f"tables in PostgreSQL and plain topics that the view {name} wrote by an earlier declaration: delete them, "
        "but no topic that another installation writes"
        for name in sorted(tables)
    ]
    outputs = {*former.outputs_ever(pipeline.name)} - {each.name for each in pipeline.outputs}
    told += [f"what the output {name} sent, which is not declared any more" for name in sorted(outputs)]
    if not pipeline.flags and former.has_had_flags(pipeline.name):
        told.append("flags in the topic of flags that are not declared any more, until its retention removes them")
    return told


def remaining_in_proofs(pipeline: Pipeline, erasure: Begun) -> list[str]:
    """Return in words what in earlier proofs quotes a key; where each key named a partition, only in lost ones.

    Proofs lose those keys that named one: who goes on with an erasure does not know which results quoted the others.
    """
    named = named_partitions.values_renamed_by(erasure.id, pipeline.table)
    lost = lost_files(pipeline) if named else []
    told = (
        [f"proofs that were not replaced, as their files are gone ({len(lost)}): delete those that a copy brings back"]
        if lost
        else []
    )
    if named >= len(erasure.key_hashes):
        return told
    kept = "kept as signed, except for keys that named a table partition" if named else "kept as signed"
    counted = (
        ("expectations", "result of an expectation", "results of expectations"),
        ("reasons", "reason of an approval", "reasons of approvals"),
    )
    return told + [
        f"{quantity(many, *of)} in earlier proofs, below proofs/{pipeline.name}, which quote a key: {kept}"
        for name, *of in counted
        if (many := erasure.counts.get(name, 0))
    ]


def remaining_in_names(pipeline: Pipeline, erasure: Begun) -> list[str]:
    """Return in words by which columns older partitions are named like a key that was erased in another column."""
    return [
        f"names of table partitions in ledger and proofs that equal a key, by the partition column {name}: values of "
        f"{pipeline.archive.partition_by[name]}, unless partition_by named another column when they were built"
        for name in sorted(namesakes_of(pipeline, erasure))
    ]


def remaining_without_column(pipeline: Pipeline, erasure: Begun) -> list[str]:
    """Return in words which registered rows are older than a column that was searched: nobody knows whom they are of.

    A later run from Kafka would give them the column, with the keys that were erased elsewhere.
    """
    told = []
    for column in erasure.columns:
        name = column.partition(".")[0]
        names = [name, *pipeline.archive.formerly.get(name, ())]
        if older := former.registered_without(pipeline.name, pipeline.table, names):
            begin, end = format_time(older[0].from_time), format_time(older[-1].to_time)
            told.append(
                f"rows of {quantity(len(older), 'interval')} from {begin} to {end} that were built before the column "
                f"{name} was declared, and were not found by it: run these again from Kafka, then erase again"
            )
    return told


def references_naming(pipeline: Pipeline, keys: Keys) -> list[str]:
    """Return the references with kept contents that name a key: these come from elsewhere, and would come again."""
    root = lake.uri("references", pipeline.name)
    naming = {
        file.name.split("/", 1)[0]
        for file in lake.list_entries(root)
        if file.is_file and keys.named_in_bytes(lake.read_bytes(f"{root}/{file.name}"))
    }
    return sorted(naming)


def _tables_not_swept(pipeline: Pipeline) -> list[str]:
    """Tables of removed views that have an Iceberg table, or all of them while some declaration is refused."""
    swept = {*pipeline.tables, *left_tables(pipeline)}
    return [
        each
        for each in former.tables_ever(pipeline.name)
        if each not in swept and lake.exists(lake.uri("tables", each))
    ]


def _has_lost_and_found() -> bool:
    return lake.exists(f"{lake.root()}/lost+found")
