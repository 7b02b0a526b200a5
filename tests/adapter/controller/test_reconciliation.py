"""Whatever is lost, late or restarted: the adapter sees one instance that never errs."""

from __future__ import annotations

import os
from random import Random

import pytest
from model import HISTORIES, play

EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", HISTORIES))
# Those in which mutants are noticed, unless others are asked for; a history that fails tells its seed.
FIRST = Random().randrange(1 << 32) if "FLOW_LAW_EXAMPLES" in os.environ else 0
AT_ONCE = 25


@pytest.mark.parametrize("begin", range(0, EXAMPLES, AT_ONCE))
def test_the_adapter_sees_one_instance_that_never_errs(begin: int, memory_disk: None) -> None:
    for seed in range(begin, min(begin + AT_ONCE, EXAMPLES)):
        play(FIRST + seed)
