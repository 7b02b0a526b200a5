"""Whatever is lost, late or restarted: the adapter sees one instance that never errs."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from laws import check, end
from model import EVENTS, HISTORIES, play
from mutants import MUTANTS, NOTICED
from world import World

from derive.errors import FlowError

EXAMPLES = os.environ.get("FLOW_LAW_EXAMPLES")
# Those in which mutants are noticed, unless others are asked for; a history that fails tells its seed.
FIRST = Random().randrange(1 << 32) if EXAMPLES else 0
AT_ONCE = 10

_RANDOMS = st.randoms(use_true_random=False)
"""What an event draws from them is drawn by Hypothesis, which can make it simpler."""


PARTS = range(0, int(EXAMPLES or HISTORIES), AT_ONCE)


@pytest.mark.parametrize(
    "begin", [pytest.param(begin, marks=pytest.mark.torture if begin and not EXAMPLES else ()) for begin in PARTS]
)
def test_clients_of_the_controller_see_one_faultless_instance(begin: int) -> None:
    for seed in range(begin, min(begin + AT_ONCE, int(EXAMPLES or HISTORIES))):
        play(FIRST + seed)


@pytest.mark.parametrize("seed", sorted({seed for seed in NOTICED.values() if seed >= AT_ONCE}))
def test_histories_that_detect_mutants_break_no_law_of_the_original(seed: int) -> None:
    play(seed)


class Reconciliation(RuleBasedStateMachine):
    """The same events and laws, of which Hypothesis finds a short history that breaks one."""

    def __init__(self) -> None:
        super().__init__()
        self._world = World()

    @initialize(random=_RANDOMS, processes=st.integers(1, 3))
    def begin(self, random: Random, processes: int) -> None:
        for _ in range(processes):
            self._world.begin_process(random)
        self._world.begin_controller()

    @rule(event=st.sampled_from(EVENTS), random=_RANDOMS)
    def go_on(self, event: Callable[[World, Random], None], random: Random) -> None:
        event(self._world, random)
        self._world.go_on(random)
        check(self._world)

    def teardown(self) -> None:
        try:
            end(self._world)
        finally:
            self._world.close()


def test_no_short_history_breaks_a_law() -> None:
    limits = settings(max_examples=int(EXAMPLES or 6), stateful_step_count=40, deadline=None, derandomize=not EXAMPLES)
    run_state_machine_as_test(Reconciliation, settings=limits)


# The model notices when any rule of the controller, or of instances, is switched off.


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MUTANTS)
def test_disabled_rule_breaks_a_law(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises((AssertionError, FlowError)):  # test_reconciliation.py plays the same without mutants
        for seed in (NOTICED.get(name, 0), *range(HISTORIES)):
            play(seed)
