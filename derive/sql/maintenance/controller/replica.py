"""What a controller knows of a replica, and how it reaches it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from derive.algebra.relation import GlobalId
from derive.compute.protocol.messages import Command, CreateDataflows, Dataflow, Report, Status, Upper, Welcome
from derive.errors import FlowError


class Link(Protocol):
    """A connection to a replica.

    Attributes:
        is_local: it is in this process, so neither is lost without the other.
    """

    @property
    def is_local(self) -> bool:
        """Whether the replica is in this process."""

    def send(self, command: Command) -> None:
        """Send a command; nothing if the connection is gone. It does not wait for anything."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(slots=True, eq=False)
class Replica:
    """A replica that is connected.

    Attributes:
        name: among those of the controller.
        link: to it.
        welcome: what it kept, rebuilt and dropped; None before it has said so.
        uppers: how far its dataflows are.
        failures: why dataflows of it do not go on.
        report: how its process is; None before it has said so.
        begun: dataflows of which it has told no rows yet, and as of when it was told to begin with them.
        peeks: how many it was asked that are not answered yet, by it or by others.
        is_late: it was waited for in vain, and nothing was heard of it since.
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
        """Have it maintain dataflows."""
        for dataflow in dataflows:
            self.forget(dataflow.id)
            self.begun[dataflow.id] = dataflow.as_of
        self.link.send(CreateDataflows(tuple(dataflows)))

    def learn(self, known: Upper) -> None:
        """A dataflow is as far as it says; while it has no rows, what it is to begin with is still to be read."""
        if known.since < known.upper:
            self.begun.pop(known.id, None)
        self.failures.pop(known.id, None)
        self.uppers[known.id] = known

    def note(self, status: Status) -> None:
        """A dataflow does not go on, or does again."""
        if status.failure is None:
            self.failures.pop(status.id, None)
        else:
            self.begun.pop(status.id, None)
            self.failures[status.id] = status.failure

    def has_begun(self, identifier: GlobalId) -> bool:
        """Whether it has rows of a dataflow, and does not only work them out."""
        known = self.uppers.get(identifier)
        return known is not None and known.since < known.upper

    def rank(self, reads: Collection[GlobalId], time: int) -> tuple[bool, bool, bool, int]:
        """Of replicas that have rows of dataflows, the one of the least rank is asked for them first.

        It is one that answers, has nothing large to work out, knows that time, and has little else to answer.
        """
        is_hydrating = self.report is not None and bool(self.report.hydrations)
        known = [upper for upper in map(self.uppers.get, reads) if upper is not None]
        is_unable = any(identifier in self.failures for identifier in reads)
        is_elsewhere = not all(upper.since <= time < upper.upper for upper in known)
        return self.is_late or is_unable, is_hydrating, is_elsewhere, self.peeks

    def forget(self, identifier: GlobalId) -> None:
        """Nothing is known of a dataflow any more."""
        self.uppers.pop(identifier, None)
        self.failures.pop(identifier, None)
        self.begun.pop(identifier, None)
