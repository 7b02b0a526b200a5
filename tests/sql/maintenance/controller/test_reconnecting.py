"""A connection that is lost costs nothing but itself: whoever waits looks again, and what was begun goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from changing import Changing
from network import Memory, Wire

from derive.algebra.expression import Column
from derive.algebra.relation import Get
from derive.algebra.types import Type
from derive.compute.dataflow.staging import Order, carry_out
from derive.compute.instance import Instance
from derive.compute.protocol.messages import Dataflow, Import, Index, Welcome
from derive.compute.replica.reconciler import Reconciler
from derive.compute.replica.session import Identity
from derive.errors import FlowError
from derive.sql.maintenance.controller.controller import Controller

TYPES = (Type.BIGINT, Type.BIGINT)
INDEX = Dataflow(101, Get(1, TYPES), (Import(1, None, "u"),), Index((Column(0, Type.BIGINT),)), 1)  # type: ignore[arg-type]


class Slow:
    """Orders to work out first rows, each of which is over once the test says so."""

    def __init__(self) -> None:
        self.orders: list[Order] = []
        self.stopped = 0
        self.is_done = False

    def __call__(self, order: Order) -> Slow:
        self.orders.append(order)
        return self

    rows = running = 0

    def outcome(self) -> Mapping[int, FlowError] | None:
        return carry_out(self.orders[-1]) if self.is_done else None

    def stop(self) -> None:
        self.stopped += 1


class World:
    """A controller and one replica, whose dataflows begin slowly."""

    def __init__(self, folder: Path) -> None:
        collection = Changing(TYPES)
        collection.change(1, [((1, 1), 1), ((2, 2), 1)])
        collection.seal(2)
        memory = Memory({1: collection})
        self.slow, self.told, self.welcomes = Slow(), 0, list[Welcome]()
        self.controller = Controller(1, memory, self.note_progress, lambda _, welcome: self.welcomes.append(welcome))
        self.reconciler = Reconciler(
            Instance(folder, most_here=0, stage=self.slow),
            memory.open,
            lambda instance, identifiers: {},
            identity=Identity("a"),
            run=lambda task: task(),
            wake=lambda: None,
        )
        self.connect()

    def note_progress(self) -> None:
        self.told += 1

    def connect(self) -> None:
        self.wire = Wire(self.controller, self.reconciler)
        self.controller.attach("a", self.wire.link)
        self.settle()

    def disconnect(self) -> None:
        self.reconciler.lose(self.wire.session)
        self.wire.lose()
        self.controller.detach("a", self.wire.link)

    def settle(self) -> None:
        random = Random(0)
        for _ in range(4):
            self.reconciler.work()
            while self.wire.down or self.wire.up:
                self.wire.deliver(random)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    with closing(world.reconciler):
        yield world


def test_starting_dataflow_survives_a_reconnect(world: World) -> None:
    world.controller.create([INDEX])
    world.settle()
    assert len(world.slow.orders) == 1

    world.disconnect()
    world.connect()
    assert (len(world.slow.orders), world.slow.stopped) == (1, 0)
    assert world.welcomes[-1].kept == (101,)

    world.slow.is_done = True
    world.settle()
    assert world.controller.frontiers(101) == (1, 2)


def test_dataflow_requested_at_an_earlier_time_is_rebuilt(world: World) -> None:
    world.controller.create([INDEX])
    world.settle()
    world.disconnect()
    memory = Memory({})
    memory.since = 0
    world.controller = Controller(2, memory, on_welcome=lambda _, welcome: world.welcomes.append(welcome))
    world.controller.create([Dataflow(101, INDEX.plan, INDEX.imports, INDEX.export, 0)])
    world.connect()
    assert world.welcomes[-1].reasons == ("was not known at 0",)


def test_answer_to_a_reconnection_lists_dropped_dataflows(world: World) -> None:
    world.controller.create([replace(INDEX, name="public.v_a"), replace(INDEX, id=102)])
    world.settle()
    world.slow.is_done = True
    world.settle()
    world.disconnect()
    world.controller = Controller(2, Memory({}), on_welcome=lambda _, welcome: world.welcomes.append(welcome))
    world.connect()
    assert str(world.welcomes[-1]) == "kept nothing; rebuilt nothing; dropped public.v_a, u102"


def test_lost_replica_notifies_waiters(world: World) -> None:
    before = world.told
    world.disconnect()
    assert world.told == before + 1
