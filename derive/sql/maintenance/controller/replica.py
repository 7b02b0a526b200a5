"""The controller's knowledge of a replica, and its status for display."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from derive.algebra.relation import GlobalId
from derive.compute.protocol.messages import Command, CreateDataflows, Dataflow, Report, Status, Upper, Welcome
from derive.errors import FlowError


class Link(Protocol):
    """A connection to a replica.

    Attributes:
        is_local: whether the replica is in this process, so the connection cannot be lost.
    """

    @property
    def is_local(self) -> bool:
        """Return whether the replica is in this process."""

    def send(self, command: Command) -> None:
        """Send a command without waiting; do nothing if the connection is lost."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(slots=True, eq=False)
class Replica:
    """A connected replica.

    Attributes:
        name: name, unique in the controller.
        link: connection to the replica.
        welcome: items kept, rebuilt and dropped; None before the replica's first message.
        uppers: frontiers of its dataflows.
        failures: failures of its dataflows.
        report: state of its process; None before the first report.
        begun: `as_of` of dataflows that have not reported rows yet.
        peeks: number of peeks sent and not answered yet, by any replica.
        is_late: whether a peek was late, and no message has arrived after that.
    """

    name: str
    link: Link
    welcome: Welcome | None = None
    report: Report | None = None
    uppers: dict[GlobalId, Upper] = field(default_factory=dict)
    failures: dict[GlobalId, FlowError] = field(default_factory=dict)
    begun: dict[GlobalId, int] = field(default_factory=dict)
    peeks: int = 0
    is_late: bool = False

    def create(self, dataflows: Sequence[Dataflow]) -> None:
        """Send dataflows to the replica."""
        for dataflow in dataflows:
            self.forget(dataflow.id)
            self.begun[dataflow.id] = dataflow.as_of
        self.link.send(CreateDataflows(tuple(dataflows)))

    def learn(self, known: Upper) -> None:
        """Record a dataflow's frontiers. A dataflow without rows needs its inputs from its `as_of` on."""
        if known.since < known.upper:
            self.begun.pop(known.id, None)
        self.failures.pop(known.id, None)
        self.uppers[known.id] = known

    def note(self, status: Status) -> None:
        """Record the failure of a dataflow, or its recovery."""
        if status.failure is None:
            self.failures.pop(status.id, None)
        else:
            self.begun.pop(status.id, None)
            self.failures[status.id] = status.failure

    def has_begun(self, identifier: GlobalId) -> bool:
        """Return whether the replica has rows of a dataflow, after its hydration."""
        known = self.uppers.get(identifier)
        return known is not None and known.since < known.upper

    def rank(self, reads: Collection[GlobalId], time: int) -> tuple[bool, bool, bool, int]:
        """Return the rank of a replica for a peek: the peek is sent to the replica of lowest rank first.

        The replica of lowest rank responds, hydrates no dataflow, is complete at the time, and has few other peeks.
        """
        is_hydrating = self.report is not None and any(one.is_hydrating for one in self.report.hydrations)
        known = [upper for upper in map(self.uppers.get, reads) if upper is not None]
        is_unable = any(identifier in self.failures for identifier in reads)
        is_elsewhere = not all(upper.since <= time < upper.upper for upper in known)
        return self.is_late or is_unable, is_hydrating, is_elsewhere, self.peeks

    def forget(self, identifier: GlobalId) -> None:
        """Discard the state of a dataflow."""
        self.uppers.pop(identifier, None)
        self.failures.pop(identifier, None)
        self.begun.pop(identifier, None)


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """The status of a replica.

    Attributes:
        name: name of the replica.
        address: `host:port`; empty in this process, or without an address.
        trouble: reason why the replica is not connected; empty for a connected replica, or if the reason is unknown.
        welcome: items kept, rebuilt and dropped when the replica connected; None without a connection.
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
