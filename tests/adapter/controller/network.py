"""Controllers, replicas and connections that a test drives one message at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from changing import Changing

from derive.adapter.controller.controller import Controller
from derive.compute.algebra.relation import GlobalId
from derive.compute.dataflow.input import Input
from derive.compute.instance import Instance
from derive.compute.protocol.messages import Command, Dataflow, Response
from derive.compute.reconciler import Reconciler
from derive.compute.session import Identity
from derive.errors import FlowError, FrontierError


@dataclass(eq=False)
class Wire:
    """A connection: two queues, which end at a controller and at a replica, and may be cut at either end.

    Attributes:
        controller: at its upper end; None once that end is gone.
        replica: at its lower end; None once that end is gone.
        down: commands under way.
        up: responses under way.
        link: the controller's end.
        session: the replica's end.
    """

    controller: Controller | None
    replica: Reconciler | None
    down: deque[Command] = field(default_factory=deque)
    up: deque[Response] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.link, self.session = Link(self), Session(self)

    def deliver(self, random: Random) -> None:
        """One message arrives, or one each way, or none."""
        if self.down and random.random() < 0.8:
            command = self.down.popleft()
            if self.replica is not None:
                self.replica.accept(self.session, command)
        if self.up and random.random() < 0.8:
            response = self.up.popleft()
            if self.controller is not None:
                self.controller.receive(self.link, response)


@dataclass(frozen=True, eq=False)
class Link:
    """The controller's end of a wire."""

    wire: Wire

    @property
    def is_local(self) -> bool:
        return False

    def send(self, command: Command) -> None:
        if self.wire.controller is not None:
            self.wire.down.append(command)

    def close(self) -> None:
        self.wire.controller = None


@dataclass(frozen=True, eq=False)
class Session:
    """The replica's end of a wire."""

    wire: Wire

    def send(self, response: Response) -> None:
        if self.wire.replica is not None:
            self.wire.up.append(response)

    def close(self) -> None:
        self.wire.replica = None


class Memory:
    """What collections hold, and from when on it is remembered for whom.

    Attributes:
        is_shut: nothing can be opened.
    """

    def __init__(self, collections: Mapping[GlobalId, Changing]) -> None:
        self.collections = collections
        self.since = 1
        self.is_shut = False
        self.opened: list[int] = []
        self.held: dict[GlobalId, int] = {}

    def hold(self, dataflows: Sequence[Dataflow]) -> None:
        """Hold what dataflows read."""
        for dataflow in dataflows:
            if dataflow.as_of < self.since:
                raise FrontierError(f"what was before {self.since} is forgotten")
            self.held[dataflow.id] = dataflow.as_of

    def release(self, identifier: GlobalId) -> None:
        """Hold it no more."""
        self.held.pop(identifier, None)

    def compact(self, time: int) -> None:
        """Forget what nobody holds, before a time."""
        self.since = max(self.since, min([time, *self.held.values()]))

    def open(self, dataflow: Dataflow, as_of: int) -> dict[GlobalId, Input]:
        """Open what a dataflow reads."""
        self.opened.append(as_of)
        if self.is_shut:
            raise FlowError("the disk is away")
        if as_of < self.since:
            raise FrontierError(f"what was before {self.since} is forgotten")
        return {source.id: self.collections[source.id].since(as_of) for source in dataflow.imports}


class Process:
    """A replica as a process: it may die, and come back with what is on disk, or without."""

    def __init__(self, name: str, memory: Memory, folder: Path, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.name, self._memory, self._folder, self._clock = name, memory, folder, clock
        self.count = 0
        self.begin(is_lost=False)

    def begin(self, *, is_lost: bool) -> None:
        """Start, maybe on an empty disk."""
        self.count += 1
        folder = self._folder / (f"{self.name}-{self.count}" if is_lost else self.name)
        self.reconciler = Reconciler(
            Instance(folder),
            self._memory.open,
            lambda instance, identifier: None,
            identity=Identity(f"{self.name}-{self.count}"),
            run=lambda task: task(),
            wake=lambda: None,
            clock=self._clock,
        )

    def die(self, *, is_lost: bool) -> None:
        """Die, and start again."""
        self.reconciler.close()
        self.begin(is_lost=is_lost)
