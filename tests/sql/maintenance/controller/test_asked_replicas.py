"""Which of several replicas are asked: one, which is likely to answer soon, and the others if it does not."""

from __future__ import annotations

import pytest
from test_late_dataflows import TYPES, Quiet, world

from derive.algebra.expression import Column
from derive.algebra.relation import Finishing, Get
from derive.algebra.types import Type
from derive.compute.instance import Progress
from derive.compute.protocol.messages import Index, Peek, PeekResponse, Query, Report, Status
from derive.errors import FlowError
from derive.sql.maintenance.controller.controller import Controller

QUERY = Query(Get(7, TYPES), Finishing((), None, 0, (0, 1)))


class World:
    """A controller, and two replicas that are equally far."""

    def __init__(self) -> None:
        self.controller: Controller = world(Index((Column(0, Type.BIGINT),)))[0]
        self.replicas = {name: Quiet(self.controller, name) for name in "ab"}
        for replica in self.replicas.values():
            replica.is_at(5, 20)

    def ask(self, time: int = 19) -> int:
        """Ask, and wait for no answer."""
        return self.controller.peek(QUERY, time, lambda response: None)

    def asked(self, uuid: int) -> str:
        """Who was asked."""
        peeks = {
            name: [one for one in replica.commands if isinstance(one, Peek)] for name, replica in self.replicas.items()
        }
        return "".join(name for name in peeks if uuid in [peek.uuid for peek in peeks[name]])


@pytest.fixture
def two() -> World:
    return World()


def test_peeks_are_sent_to_a_replica_without_pending_peeks(two: World) -> None:
    first, second = two.ask(), two.ask()
    assert (two.asked(first), two.asked(second)) == ("a", "b")

    two.replicas["a"].say(PeekResponse(first, ()))
    assert two.asked(two.ask()) == "a"
    two.controller.cancel(second)
    assert two.asked(two.ask()) == "b"


def test_late_peek_is_sent_to_other_replicas_and_the_late_replica_is_avoided(two: World) -> None:
    first = two.ask()
    two.controller.hasten(first)
    assert two.asked(first) == "ab"
    two.replicas["b"].say(PeekResponse(first, ()))

    assert [two.asked(two.ask()) for _ in range(3)] == ["b", "b", "b"]
    two.replicas["a"].is_at(5, 21)
    assert two.asked(two.ask()) == "a"
    two.controller.hasten(first)  # which is answered


@pytest.mark.parametrize(
    ("response", "asked"),
    [
        (Report(0, (Progress(8, "reading", 9),)), "b"),  # it has something large to work out
        (Report(0, ()), "a"),
        (Status(7, FlowError("the disk is away"), 1), "b"),  # it does not have the rows any more
    ],
)
def test_peeks_are_sent_to_the_replica_that_is_about_to_answer(
    two: World, response: Report | Status, asked: str
) -> None:
    two.replicas["a"].say(response)
    assert two.asked(two.ask()) == asked


@pytest.mark.parametrize(
    ("frontiers", "time", "asked"),
    [
        ((5, 30), 25, "b"),  # the other one is not there yet
        ((5, 30), 40, "a"),  # nor is this one
        ((9, 30), 7, "a"),  # which it has forgotten
    ],
)
def test_peeks_are_sent_to_the_replica_that_has_reached_the_time(
    two: World, frontiers: tuple[int, int], time: int, asked: str
) -> None:
    two.replicas["b"].is_at(*frontiers)
    assert two.asked(two.ask(time)) == asked
