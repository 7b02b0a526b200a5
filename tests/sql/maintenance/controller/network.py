"""Controllers, replicas and connections that a test drives one message at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from changing import Changing

from derive.algebra.relation import GlobalId
from derive.compute.dataflow.hydration import MOST_HERE
from derive.compute.dataflow.input import Input
from derive.compute.dataflow.staging import Order, carry_out
from derive.compute.instance import Instance
from derive.compute.protocol.messages import (
    Command,
    CreateDataflows,
    Dataflow,
    Hello,
    Peek,
    PeekResponse,
    Report,
    Response,
    TailResponse,
    Welcome,
)
from derive.compute.replica.reconciler import Reconciler
from derive.compute.replica.session import Identity
from derive.errors import FlowError, FrontierError
from derive.sql.maintenance.controller.controller import Controller


@dataclass(eq=False)
class Wire:
    """A connection: two queues, which end at a controller and at a replica, and may be cut at either end.

    Attributes:
        controller: at its upper end.
        replica: at its lower end; None once that end is gone.
        down: commands under way.
        up: responses under way.
        is_open: whether the controller has not closed it; what is under way may arrive nevertheless.
        is_stalled: nothing arrives for now.
        is_lost: whether the replica's end is closed; what it has read already is obeyed nevertheless.
        hello: what the controller has begun with.
        rivals: what other connections to the same replica have begun with, as it has heard of them.
        handed_on: of tails, how far each was handed on as the controller connected.
        begins: from when on the replica was told to maintain dataflows, as far as it has heard of that.
        link: the controller's end.
        session: the replica's end.
    """

    controller: Controller
    replica: Reconciler | None
    down: deque[Command] = field(default_factory=deque)
    up: deque[Response] = field(default_factory=deque)
    is_open: bool = True
    is_stalled: bool = False
    is_lost: bool = False
    hello: tuple[int, int] = (-1, -1)
    rivals: set[tuple[int, int]] = field(default_factory=set)
    handed_on: dict[GlobalId, int] = field(default_factory=dict)
    begins: dict[GlobalId, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.link, self.session = Link(self), Session(self)

    def deliver(self, random: Random) -> None:
        """One message arrives, or one each way, or none."""
        if self.is_stalled:
            return
        if self.down and random.random() < 0.8:
            command = self.down.popleft()
            if self.replica is not None:
                if isinstance(command, Hello):
                    self.rivals.add(self.hello)
                elif isinstance(command, CreateDataflows):
                    self.begins |= {dataflow.id: dataflow.as_of for dataflow in command.dataflows}
                self.replica.accept(self.session, command)
        if self.up and random.random() < 0.8:
            self.controller.receive(self.link, self.up.popleft())

    def is_quiet(self) -> bool:
        """Whether nothing is under way."""
        return not self.down and not self.up

    def has_under_way(self, uuid: int) -> bool:
        """Whether the replica has yet to hear of a peek."""
        return any(isinstance(command, Peek) and command.uuid == uuid for command in self.down)

    def is_at_work_on(self, uuid: int) -> bool:
        """Whether a peek is known at the replica, or its answer is under way; or nobody knows, as that end is gone."""
        if self.replica is None or uuid in self.replica.peeks._waiting or self.has_under_way(uuid):
            return True
        return any(isinstance(response, PeekResponse) and response.uuid == uuid for response in self.up)

    def lose(self) -> None:
        """The replica's end is gone."""
        self.is_lost, self.replica = True, None
        self.down.clear()


@dataclass(frozen=True, eq=False)
class Link:
    """The controller's end of a wire."""

    wire: Wire

    @property
    def is_local(self) -> bool:
        return False

    def send(self, command: Command) -> None:
        if self.wire.is_open and not self.wire.is_lost:
            if isinstance(command, Hello):
                self.wire.hello = command.epoch, command.session
            self.wire.down.append(command)

    def close(self) -> None:
        self.wire.is_open = False


@dataclass(frozen=True, eq=False)
class Session:
    """The replica's end of a wire."""

    wire: Wire

    def send(self, response: Response) -> None:
        if self.wire.is_lost:
            return
        if isinstance(response, TailResponse):
            first = self.wire.handed_on.get(response.id, 0)
            assert all(time >= first for time, _, _ in response.updates), "what was handed on is sent again"
        if isinstance(response, Report):  # there are more or fewer of them, as the process's memory is
            self.wire.controller.receive(self.wire.link, response)
        else:
            self.wire.up.append(response)

    def close(self) -> None:
        assert any(rival > self.wire.hello for rival in self.wire.rivals), (
            "an older controller has closed a newer one out"
        )
        self.wire.is_lost = True


class Memory:
    """What collections hold, and from when on it is remembered for whom.

    Attributes:
        since: from this time on it is remembered.
        held: for whom, from which times on.
        is_shut: nothing can be opened.
        opened: as of which times something was to be opened.
        dies: whether the process dies as it holds something; False before that is durable, True after.
    """

    def __init__(self, collections: Mapping[GlobalId, Changing]) -> None:
        self.collections = collections
        self.since = 1
        self.held: dict[GlobalId, int] = {}
        self.is_shut = False
        self.opened: list[int] = []
        self.dies: bool | None = None

    def acquire(self, dataflows: Sequence[Dataflow]) -> None:
        """Hold what dataflows read."""
        if self.dies is False:
            raise Died
        for dataflow in dataflows:
            if dataflow.as_of < self.since:
                raise FrontierError(f"what was before {self.since} is forgotten")
            assert dataflow.as_of >= self.held.get(dataflow.id, 0), "a hold went back"
            self.held[dataflow.id] = dataflow.as_of
        if self.dies:
            raise Died

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
        since = max(self.since, self.held.get(dataflow.id, 0))  # that somebody else holds it is nobody's right
        if as_of < since:
            raise FrontierError(f"what was before {since} is forgotten")
        return {source.id: self.collections[source.id].movable(as_of) for source in dataflow.imports}


class Died(Exception):
    """A process has died."""


def _refuse(*_: object) -> None:
    raise FlowError("the disk is away")


class Later:
    """An order to work out the first rows of a dataflow, which is carried out when it is looked at for the third time."""

    rows = running = 0

    def __init__(self, order: Order) -> None:
        self._order, self._looks = order, 2

    def outcome(self) -> Mapping[GlobalId, FlowError] | None:
        self._looks -= 1
        return carry_out(self._order) if self._looks < 0 else None

    def stop(self) -> None: ...


class Process:
    """A replica as a process: it may die, and come back with what is on disk, or without.

    Args:
        name: of the replica.
        memory: that it reads.
        folder: for its disk.
        clock: counts seconds.
        most_here: dataflows of more rows are hydrated beside others.
        tell: is told what it has kept.

    Attributes:
        reconciler: at work.
        count: of starts.
        tried: of dataflows, as of when each was to begin last.
    """

    def __init__(
        self,
        name: str,
        memory: Memory,
        folder: Path,
        clock: Callable[[], float] = lambda: 0.0,
        *,
        most_here: int = MOST_HERE,
        tell: Callable[[Process, Welcome], None] = lambda process, welcome: None,
    ) -> None:
        self.name, self._memory, self._folder, self._clock = name, memory, folder, clock
        self._most_here, self._tell, self._place = most_here, tell, folder / name
        self.rivals: set[tuple[int, int]] = set()
        self.tried: dict[GlobalId, int] = {}
        self.count = 0
        self.begin(is_lost=False)

    def begin(self, *, is_lost: bool) -> None:
        """Start, maybe on an empty disk."""
        self.count += 1
        if is_lost:
            self._place = self._folder / f"{self.name}-{self.count}"
        self.rivals = set()
        self.reconciler = Reconciler(
            Instance(self._place, most_here=self._most_here, stage=Later),
            self._open,
            lambda instance, identifier: {},
            identity=Identity(f"{self.name}-{self.count}"),
            run=lambda task: task(),
            wake=lambda: None,
            notify=lambda welcome: self._tell(self, welcome),
            clock=self._clock,
        )

    def _open(self, dataflow: Dataflow, as_of: int) -> dict[GlobalId, Input]:
        self.tried[dataflow.id] = as_of
        return self._memory.open(dataflow, as_of)

    def fill(self, *, is_full: bool) -> None:
        """Have its disk take nothing that dataflows go through, or take it again."""
        database = self.reconciler._instance.main._connection
        database.execute("DROP TRIGGER IF EXISTS temp.full")
        if is_full:
            database.create_scalar_function("refuse", _refuse, 0)
            database.execute(
                "CREATE TEMP TRIGGER full BEFORE UPDATE OF upper ON main.cohorts BEGIN SELECT refuse(); END"
            )

    def die(self, *, is_lost: bool) -> None:
        """Die, and start again."""
        self.reconciler.close()
        self.begin(is_lost=is_lost)
