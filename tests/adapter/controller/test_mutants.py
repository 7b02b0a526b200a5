"""The model notices when any rule of the controller, or of instances, is switched off."""

from __future__ import annotations

import pytest
from model import play
from mutants import MUTANTS

from derive.errors import FlowError

STEPS = 40
HISTORIES = 100


@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_that_is_switched_off_is_missed(name: str, monkeypatch: pytest.MonkeyPatch, memory_disk: None) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises((AssertionError, FlowError)):
        for seed in range(HISTORIES):
            play(seed, STEPS)


def test_without_mutants_the_same_histories_are_fine(memory_disk: None) -> None:
    for seed in range(10):
        play(seed, STEPS)
