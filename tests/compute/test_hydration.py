"""Dataflows of many rows begin while others go on, and whatever ends that leaves nothing behind."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from multiprocessing.connection import wait
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import apsw
import pytest
from changing import Changing, EndlessInput
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE_SECONDS
from random_relations import COLLECTIONS, RandomRelations, collections, random_changes
from relations_sample import ORDERS, aggregate, call, column, number, shown

from derive.algebra.expression import Column
from derive.algebra.relation import Distinct, Get, Join, Project, Reduce, Relation, UnionAll
from derive.algebra.types import Row, Type
from derive.compute.dataflow import dataflows, hydration, staging
from derive.compute.dataflow.staging import Order, Staged, carry_out
from derive.compute.instance import Instance
from derive.compute.oneshot import evaluate
from derive.errors import FlowError, FrontierError, SqlError

EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "6"))
COUNTS = Reduce(ORDERS, (column(ORDERS, 1),), (aggregate("count"),))


class Later:
    """An order that is carried out in this process, once it was looked at a few times."""

    def __init__(self, order: Order, looks: int) -> None:
        self.rows = self.running = 0
        self._order, self._looks = order, looks

    def outcome(self) -> Mapping[int, FlowError] | None:
        self._looks -= 1
        return carry_out(self._order) if self._looks < 0 else None

    def stop(self) -> None:
        """There is nothing to end."""


def later(random: Random) -> Callable[[Order], Staged]:
    return lambda order: Later(order, random.randrange(3))


class Views:
    """An instance that hydrates everything, views over collections and over one another, and crashes."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = Random(seed)
        self.folders = folder
        self.collections = collections()
        self.live: dict[int, list[Row]] = {identifier: [] for identifier in COLLECTIONS}
        self.views: dict[int, Relation] = {}
        self.count = 0
        self.instance = self.opened(folder / "0")
        self.time = 1

    def opened(self, folder: Path) -> Instance:
        self.folder = folder
        return Instance(folder, most_here=self.random.choice((0, 0, 10)), stage=later(self.random))

    def change(self) -> None:
        """A tick in which rows come and go."""
        self.time += self.random.randrange(1, 4)
        for identifier, collection in self.collections.items():
            if self.random.random() < 0.6:
                collection.change(self.time, random_changes(self.random, self.live[identifier], collection.types))
            collection.seal(self.time + 1)

    def define(self) -> None:
        """Maintain a view, of collections or of another view."""
        self.count += 1
        identifier = 100 + self.count
        self.views[identifier] = self.relation()
        self.maintain(identifier)
        if self.random.random() < 0.5:
            self.instance.index(identifier, [Column(0, Type.BIGINT)])

    def relation(self) -> Relation:
        if not self.views or self.random.random() < 0.5:
            return RandomRelations(self.random, False).relation(self.random.randrange(1, 4))
        below = self.random.choice(list(self.views))
        view = Get(below, self.views[below].types)
        order = Get(1, COLLECTIONS[1])
        return self.random.choice((Distinct(view), UnionAll((view, view)), Join((view, order), ())))

    def maintain(self, identifier: int) -> None:
        keeps = self.random.random() < 0.5
        inputs = {one: source.movable(self.time, keeps=keeps) for one, source in self.collections.items()}
        self.instance.maintain(identifier, self.views[identifier], self.time, inputs)

    def drop(self) -> None:
        """Maintain the newest view no more, wherever it is."""
        identifier = max(self.views, default=None)
        if identifier is not None:
            self.instance.drop(identifier)
            del self.views[identifier]

    def steps(self, most: int) -> None:
        idle = 0
        while idle < 5 and most > 0:
            idle = 0 if self.instance.step() else idle + 1
            most -= 1

    def crash(self) -> None:
        """Another instance goes on with what is there at some moment, and is told of the views once more."""
        self.steps(self.random.randrange(12))
        folder = self.folders / str(len(list(self.folders.iterdir())))
        shutil.copytree(self.folder, folder)
        self.instance.close()
        self.instance = self.opened(folder)
        for identifier in self.views:
            self.maintain(identifier)

    def check(self) -> None:
        """Every view, at every time that is known."""
        for identifier, relation in self.views.items():
            assert self.instance.failure(identifier) is None
            since, upper = self.instance.frontiers(identifier)
            assert upper > self.time, (identifier, relation)
            view = Get(identifier, relation.types)
            for at in range(since, self.time + 1):
                maintained = Counter(row for batch in self.instance.peek(view, as_of=at) for row in batch)
                assert maintained == self.from_scratch(relation, at), (relation, at)
        assert not self.instance.hydrations()

    def from_scratch(self, relation: Relation, at: int) -> Counter[Row]:
        batches = evaluate(relation, shown(relation), lambda identifier, _: iter([list(self.contents(identifier, at))]))
        return Counter(row for batch in batches for row in batch)

    def contents(self, identifier: int, at: int) -> list[Row]:
        if identifier in self.views:
            return list(self.from_scratch(self.views[identifier], at).elements())
        return [row for batch in self.collections[identifier].at(at) for row in batch]


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 1 << 32))
def test_views_equal_recomputation(seed: int) -> None:
    """At every time, whenever a process is killed, or a view is dropped."""
    with TemporaryDirectory() as folder:
        views = Views(seed, Path(folder))
        for _ in range(8):
            views.change()
            if len(views.views) < 4 and views.random.random() < 0.7:
                views.define()
            views.steps(views.random.choice((2, 5, 1000)))
            if views.random.random() < 0.3:
                views.crash()
            if views.random.random() < 0.1:
                views.drop()
        views.steps(1000)
        views.check()
        operators = {row[0] for row in tables(views.folder)}
        views.instance.close()
        for identifier in list(views.views):
            views.instance = views.opened(views.folder)
            views.instance.drop(identifier)
            views.steps(10)
            views.instance.close()
        assert bool(operators) == bool(views.views)
        assert not tables(views.folder)


def tables(folder: Path) -> list[tuple[str]]:
    """Tables of operators in an instance's database."""
    connection = apsw.Connection(str(folder / "compute.db"))
    names = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name GLOB '[aghm][0-9]*'"
    ).fetchall()
    connection.close()
    return [(str(name),) for (name,) in names]


# -- Processes


def many() -> Changing:
    """Enough orders that reading them takes a while."""
    orders = Changing(ORDERS.types)
    orders.change(1, [((index, f"customer {index % 7}", index, 0.5), 1) for index in range(3_000)])
    orders.seal(5)
    return orders


def until(instance: Instance, is_over: Callable[[], bool]) -> None:
    """Work until something is so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_over():
        assert time.monotonic() < deadline
        if not instance.step():
            wait([process.sentinel for process in multiprocessing.active_children()], 0.05)


def is_known(instance: Instance, identifier: int) -> bool:
    since, upper = instance.frontiers(identifier)
    return upper > since


def rows_of(instance: Instance, relation: Relation) -> Counter[Row]:
    return Counter(row for batch in instance.peek(relation) for row in batch)


def children() -> set[int]:
    """Processes that hydrate for this one, or wait to do so."""
    return {process.pid for process in multiprocessing.active_children() if process.pid is not None}


@pytest.fixture(autouse=True)
def _no_idle_processes() -> None:
    """End the processes of earlier tests."""
    for worker in staging._IDLE:
        worker.end()
    staging._IDLE.clear()


def test_other_views_advance_during_a_hydration() -> None:
    """Ticks of others are not waited for, and progress is reported."""
    orders, few = many(), Changing((Type.BIGINT,))
    few.seal(2)
    instance = Instance(most_here=1_000)
    instance.maintain(20, Get(2, few.types), 1, {2: few.since(1)})
    instance.maintain(9, COUNTS, 4, {1: orders.movable(4, keeps=True)})
    instance.maintain(10, Get(1, ORDERS.types), 4, {1: orders.movable(4, keeps=True)})
    instance.step()
    instance.step()
    assert [(one.identifier, one.stage) for one in instance.hydrations()] == [(9, "reading"), (10, "reading")]
    ticks = 0
    while not is_known(instance, 9):
        ticks += 1
        few.change(few.frontier, [((ticks,), 1)])
        few.seal(few.frontier + 1)
        instance.step()
        assert instance.frontiers(20)[1] == few.frontier
    assert ticks > 3
    until(instance, lambda: is_known(instance, 10))
    assert rows_of(instance, Get(9, COUNTS.types)) == {
        (f"customer {index}", 429 if index < 4 else 428): 1 for index in range(7)
    }
    orders.change(6, [((0, "customer 0", 0, 0.5), -1)])
    orders.seal(8)
    until(instance, lambda: instance.frontiers(9)[1] == instance.frontiers(10)[1] == 8)
    assert rows_of(instance, Get(9, COUNTS.types))["customer 0", 428] == 1
    assert sum(rows_of(instance, Get(10, ORDERS.types)).values()) == 2_999
    instance.close()


def test_other_views_advance_between_the_begins_of_small_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each begin takes longer than others wait, so each step begins one view, and then others have their turn."""
    monkeypatch.setattr(dataflows, "_BEGINNING_SECONDS", 0.0)
    orders, few = many(), Changing((Type.BIGINT,))
    few.seal(2)
    instance = Instance()
    instance.maintain(20, Get(2, few.types), 1, {2: few.since(1)})
    instance.step()
    for identifier in (9, 10, 11):
        instance.maintain(identifier, COUNTS, 4, {1: orders.movable(4)})
    begun = []
    for _ in range(3):
        few.seal(few.frontier + 1)
        assert instance.step()
        assert instance.frontiers(20)[1] == few.frontier
        begun.append([is_known(instance, identifier) for identifier in (9, 10, 11)])
    assert begun == [[True, False, False], [True, True, False], [True, True, True]]
    instance.close()


def test_small_view_over_another_begins_at_the_requested_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that begins later than requested would lack the history of the time between."""
    monkeypatch.setattr(dataflows, "_BEGINNING_SECONDS", 0.0)
    orders = many()
    instance = Instance()
    instance.maintain(9, COUNTS, 4, {1: orders.movable(4)})
    for identifier in (10, 11):
        instance.maintain(identifier, Distinct(Get(9, COUNTS.types)), 4, {})
    orders.change(6, [((0, "customer 0", 0, 0.5), -1)])
    orders.seal(8)
    while instance.step():
        pass
    assert [instance.frontiers(identifier) for identifier in (9, 10, 11)] == [(4, 8)] * 3
    instance.close()


class Stages:
    """Tasks that are executed in this process when the test lets them."""

    def __init__(self) -> None:
        self.orders: list[Order] = []
        self.is_open = True
        self.fatal: set[int] = set()

    def __call__(self, order: Order) -> Staged:
        self.orders.append(order)
        return _Stage(self, order)

    @property
    def batches(self) -> list[list[int]]:
        return [[first.identifier for first in order.dataflows] for order in self.orders]


class _Stage:
    rows = running = 0

    def __init__(self, stages: Stages, order: Order) -> None:
        self._stages, self._order = stages, order

    def outcome(self) -> Mapping[int, FlowError] | None:
        if not self._stages.fatal.isdisjoint(first.identifier for first in self._order.dataflows):
            raise SqlError("XX000", "the process has ended")
        return carry_out(self._order) if self._stages.is_open else None

    def stop(self) -> None: ...


def steps(instance: Instance) -> None:
    while instance.step():
        pass


def counts_of(identifier: int) -> Relation:
    """Return the number of rows of another collection of orders by customer."""
    return Reduce(Get(identifier, ORDERS.types), (column(ORDERS, 1),), (aggregate("count"),))


def doubled() -> Relation:
    """A view that looks up its input, which is therefore stored."""
    return Join((ORDERS, ORDERS), (call("=", column(ORDERS, 0), Column(4, Type.BIGINT)),))


def test_large_views_hydrate_together_and_share_arrangements(tmp_path: Path) -> None:
    """They begin with the cheapest, and continue as one group."""
    orders, stages = many(), Stages()
    instance = Instance(tmp_path, most_here=0, stage=stages)
    wide = Project(doubled(), (column(ORDERS, 0), Column(4, Type.BIGINT)))
    for identifier, relation in ((9, doubled()), (10, Get(1, ORDERS.types)), (11, wide)):
        instance.maintain(identifier, relation, 4, {1: orders.movable(4, keeps=True)})
    steps(instance)
    assert stages.batches == [[10, 9, 11]]
    assert len({first.group for first in stages.orders[0].dataflows}) == 1
    assert [instance.frontiers(identifier) for identifier in (9, 10, 11)] == [(4, 5)] * 3
    assert sorted(name for (name,) in tables(tmp_path) if name.startswith("a")) == ["a1", "a2", "a4"]
    orders.change(6, [((0, "customer 0", 0, 0.5), -1)])
    orders.seal(8)
    steps(instance)
    assert [sum(rows_of(instance, Get(9, doubled().types)).values()), instance.frontiers(11)[1]] == [2_999, 8]
    instance.close()


def test_processes_share_the_work_of_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Function calls for each row are the most work; the first process takes the cheap views, up to half of it."""
    monkeypatch.setattr(hydration, "_LEAST_COST", 1)
    sums = tuple(call("+", column(ORDERS, 0), number(index)) for index in range(8))
    orders, stages = many(), Stages()
    stages.is_open = False
    instance = Instance(most_here=0, stage=stages)
    for identifier, relation in ((9, Project(ORDERS, sums)), (10, Project(ORDERS, sums)), (11, COUNTS), (12, COUNTS)):
        instance.maintain(identifier, relation, 4, {1: orders.movable(4)})
    instance.step()
    assert stages.batches == [[11, 12, 9], [10]]
    instance.close()


def test_slow_view_is_tried_alone_after_others_have_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "MOST_STAGED_SECONDS", 0.05)
    orders, stages = many(), Stages()
    instance = Instance(most_here=0, stage=stages, is_limited=True)
    first, second, third = (Column(index, Type.BIGINT) for index in (0, 4, 8))
    rising = Join((ORDERS, ORDERS, ORDERS), (call("<", first, second), call("<", second, third)))
    pairs = Reduce(rising, (), (aggregate("count"),))
    instance.maintain(8, pairs, 4, {1: orders.movable(4)})
    instance.maintain(9, COUNTS, 4, {1: orders.movable(4)})
    steps(instance)
    assert stages.batches == [[9, 8], [8]]
    assert is_known(instance, 9)
    assert instance.take_slow() == {8}
    instance.close()


def test_view_that_ends_its_process_is_tried_alone() -> None:
    orders, stages = many(), Stages()
    stages.fatal = {10}
    instance = Instance(most_here=0, stage=stages)
    for identifier in (9, 10, 11):
        instance.maintain(identifier, COUNTS, 4, {1: orders.movable(4)})
    steps(instance)
    assert stages.batches == [[9, 10, 11], [9], [10], [11]]
    assert [is_known(instance, 9), instance.failure(10) is None, is_known(instance, 11)] == [True, False, True]
    instance.close()


@pytest.mark.parametrize("dropped", [[9], [10], [9, 10]])
def test_view_that_is_dropped_beside_others_leaves_no_tables(tmp_path: Path, dropped: list[int]) -> None:
    orders, stages = many(), Stages()
    stages.is_open = False
    instance = Instance(tmp_path, most_here=0, stage=stages)
    for identifier, relation in ((9, COUNTS), (10, doubled())):
        instance.maintain(identifier, relation, 4, {1: orders.movable(4)})
    steps(instance)
    assert stages.batches == [[9, 10]]
    for identifier in dropped:
        instance.drop(identifier)
    stages.is_open = True
    steps(instance)
    for identifier in {9, 10} - set(dropped):
        assert is_known(instance, identifier)
        instance.drop(identifier)
    steps(instance)
    assert tables(tmp_path) == []
    instance.close()


def test_hydration_reads_a_limited_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process takes the next views meanwhile, and the others wait."""
    monkeypatch.setattr(hydration, "MOST_TOGETHER", 6_000)
    stages = Stages()
    stages.is_open = False
    orders = [many() for _ in range(6)]
    instance = Instance(most_here=0, stage=stages)
    for index, collection in enumerate(orders):
        instance.maintain(10 + index, counts_of(1 + index), 4, {1 + index: collection.movable(4)})
    steps(instance)
    assert stages.batches == [[10, 11], [12, 13]]
    assert [one.stage for one in instance.hydrations()] == ["reading"] * 4 + ["waiting"] * 2
    stages.is_open = True
    steps(instance)
    assert stages.batches == [[10, 11], [12, 13], [14, 15]]
    assert all(is_known(instance, 10 + index) for index in range(6))
    instance.close()


def test_a_dropped_view_is_not_hydrated() -> None:
    """Its process ends, and the next one has its turn."""
    orders = many()
    instance = Instance(most_here=1_000)
    instance.maintain(9, COUNTS, 4, {1: orders.movable(4)})
    instance.step()
    (process,) = children()
    instance.drop(9)
    instance.maintain(10, COUNTS, 4, {1: orders.movable(4)})
    until(instance, lambda: process not in children())
    with pytest.raises(FrontierError):
        instance.frontiers(9)
    until(instance, lambda: is_known(instance, 10))
    instance.close()


def test_hydration_of_very_many_rows_has_low_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hydration, "MOST_TOGETHER", 1_000)
    instance = Instance(most_here=1_000)
    instance.maintain(9, COUNTS, 4, {1: many().movable(4)})
    instance.step()
    (process,) = children()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while os.getpriority(os.PRIO_PROCESS, process) == os.getpriority(os.PRIO_PROCESS, 0):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    assert os.getpriority(os.PRIO_PROCESS, process) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 15)
    instance.close()


def test_hydration_process_takes_the_next_view() -> None:
    """A process that has ended meanwhile is replaced."""
    orders = many()
    instance = Instance(most_here=1_000)
    instance.maintain(9, COUNTS, 4, {1: orders.movable(4)})
    until(instance, lambda: is_known(instance, 9))
    (first,) = children()
    for identifier in (10, 11):
        instance.maintain(identifier, COUNTS, 4, {1: orders.movable(4)})
        until(instance, lambda: is_known(instance, identifier))  # noqa: B023 - called at once
        if identifier == 10:
            assert children() == {first}
            os.kill(first, signal.SIGKILL)
    assert first not in children()
    instance.close()


def test_end_of_a_hydration_leaves_its_former_process_to_others(tmp_path: Path) -> None:
    """A hydration whose rows are computed may end while its process computes the rows of the next one."""
    stages = []
    for name in ("first", "second"):
        (folder := tmp_path / name).mkdir()
        stages.append(staging.Staging(Order(folder, 1, {}, (), is_prompt=True)))
        while name == "first" and stages[0].outcome() is None:
            wait([stages[0]._worker.answers], 1)
    (process,) = children()
    stages[0].stop()
    while stages[1].outcome() is None:
        wait([stages[1]._worker.answers], 1)
    assert children() == {process}


def test_killed_hydration_process_is_restarted() -> None:
    """Now and then the system kills one; a view that is always killed fails."""
    orders = many()
    instance = Instance(most_here=1_000)
    instance.maintain(9, COUNTS, 4, {1: orders.movable(4)})
    instance.step()
    (process,) = children()
    os.kill(process, signal.SIGKILL)
    until(instance, lambda: is_known(instance, 9))
    instance.maintain(10, COUNTS, 4, {1: EndlessInput(orders, 4, keeps=False)})
    while (failure := instance.failure(10)) is None:
        instance.step()
        for process in children():
            os.kill(process, signal.SIGKILL)
    assert "exit code -9" in failure.message
    instance.close()


def test_hydration_keeps_row_errors_and_reports_input_errors() -> None:
    """An error of a row is there as it is in other views; one of an input is told."""
    orders = many()
    instance = Instance(most_here=1_000)
    inverse = Project(ORDERS, (call("/", number(60), column(ORDERS, 2)),))
    instance.maintain(9, inverse, 4, {1: orders.movable(4)})
    until(instance, lambda: is_known(instance, 9))
    with pytest.raises(SqlError, match="division by zero"):
        rows_of(instance, Get(9, inverse.types))
    orders.change(6, [((0, "customer 0", 0, 0.5), -1)])
    orders.seal(8)
    until(instance, lambda: instance.frontiers(9)[1] == 8)
    assert rows_of(instance, Get(9, inverse.types))[(60,)] == 1
    orders.updates.append((3, (5, "nobody", 1, 0.5), -1))
    instance.maintain(10, COUNTS, 7, {1: orders.movable(7)})
    until(instance, lambda: instance.failure(10) is not None)
    instance.close()


HYDRATES = """
import sys
from pathlib import Path
from test_hydration import COUNTS, is_known, many, until
from derive.compute.instance import Instance

if __name__ == "__main__":
    instance = Instance(Path(sys.argv[1]), most_here=1_000)
    instance.maintain(9, COUNTS, 4, {1: many().movable(4, keeps=True)})
    until(instance, lambda: is_known(instance, 9))
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("failpoint", ["staged", "loaded", "completing", "completed"])
def test_killed_hydration_leaves_no_partial_rows(tmp_path: Path, failpoint: str) -> None:
    """Hydrated rows are removed or complete afterwards, and the process that evaluates rows ends as well."""
    program = tmp_path / "hydrates.py"
    program.write_text(HYDRATES)
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = os.environ | {"FLOW_FAILPOINT": f"hydration.{failpoint}", "PYTHONPATH": path}
    ended = subprocess.run([sys.executable, str(program), str(tmp_path / "views")], env=environment, check=False)
    assert ended.returncode == -signal.SIGKILL
    instance = Instance(tmp_path / "views", most_here=1_000)
    assert instance.ids() == ((9,) if failpoint == "completed" else ())
    assert bool(tables(tmp_path / "views")) == (failpoint == "completed")
    instance.maintain(9, COUNTS, 4, {1: many().movable(4, keeps=True)})
    until(instance, lambda: is_known(instance, 9))
    assert rows_of(instance, Get(9, COUNTS.types))["customer 0", 429] == 1
    assert rows_of(instance, Reduce(Get(9, COUNTS.types), (), (aggregate("sum", Column(1, Type.BIGINT)),)))
    instance.close()
