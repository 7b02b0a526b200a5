"""What begins later than it was told to is asked for from then on, so that a restarted controller finds it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from changing import Changing
from network import Memory
from test_retries import BELOW

from derive.algebra.expression import Column
from derive.algebra.relation import Finishing, Get
from derive.algebra.types import Type
from derive.compute.protocol.messages import (
    Command,
    CreateDataflows,
    Dataflow,
    Export,
    FrontierUppers,
    Import,
    Index,
    Materialized,
    Peek,
    Query,
    Response,
    Tail,
    TailResponse,
    Upper,
    Welcome,
)
from derive.errors import FrontierError
from derive.sql.maintenance.controller.controller import Controller

TYPES = (Type.BIGINT, Type.BIGINT)


class Quiet:
    """A replica that says what a test says."""

    is_local = False

    def __init__(self, controller: Controller, name: str) -> None:
        self._controller, self.commands = controller, list[Command]()
        controller.attach(name, self)
        self.say(Welcome(name, 1, (), (), ()))

    def send(self, command: Command) -> None:
        self.commands.append(command)

    def close(self) -> None: ...

    def say(self, response: Response) -> None:
        self._controller.receive(self, response)

    def is_at(self, since: int, upper: int) -> None:
        (reported,) = [command for command in self.commands if isinstance(command, CreateDataflows)]
        self.say(FrontierUppers((Upper(7, since, upper, reported.dataflows[0].number),)))


def world(export: Export) -> tuple[Controller, Memory]:
    memory = Memory({1: Changing(TYPES)})
    controller = Controller(1, memory)
    controller.create([Dataflow(7, Get(1, TYPES), (Import(1, None, "u"),), export, 5)])  # type: ignore[arg-type]
    return controller, memory


def test_capability_of_an_index_follows_its_start() -> None:
    controller, memory = world(Index((Column(0, Type.BIGINT),)))
    replica = Quiet(controller, "a")
    assert controller.late() == {}
    replica.is_at(9, 12)

    controller.allow_compaction(controller.late())

    assert memory.held == {7: 9}
    replica.is_at(9, 13)
    assert controller.late() == {}


def test_capability_of_a_dataflow_moves_once_all_replicas_have_begun() -> None:
    controller, memory = world(Index((Column(0, Type.BIGINT),)))
    first, second = Quiet(controller, "a"), Quiet(controller, "b")
    first.is_at(6, 12)
    controller.allow_compaction(controller.late())
    assert memory.held == {7: 5}  # the other one may begin there

    second.is_at(9, 12)
    controller.allow_compaction(controller.late())
    assert memory.held == {7: 9}


def test_inputs_are_kept_until_a_replica_is_hydrated() -> None:
    controller, memory = world(Index((Column(0, Type.BIGINT),)))
    first, second = Quiet(controller, "a"), Quiet(controller, "b")
    first.is_at(5, 20)
    second.is_at(5, 5)  # so it says while it works them out, for minutes perhaps
    controller.allow_compaction({7: 15})
    assert memory.held == {7: 5}

    second.is_at(5, 12)
    controller.allow_compaction({7: 15})
    assert memory.held == {7: 15}


def test_late_dataflows_are_reported_once() -> None:
    controller, memory = world(Materialized(1))
    Quiet(controller, "a").is_at(9, 12)

    assert controller.late() == {7: 9}
    controller.allow_compaction({7: 6})  # a view is needed from where it was written on
    assert memory.held == {7: 6}
    assert controller.late() == {}


def test_starting_replica_receives_pending_peeks() -> None:
    """One that has begun may stand still, and one that begins later may be further."""
    controller, _ = world(Index((Column(0, Type.BIGINT),)))
    first, second = Quiet(controller, "a"), Quiet(controller, "b")
    first.is_at(5, 20)
    query = Query(Get(7, TYPES), Finishing((), None, 0, (0, 1)))
    controller.peek(query, 50, lambda response: None)

    def asked(replica: Quiet) -> list[int]:
        return [command.time for command in replica.commands if isinstance(command, Peek)]

    assert (asked(first), asked(second)) == ([50], [])
    second.is_at(5, 100)
    assert (asked(first), asked(second)) == ([50], [50])
    second.is_at(5, 110)
    assert asked(second) == [50]


# A replica that cannot go on with a tail from where it is follows the rest of it, where another one is further.


class Nothing:
    """Nothing is forgotten."""

    def acquire(self, dataflows: object) -> None: ...

    def release(self, identifier: int) -> None: ...


@dataclass(eq=False)
class Heard:
    """A connection that remembers what was sent."""

    commands: list[Command] = field(default_factory=list)
    is_local = False

    def send(self, command: Command) -> None:
        self.commands.append(command)

    def close(self) -> None: ...

    def tails(self) -> list[Dataflow]:
        return [dataflow for one in self.commands if isinstance(one, CreateDataflows) for dataflow in one.dataflows]


def failed(upper: int) -> TailResponse:
    return TailResponse(103, upper, upper, (), FrontierError("it is forgotten"))


def test_replica_behind_its_inputs_starts_over() -> None:
    controller, links, reported = Controller(1, Nothing()), {name: Heard() for name in "ab"}, list[TailResponse]()
    for name, link in links.items():
        controller.attach(name, link)
    whole = replace(BELOW, id=103, export=Tail(has_snapshot=True))
    controller.subscribe(whole, reported.append)
    for link in links.values():
        controller.receive(link, TailResponse(103, 1, 2, ((1, (1, 1), 1),)))
    controller.receive(links["a"], TailResponse(103, 2, 9, ((5, (2, 2), 1),)))

    controller.receive(links["b"], failed(2))
    rest = replace(whole, export=Tail(has_snapshot=False), as_of=8)
    assert links["b"].tails() == [whole, rest]
    controller.detach("a", links["a"])
    controller.receive(links["b"], TailResponse(103, 9, 12, ((11, (3, 3), 1),)))
    assert [(one.lower, one.upper, one.failure) for one in reported] == [(1, 2, None), (2, 9, None), (9, 12, None)]

    controller.attach("a", links["a"])
    controller.receive(links["a"], failed(11))
    assert links["a"].tails() == [whole, replace(rest, as_of=11)]
    assert reported[-1].failure is None
    controller.detach("b", links["b"])
    assert str(reported[-1].failure) == "it is forgotten"
