"""Whatever is lost, late or restarted: the adapter sees one instance that never errs."""

from __future__ import annotations

import os

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from model import Model

EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "30"))


def test_the_adapter_sees_one_instance_that_never_errs(memory_disk: None) -> None:
    # The same histories each time, unless more are asked for.
    derandomize = "FLOW_LAW_EXAMPLES" not in os.environ
    limits = settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None, derandomize=derandomize)
    run_state_machine_as_test(Model, settings=limits)
