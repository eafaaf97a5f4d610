"""Landing and quarantine files against the ledger's commits. Starts no Spark and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from sqlalchemy import func, select

from include import lake
from include.doctor.disagreement import REPAIR, Disagreement
from include.lake.scan import COMPACTED, Folder, below_lake, scan_files, scan_landing
from include.ledger.archive import landing
from include.ledger.database import session
from include.ledger.models import LandingFile, MicroBatch
from include.ledger.streams import writers
from include.pipelines.spec import Pipeline


def check_landing(pipeline: Pipeline) -> Iterator[Disagreement]:
    """Disagreements about a pipeline's landing and quarantine files."""
    lying: dict[str, int] = {}
    writer = writers.live_writer(pipeline.name)
    since = writer.acquired_at if writer else datetime.now(UTC)
    folders = scan_landing(pipeline.name)
    for folder in folders.values():
        lying |= {below_lake(f"{folder.location}/{name}"): size for name, size in folder.files.items()}
    loose = {
        **scan_files("landing", pipeline.name, COMPACTED),
        **{at: f for at, f in scan_files("quarantine", pipeline.name).items() if at.count("/") == _depth(pipeline)},
    }
    lying |= {below_lake(location): file.bytes for location, file in loose.items()}
    with session() as ledger:
        noted = ledger.execute(
            select(LandingFile.path, func.max(LandingFile.bytes), func.min(LandingFile.micro_batch_id))
            .join(MicroBatch, MicroBatch.id == LandingFile.micro_batch_id)
            .where(MicroBatch.pipeline == pipeline.name, LandingFile.removed_at.is_(None))
            .group_by(LandingFile.path)
            .order_by(LandingFile.path)
        ).all()
    lost = [row for row in noted if lying.get(row[0]) != row[1]]
    settled = set(landing.settled_batches(pipeline.name, datetime.now(UTC), (landing.ARCHIVED,))) if lost else set()
    for path, size, micro_batch in lost:
        yield _lost(pipeline, path, size, lying.get(path), micro_batch, settled)
    ever = {row.path for row in landing.files_at(pipeline.name, list(lying))}
    unknown = [file for location, file in loose.items() if below_lake(location) not in ever]
    for folder in folders.values():
        strange = [name for name in folder.files if below_lake(f"{folder.location}/{name}") not in ever]
        if len(strange) == len(folder.files):
            # A batch of quarantined records alone leaves a folder without files behind.
            unknown += [folder] if folder.files else []
        else:
            unknown += [
                Folder(f"{folder.location}/{name}", {name: 0}, folder.files[name], folder.newest) for name in strange
            ]
    for each in unknown:
        if each.newest < since:
            yield Disagreement(
                "landing unknown to the ledger",
                pipeline.name,
                f"{below_lake(each.location)} belongs to no committed micro-batch",
                f"{REPAIR} moves it aside, ./tidemark housekeeping deletes it",
                "move aside",
                location=each.location,
            )


def _depth(pipeline: Pipeline) -> int:
    return lake.uri("quarantine", pipeline.name).count("/") + 1


def _lost(
    pipeline: Pipeline, path: str, size: int, found: int | None, micro_batch: int, settled_batches: set[int]
) -> Disagreement:
    row = landing.files_at(pipeline.name, [path])[0]
    settled = row.outcome == landing.ARCHIVED and micro_batch in settled_batches
    detail = "is missing" if found is None else f"has {found} bytes, {size} when it was committed"
    return Disagreement(
        "landing file missing" if found is None else "landing file of wrong size",
        pipeline.name,
        f"{path} ({row.outcome}, {row.rows} rows of micro-batch {micro_batch}) {detail}",
        f"{REPAIR}: its rows are read from the registered revisions from then on"
        if settled
        else "restore the file; its rows are in no registered revision",
        "read from revisions" if settled else "",
        location=path,
        micro_batch=micro_batch,
    )
