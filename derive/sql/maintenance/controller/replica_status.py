"""The status of each replica of a controller, for display."""

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
    """The status of a replica.

    Attributes:
        name: name of the replica.
        address: `host:port`; empty in this process, or without an address.
        trouble: reason why the replica is not connected; empty if it is, or if the reason is unknown.
        welcome: items kept, rebuilt and dropped when it connected; None without a connection.
        report: state of its process; None before the first report.
        uppers: known frontiers of its dataflows.
        failures: failures of its dataflows.
        lag: lag of its slowest dataflow behind the other replicas, in microseconds.
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
    """Return the status of replicas.

    Args:
        controller: the controller.
        places: name, address, and reason of the missing connection of each replica.
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
    """Return the lag of a replica's slowest dataflow behind the other replicas, in microseconds."""
    lag = 0
    for identifier, known in list(replica.uppers.items()):
        with suppress(FlowError):
            lag = max(lag, controller.frontiers(identifier)[1] - known.upper)
    return lag
