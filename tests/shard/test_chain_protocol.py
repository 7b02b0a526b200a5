"""The protocol of states that travel: a search of all states of a model, and of the model with a rule left out."""

from __future__ import annotations

import pytest
from chain_protocol import Bounds, Flaw, Model, Outcome, explore

SMALL = [
    (Bounds(transactions=1, attempts=1, machines=1, drivers=2), 5_994),
    (Bounds(transactions=1, attempts=2, machines=2, drivers=1), 1_452),
    (Bounds(transactions=2, attempts=1, machines=2, drivers=1), 2_906),
    pytest.param(Bounds(transactions=2, attempts=2, machines=1, drivers=1), 72_935, marks=pytest.mark.torture),
]
LARGE = [
    Bounds(transactions=1, attempts=2, machines=1, drivers=2),
    Bounds(transactions=2, attempts=1, machines=1, drivers=2),
    Bounds(transactions=2, attempts=2, machines=2, drivers=2),
]


@pytest.mark.parametrize(("bounds", "states"), SMALL)
def test_l2_protocol_holds_in_all_states(bounds: Bounds, states: int) -> None:
    """Law: a committed chain exists, is not torn, and has each committed transaction once."""
    assert explore(Model(bounds)) == Outcome(states, is_complete=True)


@pytest.mark.torture
@pytest.mark.parametrize("bounds", LARGE)
def test_l2_protocol_holds_in_many_states(bounds: Bounds) -> None:
    assert explore(Model(bounds)).violation == ""


@pytest.mark.parametrize(
    ("flaw", "bounds"),
    [
        (Flaw.NAMES_BY_TRANSACTION, Bounds(1, 2, 1, 1)),
        (Flaw.COMMIT_WITHOUT_EPOCH, Bounds(1, 1, 1, 2)),
        (Flaw.COLLECT_ANY_EPOCH, Bounds(1, 1, 1, 2)),
        (Flaw.LOST_ANSWER_IS_FAILURE, Bounds(1, 1, 1, 1)),
        (Flaw.LOST_ANSWER_IS_READ, Bounds(1, 1, 1, 1)),
        (Flaw.CACHE_BY_LENGTH, Bounds(2, 2, 1, 1)),
        (Flaw.NO_NEWEST_ATTEMPT, Bounds(2, 2, 1, 1)),
    ],
)
def test_search_finds_each_rule_that_is_left_out(flaw: Flaw, bounds: Bounds) -> None:
    assert explore(Model(bounds, flaw)).violation != ""
