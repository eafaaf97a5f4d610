"""Which state of a revision may follow which."""

from __future__ import annotations

import pytest

from include.errors import TidemarkError
from include.ledger.intervals.states import RETIRED, RevisionState, check_transition


@pytest.mark.parametrize("after", sorted(set(RevisionState) - {RevisionState.REGISTERED, RevisionState.SUPERSEDED}))
def test_registered_revision_stays_registered_when_anything_but_a_registration_asks_for_it(
    after: RevisionState,
) -> None:
    with pytest.raises(TidemarkError, match=f"r1 is registered and cannot become {after}"):
        check_transition("r1", RevisionState.REGISTERED, after)


@pytest.mark.parametrize(
    "after",
    sorted(set(RevisionState) - {RevisionState.REGISTERING, RevisionState.REGISTERED, RevisionState.SUPERSEDED}),
)
def test_revision_cannot_be_given_up_when_it_is_being_registered(after: RevisionState) -> None:
    with pytest.raises(TidemarkError, match="is registering"):
        check_transition("r1", RevisionState.REGISTERING, after)


@pytest.mark.parametrize("before", sorted(set(RevisionState) - {RevisionState.REGISTERING, RevisionState.REGISTERED}))
def test_nothing_is_registered_when_its_intent_was_not_noted(before: RevisionState) -> None:
    with pytest.raises(TidemarkError, match="cannot become registered"):
        check_transition("r1", before, RevisionState.REGISTERED)


@pytest.mark.parametrize("before", [*sorted(RETIRED), RevisionState.REMOVED])
def test_revision_is_never_registered_again_when_its_files_are_gone(before: RevisionState) -> None:
    with pytest.raises(TidemarkError):
        check_transition("r1", before, RevisionState.REGISTERING)


def test_state_stays_when_it_is_noted_twice() -> None:
    refused = []
    for state in RevisionState:
        try:
            check_transition("r1", state, state)
        except TidemarkError as error:
            refused.append(str(error))
    assert refused == []
