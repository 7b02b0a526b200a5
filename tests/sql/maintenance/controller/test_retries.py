"""A dataflow that cannot begin or go on is tried again, after a pause, or when it may begin later; a tail ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from changing import Changing
from network import Memory, Process, Wire
from relations_sample import call, number

from derive.algebra.expression import Column
from derive.algebra.relation import Filter, Finishing, Get
from derive.algebra.types import Row, Type
from derive.compute.instance import Instance
from derive.compute.protocol.messages import (
    CreateDataflows,
    CreateInstance,
    Dataflow,
    Hello,
    Import,
    Index,
    InitializationComplete,
    PeekResponse,
    Query,
    Response,
    Tail,
    TailResponse,
)
from derive.compute.replica.reconciler import Reconciler
from derive.compute.replica.session import Identity
from derive.errors import FlowError
from derive.sql.maintenance.controller.controller import Controller

TYPES = (Type.BIGINT, Type.BIGINT)
BELOW = Dataflow(101, Get(1, TYPES), (Import(1, None, "u"),), Index((Column(0, Type.BIGINT),)), 1)  # type: ignore[arg-type]
ABOVE = Dataflow(102, Filter(Get(101, TYPES), call(">", Column(0, Type.BIGINT), number(1))), (), Index(), 1)


class World:
    """One controller and two replicas, of which one may be unable to open anything."""

    def __init__(self, folder: Path) -> None:
        self.seconds = 0.0
        self.collection = Changing(TYPES)
        self.collection.change(1, [((1, 1), 1), ((2, 2), 1)])
        self.collection.seal(2)
        self.memory = Memory({1: self.collection})
        self.memories = {name: Memory({1: self.collection}) for name in "ab"}
        self.controller = Controller(1, self.memory)
        self.processes = {
            name: Process(name, memory, folder, lambda: self.seconds) for name, memory in self.memories.items()
        }
        self.wires = {name: self.connected(name) for name in "ab"}

    def connected(self, name: str) -> Wire:
        wire = Wire(self.controller, self.processes[name].reconciler)
        self.controller.attach(name, wire.link)
        return wire

    def settle(self) -> None:
        """Everything arrives, and is obeyed; no time passes."""
        random = Random(0)
        for _ in range(4):
            for name, wire in self.wires.items():
                while wire.down or wire.up:
                    wire.deliver(random)
                self.processes[name].reconciler.work()

    def uppers(self, name: str) -> dict[int, int]:
        """How far a replica is."""
        return {key: known.upper for key, known in self.controller.replicas()[name].uppers.items()}

    def peek(self, identifier: int, time: int) -> list[object]:
        """What is answered."""
        answers: list[object] = []

        def receive(response: PeekResponse) -> None:
            rows = response.result
            answers.extend([rows] if isinstance(rows, FlowError) else rows)

        query = Query(Get(identifier, TYPES), Finishing((), None, 0, (0, 1)))
        self.controller.peek(query, time, receive)
        self.settle()
        return sorted(answers, key=str)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    for process in world.processes.values():
        process.reconciler.close()


def test_failed_openings_are_retried_while_dependents_wait(world: World) -> None:
    world.memories["a"].is_shut = True
    world.controller.create([BELOW, ABOVE])
    world.settle()
    replica = world.controller.replicas()["a"]
    assert str(replica.failures[101]) == "the disk is away"
    assert world.uppers("b") == {101: 2, 102: 2}
    assert world.controller.failure(101) is None  # as another replica maintains it

    world.memories["a"].is_shut = False
    world.settle()
    assert replica.failures
    world.seconds += 1
    world.settle()
    assert not replica.failures
    assert world.uppers("a") == {101: 2, 102: 2}
    world.controller.detach("b", world.wires["b"].link)
    assert world.peek(102, 1) == [(2, 2)]


def test_retry_pauses_grow_up_to_a_limit(world: World) -> None:
    memory = world.memories["a"]
    memory.is_shut = True
    world.controller.create([BELOW])
    tries = [0.0]
    while world.seconds < 200:
        before = len(memory.opened)
        world.settle()
        if world.seconds and len(memory.opened) > before:
            tries.append(world.seconds)
        world.seconds += 0.5
    assert [after - before for before, after in pairwise(tries)][:8] == [0.5, 1, 2, 4, 8, 16, 30, 30]

    memory.is_shut = False
    world.seconds += 30
    world.settle()
    assert world.uppers("a") == {101: 2}


def test_retried_dataflow_begins_at_a_permitted_time(world: World) -> None:
    memory = world.memories["a"]
    memory.is_shut = True
    world.controller.create([BELOW])
    world.settle()
    memory.is_shut = False
    memory.since = 4  # at this replica, what was before is forgotten
    world.seconds += 10
    world.settle()
    assert str(world.controller.replicas()["a"].failures[101]) == "what was before 4 is forgotten"

    world.collection.change(5, [((3, 3), 1), ((1, 1), -1)])
    world.collection.seal(6)
    world.settle()
    world.controller.allow_compaction({101: 4})
    world.settle()  # no time passes
    assert memory.opened[-1] == 4
    assert not world.controller.replicas()["a"].failures
    world.controller.detach("b", world.wires["b"].link)
    assert world.peek(101, 4) == [(1, 1), (2, 2)]
    assert world.peek(101, 5) == [(2, 2), (3, 3)]


def test_failed_dataflow_resumes_by_itself(world: World) -> None:
    world.controller.create([BELOW, ABOVE])
    world.settle()
    world.controller.detach("b", world.wires["b"].link)
    connection = world.processes["a"].reconciler._instance.main._connection
    room = connection.pragma("max_page_count")
    connection.pragma("max_page_count", connection.pragma("page_count"))
    world.collection.change(2, [((number, number), 1) for number in range(3, 5_000)])
    world.collection.seal(3)
    world.settle()
    failures = world.controller.replicas()["a"].failures
    assert {str(failure) for failure in failures.values()} == {"no space left on the device that stores the rows"}
    connection.pragma("max_page_count", room)
    world.settle()
    assert failures.keys() == {101, 102}  # no time has passed
    world.seconds += 1
    world.settle()
    assert not failures
    assert world.uppers("a") == {101: 3, 102: 3}
    assert (len(world.peek(101, 2)), len(world.peek(102, 2))) == (4_999, 4_998)
    assert world.memories["a"].opened == [1, 1]  # each once: nothing was begun anew


def test_kept_dataflow_that_cannot_resume_is_rebuilt_with_its_dependents(world: World) -> None:
    world.controller.create([BELOW, ABOVE])
    world.settle()
    world.controller.detach("b", world.wires["b"].link)
    world.processes["a"].die(is_lost=False)
    world.memories["a"].is_shut = True
    world.wires["a"] = world.connected("a")
    world.settle()
    assert str(world.peek(101, 1)) == "[FlowError('the disk is away')]"
    world.memories["a"].is_shut = False
    world.collection.change(2, [((4, 4), 1)])
    world.collection.seal(3)
    world.seconds += 1
    world.settle()
    assert world.peek(101, 2) == [(1, 1), (2, 2), (4, 4)]
    assert world.peek(102, 2) == [(2, 2), (4, 4)]


def test_kept_dataflow_that_cannot_resume_may_be_rebuilt_at_a_later_time(world: World) -> None:
    world.controller.create([BELOW])
    world.settle()
    world.processes["a"].die(is_lost=False)
    world.memories["a"].is_shut = True
    world.wires["a"] = world.connected("a")
    world.settle()
    assert str(world.controller.replicas()["a"].welcome) == (
        "kept nothing; rebuilt u101 (could not open an input); dropped nothing"
    )

    world.memories["a"].is_shut = False
    world.collection.change(2, [((1, 1), -1)])
    world.collection.seal(5)
    world.controller.create([replace(BELOW, id=103, as_of=4)])
    world.settle()
    world.seconds += 1
    world.settle()
    replicas = world.controller.replicas()
    assert {name: replica.uppers[101].since for name, replica in replicas.items()} == {"a": 4, "b": 1}
    assert world.peek(101, 1) == [(1, 1), (2, 2)]  # the other one knows it
    assert world.controller.late() == {101: 4}


def test_dropped_dataflows_are_not_retried(world: World) -> None:
    world.memories["a"].is_shut = True
    world.controller.create([BELOW])
    world.settle()
    world.controller.drop(101)
    world.settle()
    opened = len(world.memories["a"].opened)
    world.seconds += 100
    world.settle()
    assert len(world.memories["a"].opened) == opened


def test_tail_ends_when_no_replica_can_continue(world: World) -> None:
    told: list[TailResponse] = []
    for memory in world.memories.values():
        memory.is_shut = True
    world.controller.subscribe(replace(BELOW, id=103, export=Tail(has_snapshot=True)), told.append)
    world.settle()
    assert [str(response.failure) for response in told] == ["the disk is away"]


def test_tail_ends_when_its_last_replica_is_lost(world: World) -> None:
    told: list[TailResponse] = []
    world.memories["a"].is_shut = True
    world.controller.subscribe(replace(BELOW, id=103, export=Tail(has_snapshot=True)), told.append)
    world.settle()
    assert [row for response in told for _, row, _ in response.updates] == [(1, 1), (2, 2)]
    assert told[-1].failure is None

    del told[:]
    world.controller.detach("b", world.wires["b"].link)
    assert [str(response.failure) for response in told] == ["the disk is away"]


def test_internal_errors_are_reported_to_waiting_clients(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> Iterator[list[Row]]:
        yield [(1, 1)]
        raise OSError(5, "Input/output error")

    world.controller.create([BELOW])
    world.settle()
    world.controller.detach("b", world.wires["b"].link)
    monkeypatch.setattr(Instance, "look_up", lambda *_: None)
    monkeypatch.setattr(Instance, "peek", fails)
    assert "[Errno 5] Input/output error" in str(world.peek(101, 1)[-1])

    told: list[TailResponse] = []
    world.controller.subscribe(replace(BELOW, id=103, export=Tail(has_snapshot=True)), told.append)
    world.settle()
    assert "[Errno 5] Input/output error" in str(told[-1].failure)
    assert sum(len(response.updates) for response in told) <= 1


@pytest.mark.parametrize("is_killed", [True, False])
def test_dataflow_with_an_unreported_late_start_is_rebuilt_once(world: World, *, is_killed: bool) -> None:
    world.controller.detach("b", world.wires.pop("b").link)
    world.controller.create([BELOW])
    world.settle()
    world.collection.change(5, [((3, 3), 1)])
    world.collection.seal(6)
    world.settle()
    late = replace(BELOW, id=103)
    process, wire = world.processes["a"], world.wires["a"]
    world.controller.create([late])
    while wire.down:  # what is told arrives, and what is answered does not
        process.reconciler.accept(wire.session, wire.down.popleft())
    process.reconciler.work()
    assert world.controller.frontiers(103) == (1, 1)  # nobody is sent there for an answer

    def connect_again() -> str:
        if is_killed:
            process.die(is_lost=False)
        else:
            world.controller.detach("a", world.wires["a"].link)
            process.reconciler.lose(world.wires["a"].session)
        world.wires["a"] = world.connected("a")
        world.settle()
        return str(world.controller.replicas()["a"].welcome)

    assert connect_again() == "kept u101; rebuilt u103 (was not known at 1); dropped nothing"
    assert world.peek(103, 5) == [(1, 1), (2, 2), (3, 3)]
    assert world.controller.late() == {103: 5}
    world.controller.allow_compaction({103: 5})
    world.settle()
    assert connect_again() == "kept u101, u103; rebuilt nothing; dropped nothing"
    assert world.peek(103, 5) == [(1, 1), (2, 2), (3, 3)]


# A tail that somebody works on is not begun with once more, and misses nothing that comes meanwhile.


@dataclass(eq=False)
class Interrupted:
    """A connection on which something happens while the first updates of a tail are sent."""

    happen: Callable[[], object] = lambda: None
    tails: list[TailResponse] = field(default_factory=list)

    def send(self, response: Response) -> None:
        if isinstance(response, TailResponse):
            self.tails.append(response)
            if len(self.tails) == 1:
                self.happen()

    def close(self) -> None: ...


def test_updates_during_a_tail_step_are_sent_by_the_running_step(tmp_path: Path) -> None:
    collection = Changing(TYPES)
    collection.change(1, [((1, 1), 1)])
    collection.seal(2)
    jobs: list[Callable[[], object]] = []
    reconciler = Reconciler(
        Instance(tmp_path),
        Memory({1: collection}).open,
        lambda instance, identifiers: {},
        identity=Identity("a"),
        run=jobs.append,
        wake=lambda: None,
    )

    def happen() -> None:
        collection.change(5, [((2, 2), 1)])
        collection.seal(6)
        reconciler.work()

    session = Interrupted(happen)
    with closing(reconciler):
        tail = replace(BELOW, id=103, export=Tail(has_snapshot=True))
        for command in (Hello(1, 1), CreateInstance(), CreateDataflows((tail,)), InitializationComplete()):
            reconciler.accept(session, command)
        reconciler.work()
        assert len(jobs) == 1
        jobs.pop()()
        assert jobs == []
        told = [(one.lower, one.upper, list(one.updates)) for one in session.tails]
        assert told == [(1, 2, [(1, (1, 1), 1)]), (2, 6, [(5, (2, 2), 1)])]

        reconciler.work()
        assert len(jobs) == 1  # nobody works on it any more
