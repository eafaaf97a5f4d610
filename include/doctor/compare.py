"""Compare ledger, catalog and files of a pipeline: what they disagree about on two looks in a row."""

from __future__ import annotations

from itertools import chain

from include.doctor.completeness import check_completeness
from include.doctor.disagreement import Disagreement
from include.doctor.landing import check_landing
from include.doctor.open_tables import check_delta_table, check_open_tables
from include.doctor.served_views import check_served_views
from include.doctor.tables import check_tables
from include.pipelines.spec import Pipeline


def disagreements_of(pipeline: Pipeline, *, deep: bool) -> list[Disagreement]:
    """Return what ledger, catalog and files of a pipeline disagree about; `deep` also reads every file whole.

    The three are read one after the other, and a stream or an interval may go on meanwhile: what is registered between
    two of the readings looks like a disagreement. So they are compared once more, and only what is found again is
    returned. Raises ServiceUnreachable.
    """
    first = _look(pipeline, deep=deep)
    if not first:
        return []
    again = {identity(each): each for each in _look(pipeline, deep=False)}
    # Only reading files whole finds these, and no registration changes a file.
    again |= {identity(each): each for each in first if each.kind in ("changed content", "landing file damaged")}
    return [again[identity(each)] for each in first if identity(each) in again]


def _look(pipeline: Pipeline, *, deep: bool) -> list[Disagreement]:
    others = (check_open_tables, check_delta_table, check_completeness, check_served_views)
    return [
        *check_tables(pipeline, deep=deep),
        *check_landing(pipeline, deep=deep),
        *chain.from_iterable(check(pipeline) for check in others),
    ]


def identity(each: Disagreement) -> tuple[object, ...]:
    """Return what identifies a disagreement, whatever the words that describe it."""
    about = each.location or each.what
    return each.kind, each.table, each.partition, about, each.micro_batch, each.interval
