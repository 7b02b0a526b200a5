"""How each replica of a controller is, for those who look."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from derive.adapter.controller.controller import Controller
from derive.compute.protocol.messages import Report, Welcome


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """How a replica is.

    Attributes:
        name: of the replica.
        address: `host:port`; empty in this process, or while there is none.
        trouble: why it is not connected; empty if it is, or nothing is known.
        welcome: what it said as it was connected; None if it is not.
        report: how its process is; None before it has said so.
        dataflows: how many it has told something of.
        lag: how far its slowest dataflow is behind what is known of it, in microseconds.
    """

    name: str
    address: str
    trouble: str
    welcome: Welcome | None = None
    report: Report | None = None
    dataflows: int = 0
    lag: int = 0


def replica_states(controller: Controller, places: Iterable[tuple[str, str, str]]) -> list[ReplicaState]:
    """How replicas are.

    Args:
        controller: of them.
        places: the name of each, its address, and why it is not connected.
    """
    connected = controller.replicas()
    states = []
    for name, address, trouble in places:
        replica = connected.get(name)
        if replica is None or replica.welcome is None:
            states.append(ReplicaState(name, address, trouble))
        else:
            known, lag = len(replica.uppers), controller.lag(replica)
            states.append(ReplicaState(name, address, "", replica.welcome, replica.report, known, lag))
    return states
