"""A replica that cannot go on with a tail from where it is follows the rest of it, where another one is further."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from test_retries import BELOW

from derive.compute.protocol.messages import Command, CreateDataflows, Dataflow, Tail, TailResponse
from derive.errors import FrontierError
from derive.sql.maintenance.controller.controller import Controller


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


def test_a_replica_that_was_behind_begins_anew_and_one_that_cannot_begin_does_not() -> None:
    controller, links, told = Controller(1, Nothing()), {name: Heard() for name in "ab"}, list[TailResponse]()
    for name, link in links.items():
        controller.attach(name, link)
    whole = replace(BELOW, id=103, export=Tail(has_snapshot=True))
    controller.subscribe(whole, told.append)
    for link in links.values():
        controller.receive(link, TailResponse(103, 1, 2, ((1, (1, 1), 1),)))
    controller.receive(links["a"], TailResponse(103, 2, 9, ((5, (2, 2), 1),)))

    controller.receive(links["b"], failed(2))
    rest = replace(whole, export=Tail(has_snapshot=False), as_of=8)
    assert links["b"].tails() == [whole, rest]
    controller.detach("a", links["a"])
    controller.receive(links["b"], TailResponse(103, 9, 12, ((11, (3, 3), 1),)))
    assert [(one.lower, one.upper, one.failure) for one in told] == [(1, 2, None), (2, 9, None), (9, 12, None)]

    controller.attach("a", links["a"])
    controller.receive(links["a"], failed(11))
    assert links["a"].tails() == [whole, replace(rest, as_of=11)]
    assert told[-1].failure is None
    controller.detach("b", links["b"])
    assert str(told[-1].failure) == "it is forgotten"
