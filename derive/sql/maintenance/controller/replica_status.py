"""How each replica of a controller is, for those who look."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from derive.algebra.relation import GlobalId
from derive.compute.protocol.messages import Report, Upper, Welcome
from derive.errors import FlowError
from derive.sql.maintenance.controller.controller import Controller
from derive.sql.maintenance.controller.replica import Replica


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """How a replica is.

    Attributes:
        name: of the replica.
        address: `host:port`; empty in this process, or while there is none.
        trouble: why it is not connected; empty if it is, or nothing is known.
        welcome: what it said as it was connected; None if it is not.
        report: how its process is; None before it has said so.
        uppers: how far its dataflows are, as far as it has told.
        failures: why dataflows of it do not go on.
        lag: how far its slowest dataflow is behind what is known of it, in microseconds.
    """

    name: str
    address: str
    trouble: str
    welcome: Welcome | None = None
    report: Report | None = None
    uppers: Mapping[GlobalId, Upper] = field(default_factory=dict)
    failures: Mapping[GlobalId, FlowError] = field(default_factory=dict)
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
            lag, known = lag_of(controller, replica), (replica.uppers.copy(), replica.failures.copy())
            states.append(ReplicaState(name, address, "", replica.welcome, replica.report, *known, lag))
    return states


def lag_of(controller: Controller, replica: Replica) -> int:
    """How far the slowest dataflow of a replica is behind what is known of it, in microseconds."""
    lag = 0
    for identifier, known in list(replica.uppers.items()):
        with suppress(FlowError):
            lag = max(lag, controller.frontiers(identifier)[1] - known.upper)
    return lag
