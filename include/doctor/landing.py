"""Landing and quarantine files against the ledger: committed files that are missing, files that no commit names."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime

from include import lake
from include.doctor.disagreement import MOVES_ASIDE, REPAIR, Disagreement, Kind
from include.housekeeping import replaced
from include.housekeeping.in_flight import InFlight
from include.intervals.lake_of_ledger import why_unknown_stay
from include.lake.scan import COMPACTED, Folder, scan_files, scan_landing
from include.ledger.archive import landing_files, removal
from include.ledger.archive.landing_files import LandingFile
from include.ledger.streams.incarnations import closed
from include.offsets import Fate
from include.pipelines.spec import Pipeline

_REPLACED = f"{REPAIR}: its rows are read from the registered revisions from then on"
_READ_OTHERWISE = "restore the file; its registered build read Kafka with other code than landed it, and may lack rows"
_NOWHERE = "restore the file; its rows are in no registered revision, or cannot be identified there"


def check_landing(pipeline: Pipeline, *, deep: bool = False) -> Iterator[Disagreement]:
    """Yield disagreements about a pipeline's landing and quarantine files; `deep` also reads each file whole."""
    # Read before the files are listed: what begins later is newer than this.
    in_flight = InFlight.of(pipeline.name)
    folders = [folder for portion in scan_landing(pipeline.name) for folder in portion]
    loose = [*_loose_files(pipeline)]
    files_on_disk = {
        lake.below_lake(f"{folder.location}/{name}"): size for folder in folders for name, size in folder.files.items()
    }
    files_on_disk |= {lake.below_lake(file.location): file.bytes for file in loose}
    yield from _lost_files(pipeline, files_on_disk, deep=deep)
    known = {file.path for file in landing_files.files_at(pipeline.name, list(files_on_disk))}
    unknown = [file for file in loose if lake.below_lake(file.location) not in known]
    for folder in folders:
        unknown += _unknown_parts(folder, known)
    # Another ledger may have known them, and an erasure looks for its key's files where they lie.
    stay = why_unknown_stay(pipeline) if unknown else ""
    for each in unknown:
        if not in_flight.may_hold(each):
            yield Disagreement(
                "landing unknown to the ledger",
                pipeline.name,
                f"{lake.below_lake(each.location)} belongs to no committed micro-batch",
                stay or MOVES_ASIDE,
                "" if stay else "move landing aside",
                location=each.location,
            )


def _loose_files(pipeline: Pipeline) -> Iterator[Folder]:
    """Yield compacted files, and the files that lie directly in the quarantine."""
    yield from scan_files("landing", pipeline.name, COMPACTED).values()
    quarantine_folder = lake.uri("quarantine", pipeline.name)
    for location, file in scan_files("quarantine", pipeline.name).items():
        if "/" not in location.removeprefix(f"{quarantine_folder}/"):
            yield file


def _unknown_parts(folder: Folder, known: Collection[str]) -> list[Folder]:
    """Return the folder when the ledger knows none of its files, else those files that it does not know."""
    unknown = [name for name in folder.files if lake.below_lake(f"{folder.location}/{name}") not in known]
    if len(unknown) == len(folder.files):
        # A batch of quarantined records alone leaves a folder without files behind.
        return [folder] if folder.files else []
    return [Folder(f"{folder.location}/{name}", {name: 0}, folder.files[name], folder.newest) for name in unknown]


def _lost_files(pipeline: Pipeline, files_on_disk: dict[str, int], *, deep: bool) -> Iterator[Disagreement]:
    wanted = landing_files.files_to_be_there(pipeline.name)
    lost = [file for file in wanted if files_on_disk.get(file.path) != file.bytes]
    gone = {file.path for file in lost}
    whole = [file for file in wanted if deep and file.path not in gone]
    damaged = {file.path: why for file in whole if (why := _damage(file))}
    lost += [file for file in whole if file.path in damaged]
    # Tables cannot distinguish the rows of a recreated topic from those of the one before.
    may_be_settled = bool(lost) and not closed(pipeline.name)
    portions = removal.settled_batches(pipeline.name, datetime.now(UTC), (Fate.ARCHIVED,)) if may_be_settled else ()
    batches = {file.micro_batch for file in lost}
    settled = {batch: portion[batch] for portion in portions for batch in portion.keys() & batches}
    as_landed = removal.read_as_landed(pipeline.name, settled) if settled else set()
    aside = replaced.to_put_back(pipeline.name) if lost else {}
    for file in lost:
        if file.path in aside and file.path not in damaged:
            yield Disagreement(
                "landing file missing",
                pipeline.name,
                f"{file.path} ({file.fate}, {file.rows} rows) was merged, but not by this ledger",
                f"{REPAIR} puts it back",
                "put back",
                location=file.path,
            )
            continue
        kind, detail = _loss(file, files_on_disk.get(file.path), damaged.get(file.path, ""))
        remedy = _NOWHERE
        if file.fate == Fate.ARCHIVED and file.micro_batch in settled:
            remedy = _REPLACED if file.micro_batch in as_landed else _READ_OTHERWISE
        yield _lost(pipeline, file, kind, detail, remedy)


def _damage(file: LandingFile) -> str:
    """Return why a file of the right size cannot be read; empty if it can, or if it has gone since it was listed."""
    try:
        return lake.unreadable(lake.uri(file.path))
    except FileNotFoundError:
        return ""


def _loss(file: LandingFile, size_on_disk: int | None, damage: str) -> tuple[Kind, str]:
    if size_on_disk is None:
        return "landing file missing", "is missing"
    if damage:
        return "landing file damaged", f"cannot be read: {damage}"
    return "landing file of wrong size", f"has {size_on_disk} bytes, {file.bytes} when it was committed"


def _lost(pipeline: Pipeline, file: LandingFile, kind: Kind, detail: str, remedy: str) -> Disagreement:
    return Disagreement(
        kind,
        pipeline.name,
        f"{file.path} ({file.fate}, {file.rows} rows of micro-batch {file.micro_batch}) {detail}",
        remedy,
        "read from revisions" if remedy == _REPLACED else "",
        location=file.path,
        micro_batch=file.micro_batch,
    )
