"""Results of expectations as rows of their own: a chart over a month of builds would read a month of findings."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import delete
from sqlalchemy.orm import Session

from include.ledger.intervals.findings import Validation
from include.ledger.models import Build, ExpectationRow


def keep_results(ledger: Session, build: Build, validation: Validation) -> None:
    """Copy what expectations found in a build into rows, within a transaction; those of an earlier check go."""
    ledger.execute(delete(ExpectationRow).where(ExpectationRow.build_id == build.id))
    for number, each in enumerate(validation.expectations):
        values = asdict(each)
        names = {"table_name": values.pop("table"), "column_name": values.pop("column")}
        # These stay with the findings: no chart draws them.
        del values["severity"], values["examples"]
        ledger.add(ExpectationRow(build_id=build.id, number=number, **names, **values))
