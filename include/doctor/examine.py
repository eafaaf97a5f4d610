"""The examination: machine, set-up, services, lake and tables, each as it is and as it should be."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from include import lake
from include.doctor import repair as repairing
from include.doctor.compare import disagreements_of
from include.erasure import accounts
from include.errors import LogTruncated, TidemarkError
from include.housekeeping.renaming import left_to_rename
from include.intervals.lake_of_ledger import OF_OTHER_LEDGER, checkpoints_of_other_ledger, lake_error
from include.ledger import proofs
from include.ledger.archive import row_outputs
from include.ledger.erasures import unfinished
from include.ledger.lineage import registered_outside, registered_partitions
from include.ledger.streams.event_gaps import gaps_of
from include.monitor.missing import building_commands, summarize_missing
from include.pipelines import declarations
from include.pipelines.spec import Pipeline
from include.services import airflow, supervisor
from include.services.process import embedded_addresses, read_state
from include.settings import REPOSITORY, Settings, settings
from include.spark import class_archive, jars
from include.spark.class_training import ensure_class_archive
from include.streams.start import check_log
from include.streams.stopping import undeclared_streams


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at, and whether it is as it should be."""

    ok: bool
    what: str
    remedy: str = ""
    kind: str = ""
    """The kind of a disagreement between ledger, catalog and files (`include/doctor/disagreement.py`)."""
    notice: bool = False
    """Whether the operator should know it although nothing is wrong."""


def effective_settings() -> dict[str, str]:
    """Return the settings in force by the name of their variable, secrets masked."""
    current = settings()
    values = {f"TIDEMARK_{name.upper()}": str(getattr(current, name) or "") for name in Settings.declared()}
    values["TIDEMARK_LAKE"] = current.lake_uri
    if current.registry_url:
        values["TIDEMARK_REGISTRY_URL"] = current.registry().render_as_string(hide_password=True)
    unset = {
        **embedded_addresses(),
        "TIDEMARK_MAX_OFFSETS_PER_TRIGGER": "(as the pipeline declares)",
        "TIDEMARK_SPARK_SUBMIT": "(PySpark's own)",
        "TIDEMARK_SPARK_UI": "false",
    }
    return {name: value or unset.get(name, "(none)") for name, value in values.items()}


def repair_all(progress: Callable[[str], None], *, deep: bool) -> None:
    """Fetch damaged jars, close open files and start dead services; then tell what the tables need, and do it."""
    jars.ensure_jars(progress)
    ensure_class_archive(progress)
    for path in _open_secrets():
        progress(f"chmod 600 {path}")
        path.chmod(0o600)
    dead = [n for n, s in supervisor.status().items() if not s.healthy and not s.external and read_state(n).get("pid")]
    if dead:
        supervisor.up(dead, progress)
    if all(each.ok for each in _lake()):
        _repair_tables(progress, deep=deep)


def examine(*, deep: bool) -> list[Finding]:
    """Look at everything and return what was found; `deep` also reads every file whole."""
    machine = [*_machine(), *_packages(), *_jars(), *_class_archive(), *_secrets(), *_services(), *_declarations()]
    place = list(_lake())
    return [*machine, *place, *(_tables(deep=deep) if all(each.ok for each in place) else ())]


def _machine() -> Iterator[Finding]:
    text = subprocess.run([jars.java(), "-version"], capture_output=True, text=True, check=False).stderr
    named = re.search(r'version "(\d+)', text)
    major = int(named[1]) if named else 0
    yield Finding(major >= 17, f"Java {major}", "" if major >= 17 else "install Java 17 or newer")
    yield Finding(
        True, f"Python {platform.python_version()}, PySpark {version('pyspark')}, Airflow {version('apache-airflow')}"
    )
    free = psutil.virtual_memory().available / 2**30
    yield Finding(
        free > 3, f"{free:.1f} GiB of memory available", "" if free > 3 else "end something: 3 GiB are needed"
    )
    folder = settings().home if settings().home.exists() else settings().home.parent
    disk = shutil.disk_usage(folder).free / 2**30
    yield Finding(
        disk > 2, f"{disk:.0f} GiB of disk free in {folder}", "" if disk > 2 else "make room: 2 GiB are needed"
    )


def _packages() -> Iterator[Finding]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    # Without the extras that a requirement names.
    pinned = (re.sub(r"\[.*?\]", "", each) for each in project["dependencies"] if "==" in each)
    pins = dict(each.split("==") for each in pinned)
    wrong = [name for name, wanted in pins.items() if _installed(name) != wanted]
    what = f"{len(pins) - len(wrong)} of {len(pins)} pinned packages as pinned"
    remedy = f"{', '.join(wrong)}: remove .venv and start ./tidemark again, which installs it" if wrong else ""
    yield Finding(not wrong, what, remedy)


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _jars() -> Iterator[Finding]:
    wrong = jars.damaged()
    yield Finding(
        not wrong,
        f"{len(jars.wanted()) - len(wrong)} of {len(jars.wanted())} jars as pinned",
        "./tidemark doctor --repair" if wrong else "",
    )
    spark = version("pyspark")
    others = [jar.name for jar in sorted(jars.folder().glob("*/spark-*.jar")) if not jar.stem.endswith(f"-{spark}")]
    # Known and tested (include/spark/ivy.xml), but shown so that nobody has to find it out.
    yield Finding(True, f"jars of Spark not at {spark}: {', '.join(others) or 'none'}")


def _class_archive() -> Iterator[Finding]:
    made = class_archive.find() is not None
    yield Finding(True, f"Spark's classes are {'prepared' if made else 'not prepared: ./tidemark doctor --repair'}")


def _secret_files() -> list[Path]:
    patterns = ("services/*.json", "airflow/*.json", "airflow/*.key", "airflow/*.secret")
    return [path for pattern in patterns for path in settings().home.glob(pattern)]


def _open_secrets() -> list[Path]:
    return [path for path in _secret_files() if path.stat().st_mode & 0o077]


def _secrets() -> Iterator[Finding]:
    files, open_ones = len(_secret_files()), _open_secrets()
    what = f"{files - len(open_ones)} of {files} files with secrets are private"
    yield Finding(not open_ones, what, "./tidemark doctor --repair" if open_ones else "")


def _declarations() -> Iterator[Finding]:
    for reason in declarations().reasons:
        yield Finding(False, reason)


def _services() -> Iterator[Finding]:
    for name, state in supervisor.status().items():
        if state.address and not state.external and not read_state(name).get("pid"):
            yield Finding(True, f"{name}: stopped by ./tidemark down")
        elif state.address:
            where = "" if name == "postgres" else f" at {state.address}"
            yield Finding(state.healthy, f"{name}{where}", "" if state.healthy else f"./tidemark up {name}")
            if name == "airflow" and state.healthy and (lack := airflow.lack_of_slots(state.address)):
                yield Finding(False, *lack)


def _lake() -> Iterator[Finding]:
    try:
        is_there = lake.root_is_available()
    except TidemarkError as error:
        yield Finding(False, error.message, error.remedy)
    else:
        yield Finding(is_there, f"the lake at {lake.root()}", "" if is_there else "make the bucket")
        yield from _another_lake()


def _another_lake() -> Iterator[Finding]:
    try:
        errors = [lake_error(pipeline) for pipeline in declarations().loaded]
    except TidemarkError:
        # A ledger that cannot be read is told when the tables are looked at.
        return
    for error in filter(None, errors):
        yield Finding(False, error.message, error.remedy)


def _repair_tables(progress: Callable[[str], None], *, deep: bool) -> None:
    try:
        disagreements = [each for pipeline in declarations().loaded for each in disagreements_of(pipeline, deep=deep)]
        for line in repairing.plan(disagreements):
            progress(f"plan: {line}")
        repairing.repair(disagreements, progress)
    except TidemarkError as error:
        # The look that follows finds again what could not be repaired.
        progress(f"not repaired: {error}")


def _tables(*, deep: bool) -> Iterator[Finding]:
    try:
        yield from _elsewhere()
        yield from undeclared()
        for pipeline in declarations().loaded:
            for each in disagreements_of(pipeline, deep=deep):
                yield Finding(False, each.what, each.remedy, each.kind)
            for checkpoint in checkpoints_of_other_ledger(pipeline):
                yield Finding(True, f"{pipeline.name}: {lake.below_lake(checkpoint)}", OF_OTHER_LEDGER, notice=True)
            for table in pipeline.tables:
                yield Finding(True, f"{table}: {len(registered_partitions(table))} registered partitions looked at")
            yield from cut_back(pipeline)
            yield from _missing(pipeline)
            yield from unproved(pipeline)
            yield from unrenamed(pipeline)
            yield from unfinished_and_unknown_erasures(pipeline)
            yield from _event_gaps(pipeline)
            yield from outputs_behind(pipeline)
    except TidemarkError as error:
        yield Finding(False, f"ledger and catalog cannot be read: {error.message}", error.remedy)


def _elsewhere() -> Iterator[Finding]:
    # Whoever has moved the lake may leave them where they are; whoever has not, sees all other files missing below.
    if outside := registered_outside(lake.root()):
        what = f"{len(outside)} registered revisions lie outside of the lake {lake.root()}, such as {outside[0]}"
        yield Finding(True, what, "set TIDEMARK_LAKE to the lake in which they were built", notice=True)


def undeclared() -> Iterator[Finding]:
    """Yield a finding for each running stream of a pipeline that is no longer declared."""
    for each in undeclared_streams():
        yield Finding(False, str(each), each.remedy)


def unproved(pipeline: Pipeline) -> Iterator[Finding]:
    """Yield a note when registered intervals have no proof yet."""
    if count := len(proofs.unproved(pipeline.name)):
        what = f"{pipeline.name}: registered intervals without a proof: {count}"
        yield Finding(True, what, "they are written when the pipeline's next intervals are registered", notice=True)


def unrenamed(pipeline: Pipeline) -> Iterator[Finding]:
    """Yield a note when tables still show a renamed column by its former name."""
    if count := len(left_to_rename(pipeline)):
        what = f"{pipeline.name}: intervals whose files lack the new name of a renamed column: {count}"
        yield Finding(True, what, f"./tidemark rename {pipeline.name}", notice=True)


def _event_gaps(pipeline: Pipeline) -> Iterator[Finding]:
    for gap in gaps_of(pipeline.name):
        command = f"./tidemark produce {pipeline.name} --from-stream URL --accept-gap present|TIME"
        yield Finding(True, str(gap), "" if gap.until_at else command, notice=True)


def outputs_behind(pipeline: Pipeline) -> Iterator[Finding]:
    """Yield a note for each output of rows that waits, or has refused rows."""
    for each in row_outputs.states(pipeline.name, [output.name for output in pipeline.outputs]):
        named = f"{pipeline.name}: the output {each.output}"
        if each.waits_for:
            yield Finding(True, f"{named} is {each.behind} micro-batches behind: {each.waits_for}", notice=True)
        if each.refused:
            what = f"{named} has refused {each.refused} rows"
            yield Finding(True, what, f"./tidemark outputs {pipeline.name} --json", notice=True)


def cut_back(pipeline: Pipeline) -> Iterator[Finding]:
    """Yield a finding when topic partitions end before what was read of them; none while Kafka is away."""
    try:
        check_log(pipeline)
    except LogTruncated as error:
        yield Finding(False, f"{pipeline.name}: {error.message}", error.remedy)
    except TidemarkError:
        # A service that is away has a finding of its own, and the stream names a topic that is another.
        return


def _missing(pipeline: Pipeline) -> Iterator[Finding]:
    # Nobody has to build them: an operator may want the last hours only.
    summary = summarize_missing(pipeline)
    if summary.count:
        yield Finding(True, str(summary), building_commands(pipeline), notice=True)


def unfinished_and_unknown_erasures(pipeline: Pipeline) -> Iterator[Finding]:
    """Yield a finding for each erasure that is not finished, or that this ledger, an older copy, does not know."""
    for each in accounts.unknown(pipeline.name):
        yield Finding(False, str(each), each.remedy)
    begun = unfinished.unfinished(pipeline.name)
    if begun is not None:
        what = f"{pipeline.name}: erasure {begun.id} is unfinished: files still hold records that nobody reads any more"
        yield Finding(False, what, f"./tidemark erase {pipeline.name} --resume")
