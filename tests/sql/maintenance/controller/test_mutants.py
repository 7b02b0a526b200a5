"""The model notices when any rule of the controller, or of instances, is switched off."""

from __future__ import annotations

import pytest
from model import HISTORIES, play
from mutants import MUTANTS, NOTICED

from derive.errors import FlowError


@pytest.mark.sampled(14)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_that_is_switched_off_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises((AssertionError, FlowError)):  # test_reconciliation.py plays the same without mutants
        for seed in (NOTICED.get(name, 0), *range(HISTORIES)):
            play(seed)
