"""Slow views: they are interrupted, reported, and maintained alone, while other views advance."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Event, Thread

import pytest
from changing import Changing
from patience import PATIENCE_SECONDS
from relations_sample import aggregate, call, column, number, shown

from derive.algebra.expression import Column, Parameter
from derive.algebra.relation import Filter, Finishing, Get, Join, Reduce, Relation
from derive.algebra.types import Row, Type
from derive.compute.dataflow import staging, watch
from derive.compute.dataflow.hydration import ISOLATED
from derive.compute.dataflow.staging import Order, carry_out
from derive.compute.instance import Instance
from derive.compute.replica.isolation import Instances
from derive.errors import FlowError

_NUMBERS = Get(1, (Type.BIGINT,))
_SWITCH = Get(2, (Type.BIGINT,))
_FAST = Reduce(_NUMBERS, (), (aggregate("count"),))


def _triples(switch: Relation = _NUMBERS) -> Relation:
    """Return the number of all triples of numbers, which nothing can count within the patience of a test."""
    joined = Join((_NUMBERS, _NUMBERS, _NUMBERS, switch), (call("<", Column(0, Type.BIGINT), Column(1, Type.BIGINT)),))
    return Reduce(joined, (), (aggregate("count"),))


_SLOW = _triples()
_LATER = _triples(_SWITCH)
"""Slow as soon as the switch has a row."""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MOST_SECONDS", 0.05)
    monkeypatch.setattr(staging, "MOST_STAGED_SECONDS", 0.05)


@pytest.fixture
def numbers() -> Changing:
    collection = Changing(_NUMBERS.types)
    collection.change(1, [((value,), 1) for value in range(1500)])
    collection.seal(2)
    return collection


@pytest.fixture
def switch() -> Changing:
    collection = Changing(_SWITCH.types)
    collection.seal(2)
    return collection


def settle(instance: Instance | Instances) -> None:
    """Work until there is no more work."""
    while instance.step():
        pass


def rows_of(instance: Instance | Instances, identifier: int, relation: Relation, as_of: int) -> Counter[Row]:
    """Return the rows of a view."""
    view = Get(identifier, relation.types)
    return Counter(row for batch in instance.peek(view, shown(view), as_of) for row in batch)


@pytest.fixture
def instances(tmp_path: Path) -> Iterator[Instances]:
    opened = Instances(Instance(tmp_path, is_limited=True), lambda: None)
    yield opened
    opened.close()


def wait_until(condition: Callable[[], bool], awaited: Event) -> None:
    """Wait until a condition is true; the event is set after each change."""
    while not condition():
        assert awaited.wait(PATIENCE_SECONDS)
        awaited.clear()


def test_slow_hydration_is_interrupted_and_reported(numbers: Changing, tmp_path: Path) -> None:
    """A view whose first rows take too long leaves nothing, and other views begin."""
    instance = Instance(tmp_path, is_limited=True)
    instance.maintain(8, _SLOW, 1, {1: numbers.since(1)})
    instance.maintain(9, _FAST, 1, {1: numbers.since(1)})
    settle(instance)

    assert instance.take_slow() == {8}
    assert instance.take_slow() == set()
    assert not instance.has_begun(8)
    assert rows_of(instance, 9, _FAST, 1) == {(1500,): 1}
    instance.close()


def test_slow_tick_is_undone_and_other_views_of_the_group_advance(
    numbers: Changing, switch: Changing, tmp_path: Path
) -> None:
    """The views have one group; after the slow view is dropped, the others catch up."""
    instance = Instance(tmp_path, is_limited=True)
    pairs = Reduce(Join((_NUMBERS, _SWITCH), ()), (), (aggregate("count"),))
    for identifier, relation in ((8, _LATER), (9, pairs)):
        instance.maintain(identifier, relation, 1, {1: numbers.since(1), 2: switch.since(1)})
    settle(instance)
    assert instance.take_slow() == set()
    switch.change(2, [((1,), 1)])
    for collection in (numbers, switch):
        collection.seal(3)
    assert instance.step()

    assert instance.take_slow() == {8}
    assert instance.failure(9) is None
    instance.drop(8)
    settle(instance)
    assert rows_of(instance, 9, pairs, 2) == {(1500,): 1}
    instance.close()


class Stage:
    """A hydration of a large view, in this process."""

    rows = running = 0

    def __init__(self, order: Order) -> None:
        self._order = order

    def outcome(self) -> Mapping[int, FlowError]:
        return carry_out(self._order)

    def stop(self) -> None: ...


def test_slow_hydration_of_a_large_view_is_refused(numbers: Changing) -> None:
    instance = Instance(most_here=0, stage=Stage, is_limited=True)
    instance.maintain(8, _SLOW, 1, {1: numbers.movable(1)})
    settle(instance)

    assert instance.take_slow() == {8}
    assert instance.hydrations() == ()
    assert instance.failure(8) is None
    instance.close()


def test_dropped_view_is_interrupted(numbers: Changing) -> None:
    """Without a limit, the step that computes a view ends when the view is no longer needed."""
    instance = Instance()
    instance.maintain(8, _SLOW, 1, {1: numbers.since(1)})
    thread = Thread(target=instance.step)
    thread.start()
    while not instance.running:
        assert thread.is_alive()
    instance.cancel(8)
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    instance.drop(8)
    settle(instance)
    assert not instance.has_begun(8)
    instance.close()


def test_isolated_view_computes_beside_others_and_ends_when_dropped(instances: Instances, numbers: Changing) -> None:
    """The folder of an isolated view is removed with it."""
    instances.maintain(9, _FAST, 1, {1: numbers.since(1)})
    instances.isolate(8)
    instances.maintain(8, _SLOW, 1, {1: numbers.since(1)})
    settle(instances)
    folder = instances.main.folder / "slow-8"
    while not instances.hydrations()[0].running:
        pass
    numbers.change(2, [((7,), 1)])
    numbers.seal(3)
    settle(instances)

    (progress,) = instances.hydrations()
    assert (progress.identifier, progress.stage) == (8, "computing")
    assert progress.since > 0
    assert rows_of(instances, 9, _FAST, 2) == {(1501,): 1}
    assert folder.exists()
    begin = time.monotonic()
    instances.drop(8)
    assert time.monotonic() - begin < 20  # an interrupted statement ends within milliseconds of processor time
    assert not folder.exists()
    assert instances.hydrations() == ()


def test_isolated_view_has_the_rows_of_its_query_also_after_a_restart(tmp_path: Path, numbers: Changing) -> None:
    awaited = Event()
    instances = Instances(Instance(tmp_path), awaited.set)
    instances.maintain(9, _FAST, 1, {1: numbers.since(1)}, "fast")
    instances.isolate(8)
    few = Filter(_NUMBERS, call("<", column(_NUMBERS, 0), number(3)))
    instances.maintain(8, few, 1, {1: numbers.since(1)}, "few")
    settle(instances)
    wait_until(lambda: instances.has_begun(8), awaited)

    assert rows_of(instances, 8, few, 1) == {(0,): 1, (1,): 1, (2,): 1}
    assert [one.stage for one in instances.hydrations()] == [ISOLATED]
    numbers.change(2, [((1,), -1)])
    numbers.seal(3)
    settle(instances)
    wait_until(lambda: instances.frontiers(8)[1] == 3, awaited)
    assert [(update[0], update[2]) for update in instances.updates(8, 2, 3).rows] == [(2, -1)]
    instances.close()

    instances = Instances(Instance(tmp_path), awaited.set)
    assert instances.definitions() == {8: "few", 9: "fast"}
    assert instances.is_isolated(8)
    assert rows_of(instances, 8, few, 2) == {(0,): 1, (2,): 1}
    instances.close()


def test_queries_join_isolated_views_with_other_views(instances: Instances, numbers: Changing) -> None:
    awaited = Event()
    instances = Instances(instances.main, awaited.set)
    instances.maintain(9, _FAST, 1, {1: numbers.since(1)})
    instances.isolate(8)
    few = Filter(_NUMBERS, call("<", column(_NUMBERS, 0), number(3)))
    instances.maintain(8, few, 1, {1: numbers.since(1)})
    settle(instances)
    wait_until(lambda: instances.has_begun(8), awaited)
    joined = Join((Get(8, few.types), Get(9, _FAST.types)), ())
    query = Filter(joined, call("<", column(joined, 0), Parameter(0, Type.BIGINT)))
    prepared = instances.prepare(query, Finishing((), None, 0, (0, 1)))

    assert instances.look_up(prepared, 1, (2,)) is None
    rows = [row for batch in instances.peek(prepared, as_of=1, arguments=(2,)) for row in batch]
    assert sorted(rows) == [(0, 1500), (1, 1500)]
    instances.drop(8)


def test_close_interrupts_a_running_step(numbers: Changing) -> None:
    """The interrupted dataflow has not failed, and goes on in the next process."""
    instance = Instance()
    instance.maintain(8, _SLOW, 1, {1: numbers.since(1)})
    thread = Thread(target=instance.step)
    thread.start()
    while not instance.running:
        assert thread.is_alive()
    instance.close()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert instance.failure(8) is None
