"""A sample of the torture of instances, in which every failpoint of dataflows is reached."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))

from faults import Fault, Faults
from history import Outcome
from torture_instances import InstanceTorture


def script(faults: Faults) -> Iterator[Sequence[Fault]]:
    """Each of two instances is lost in one way or another, and once the server; one of the two always lives."""
    first, second = faults.cluster.instances
    yield [partial(faults.at_failpoint, first, "dataflow.committing:2")]
    yield [partial(faults.at_failpoint, second, "dataflow.committed:2:pause")]
    yield [partial(faults.held, first), partial(faults.server_at_failpoint, "dataflow.held")]


@pytest.mark.xdist_group("instances")
def test_clients_see_one_history_under_any_loss(tmp_path: Path) -> None:
    torture = InstanceTorture(tmp_path, seed=1, arrangements=iter([(2, 0)]), script=script, longest=1.0)
    torture.run(rounds=3)

    assert torture.faults.reached == {"dataflow.committing", "dataflow.committed", "dataflow.held"}
    assert torture.outcomes[Outcome.OK] > 0
    assert torture.told > 0
    assert torture.checks == 2
