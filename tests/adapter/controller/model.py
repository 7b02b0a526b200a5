"""Controllers and replicas, at work with each other while anything may go wrong, and laws that hold all the time.

Code of the controller and of instances is the real one. The network between them, Storage, disks and the clock are
simulated, and what dataflows hold at each time is worked out by other means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from changing import Changing
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from network import Died, Memory, Process, Wire
from relations_sample import aggregate, call, number

from derive.adapter.controller.controller import Controller
from derive.compute.algebra.expression import Column
from derive.compute.algebra.relation import Filter, Finishing, Get, GlobalId, Project, Reduce, Relation
from derive.compute.algebra.types import Row, Type
from derive.compute.dataflow.hydrations import MOST_HERE
from derive.compute.protocol.messages import (
    Dataflow,
    Export,
    Import,
    Index,
    PeekResponse,
    Query,
    Tail,
    TailResponse,
    Welcome,
)
from derive.errors import FlowError, FrontierError, SqlError

TYPES = (Type.BIGINT, Type.BIGINT)
FIRST, SECOND = Get(1, TYPES), Get(2, TYPES)
LEFT, RIGHT = Column(0, Type.BIGINT), Column(1, Type.BIGINT)
RANDOM = st.integers(0, 2**16).map(Random)
EVERYTHING = Finishing((), None, 0, (0, 1))
MOST_ROUNDS = 600
FAR = 1_000_000
"""A time that never comes."""

Rows: TypeAlias = Counter[Row] | None
"""What there is at a time; None for an error in the place of rows."""
Function: TypeAlias = Callable[[Any], Any]
"""Rows of a relation, from those that it is made of."""


def counted(rows: Counter[Row]) -> Counter[Row]:
    """How many rows there are of each number at the left."""
    counts: Counter[Any] = Counter()
    for (left, _), count in rows.items():
        counts[left] += count
    return Counter({(left, count): 1 for left, count in counts.items() if count})


def divided(rows: Counter[Row]) -> Rows:
    """Numbers at the left divided by those at the right."""
    if any(count and row[1] == 0 for row, count in rows.items()):
        return None
    quotients: Counter[Row] = Counter()
    for (left, right), count in rows.items():
        quotients[left // right, right] += count  # type: ignore[operator]
    return quotients


def greater(least: int) -> Function:
    """Rows with more than that at the left."""
    return lambda rows: Counter({row: count for row, count in rows.items() if row[0] > least})


SAMPLES: tuple[tuple[Relation, Function], ...] = (
    (FIRST, lambda rows: rows),
    (Filter(FIRST, call(">", LEFT, number(2))), greater(2)),
    (Project(FIRST, (RIGHT, LEFT)), lambda rows: Counter({row[::-1]: count for row, count in rows.items()})),
    (Reduce(FIRST, (LEFT,), (aggregate("count"),)), counted),
    (Project(FIRST, (call("/", LEFT, RIGHT), RIGHT)), divided),
    (SECOND, lambda rows: rows),
    (Reduce(SECOND, (LEFT,), (aggregate("count"),)), counted),
)
"""Relations, and what they are by other means."""


EVENTS: list[str] = []
"""What may happen."""


def event(function: Callable[[Any, Random], None]) -> Callable[..., None]:
    """A rule that draws from a generator whatever it takes, and after which some time passes."""
    EVENTS.append(function.__name__)

    def happen(self: Model, random: Random) -> None:
        function(self, random)
        self.go_on(random)

    happen.__name__ = function.__name__
    return rule(random=RANDOM)(happen)


@dataclass
class Asked:
    """A peek that somebody waits for, and the answers that have come.

    Attributes:
        rows_at: what is to be answered.
        time: at which.
        is_sure: whether some replica knows it, or will, unless something happens to replicas.
        disturbances: how much had happened to them.
    """

    rows_at: Callable[[int], Rows]
    time: int
    is_sure: bool
    disturbances: int
    answers: list[list[Row] | FlowError] = field(default_factory=list)
    parts: list[Row] = field(default_factory=list)
    is_cancelled: bool = False
    is_given_up: bool = False

    @property
    def is_awaited(self) -> bool:
        """Whether somebody still waits for it."""
        return not self.answers and not self.is_given_up


@dataclass
class Followed:
    """A tail, and what was handed on of it."""

    dataflow: Dataflow
    rows_at: Callable[[int], Rows]
    has_snapshot: bool
    frontier: int
    updates: list[tuple[int, Row, int]] = field(default_factory=list)
    failure: FlowError | None = None

    def receive(self, response: TailResponse) -> None:
        """Take what is new."""
        assert self.failure is None or response.failure is not None, "a tail goes on after its end"
        if response.failure is not None:
            self.failure = response.failure
            return
        assert response.lower == self.frontier, "a tail has a gap, or repeats itself"
        as_of = self.dataflow.as_of
        first = as_of if self.frontier == as_of else self.frontier
        assert all(first <= time < max(response.upper, as_of + 1) for time, _, _ in response.updates)
        self.frontier = response.upper
        self.updates += response.updates

    def check(self) -> None:
        """All that was handed on was so, at each time."""
        if isinstance(self.failure, SqlError):
            assert self.rows_at(self.frontier) is None, "a tail ended with an error that is not there"
        as_of = self.dataflow.as_of
        begun = Counter[Row]() if self.has_snapshot else self.rows_at(as_of)
        for time in range(as_of, self.frontier):
            expected = self.rows_at(time)
            if begun is None:  # an error at the time before the first update
                return
            rows = Counter(begun)
            for when, row, diff in self.updates:
                if when <= time:
                    rows[row] += diff
            assert expected is not None, "a tail hides an error"
            assert +rows == +expected, ("a tail is wrong", time)


class Model(RuleBasedStateMachine):
    """Controllers, replicas, and wires between them, in which anything may go wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory(prefix="flow-model-")
        self.collections = {1: Changing(TYPES), 2: Changing(TYPES)}
        self.rows: dict[int, list[Row]] = {1: [], 2: []}
        self.now, self.seconds = 1, 0.0
        for collection in self.collections.values():
            collection.seal(2)
        self.memory = Memory(self.collections)
        self.epoch, self.next_id, self.disturbances = 0, 100, 0
        self.catalog: dict[GlobalId, Dataflow] = {}
        self.recipes: dict[GlobalId, tuple[GlobalId, Function]] = {}
        self.asked: dict[int, Asked] = {}
        self.about: dict[int, GlobalId] = {}
        self.tails: dict[GlobalId, Followed] = {}
        self.uppers: dict[GlobalId, int] = {}
        self.reached: dict[GlobalId, int] = {}
        self.known: dict[tuple[str, int, GlobalId], tuple[int, int, int]] = {}
        self.welcomes: dict[str, Welcome] = {}
        self.wires: list[Wire] = []
        self.links: dict[str, Wire] = {}
        self.zombies: list[Controller] = []
        self.processes: dict[str, Process] = {}
        self.lazy: set[str] = set()
        self.was_shut = False

    @initialize(count=st.integers(1, 3), random=RANDOM)
    def begin(self, count: int, random: Random) -> None:
        """Some replicas, and a controller that is connected to them."""
        for _ in range(count):
            self.new_process(random)
        self.begin_controller()

    def go_on(self, random: Random) -> None:
        """Some time passes."""
        for _ in range(random.choice((0, 0, 1, 2, 4, 8))):
            if random.random() < 0.2:
                self.pass_time(random)
            self.turn(random)

    def new_process(self, random: Random) -> None:
        """A replica starts."""
        name = next(name for name in "abcd" if name not in self.processes)
        self.processes[name] = Process(
            name,
            self.memory,
            Path(self.folder.name),
            lambda: self.seconds,
            most_here=random.choice((3, MOST_HERE)),
            tell=lambda process, welcome: self.welcomes.update({process.name: welcome}),
        )

    def begin_controller(self) -> None:
        """A controller starts, which knows what is durable: the catalog and its holds."""
        self.epoch += 1
        self.disturbances += 1
        for identifier in list(self.memory.held.keys() - self.catalog.keys()):
            self.memory.release(identifier)
        self.controller = Controller(self.epoch, self.memory)
        self.uppers = {}
        held = self.memory.held
        self.catalog = {key: replace(dataflow, as_of=held[key]) for key, dataflow in self.catalog.items()}
        self.controller.create(list(self.catalog.values()))
        for name in self.processes:
            self.connect(name)

    def connect(self, name: str) -> None:
        """The controller connects to a replica."""
        self.links[name] = self.wired(self.controller, name)
        self.controller.attach(name, self.links[name].link)

    def wired(self, controller: Controller, name: str) -> Wire:
        """A connection that is new."""
        process = self.processes[name]
        wire = Wire(controller, process.reconciler, rivals=process.rivals)
        self.wires.append(wire)
        return wire

    # What there should be

    def oracle(self, identifier: GlobalId) -> Callable[[int], Rows]:
        """What a dataflow as it is defined now is at each time, by other means."""
        if identifier in self.collections:
            collection = self.collections[identifier]
            return lambda time: Counter(row for batch in collection.at(time) for row in batch)
        below, function = self.recipes[identifier]
        rows_below = self.oracle(below)

        def rows_at(time: int) -> Rows:
            rows = rows_below(time)
            return None if rows is None else function(rows)

        return rows_at

    def define(self, identifier: GlobalId, sample: int, export: Export, as_of: int) -> Dataflow:
        """A dataflow over a collection."""
        plan, function = SAMPLES[sample]
        read = 2 if sample >= 5 else 1
        self.recipes[identifier] = read, function
        return Dataflow(identifier, plan, (Import(read, None, "u"),), export, as_of)  # type: ignore[arg-type]

    def new_id(self) -> GlobalId:
        """One that nothing has had yet."""
        self.next_id += 1
        return self.next_id

    def time(self, random: Random) -> int:
        """A time that is remembered, and known."""
        return random.randint(max(self.memory.since, self.now - 4), self.now)

    def over(self, identifier: GlobalId) -> list[GlobalId]:
        """A dataflow, and all that are over it, in the order in which they can be made."""
        over = [identifier]
        for other in sorted(self.catalog):
            if self.recipes[other][0] in over:
                over.append(other)
        return over

    # What users do

    @event
    def tick(self, random: Random) -> None:
        """A moment later."""
        self.pass_time(random)

    def pass_time(self, random: Random) -> None:
        """Rows come and go."""
        self.now += 1
        for number_, collection in self.collections.items():
            rows = self.rows[number_]
            changes: list[tuple[Row, int]] = []
            for _ in range(random.randrange(4)):
                zeros = [row for row in rows if row[1] == 0]
                if rows and random.random() < 0.5:
                    rows.remove(row := random.choice(zeros or rows))
                    changes.append((row, -1))
                else:
                    rows.append(row := (random.randrange(5), random.choice((0, 1, 1, 1, 2, 2, 2, 2))))
                    changes.append((row, 1))
            collection.change(self.now, changes)
            collection.seal(self.now + 1)

    @event
    def index(self, random: Random) -> None:
        """An index is created."""
        dataflow = self.define(self.new_id(), random.randrange(len(SAMPLES)), Index((0,)), self.time(random))
        self.create([dataflow])
        if random.random() < 0.5:
            self.ask(dataflow, random)

    @event
    def index_on_index(self, random: Random) -> None:
        """An index on what another one keeps is created."""
        if not self.catalog:
            return
        below = random.choice(list(self.catalog))
        identifier = self.new_id()
        plan = Filter(Get(below, TYPES), call(">", LEFT, number(1)))
        self.recipes[identifier] = below, greater(1)
        as_of = max(self.time(random), self.memory.held[below])
        self.create([Dataflow(identifier, plan, (), Index(), as_of)])

    def create(self, dataflows: list[Dataflow]) -> None:
        """Dataflows are created."""
        self.catalog |= {dataflow.id: dataflow for dataflow in dataflows}
        self.controller.create(dataflows)

    @event
    def drop(self, random: Random) -> None:
        """An index is dropped, with all that is over it."""
        if not self.catalog:
            return
        self.drop_all(self.over(random.choice(list(self.catalog))))

    def drop_all(self, gone: list[GlobalId]) -> list[Dataflow]:
        """Drop dataflows; how they were."""
        for uuid, asked in self.asked.items():
            if asked.is_awaited and self.about[uuid] in gone:
                self.give_up(uuid)
        for identifier, tail in list(self.tails.items()):
            if isinstance(tail.dataflow.export, Tail) and tail.dataflow.export.of in gone:
                self.unfollow(identifier)
        dropped = [self.catalog[identifier] for identifier in gone]
        for identifier in reversed(gone):
            del self.catalog[identifier]
            self.uppers.pop(identifier, None)
            self.reached.pop(identifier, None)
            self.controller.drop(identifier)
        return dropped

    @event
    def redefine(self, random: Random) -> None:
        """An index becomes one of something else; what is over it is made anew."""
        if not self.catalog:
            return
        self.disturbances += 1
        changed, *others = self.drop_all(self.over(random.choice(list(self.catalog))))
        as_of = self.time(random)
        first = self.define(changed.id, random.randrange(len(SAMPLES)), changed.export, as_of)
        self.create([first, *(replace(other, as_of=as_of) for other in others)])

    @event
    def allow(self, random: Random) -> None:
        """Nobody is to ask for earlier times any more; what nobody holds is forgotten."""
        if not self.catalog:
            return
        self.controller.allow_compaction(self.frontiers(random))
        self.memory.compact(self.now)

    def frontiers(self, random: Random) -> dict[GlobalId, int]:
        """From when on things may be asked for."""
        identifiers = random.sample(list(self.catalog), random.randint(1, len(self.catalog)))
        frontiers = {identifier: random.choice((self.now, self.time(random))) for identifier in identifiers}
        return frontiers | dict.fromkeys(self.tails, self.now)

    @event
    def peek(self, random: Random) -> None:
        """Somebody asks."""
        if self.catalog:
            self.ask(random.choice(list(self.catalog.values())), random)

    def ask(self, dataflow: Dataflow, random: Random) -> None:
        """Ask for the rows of a dataflow."""
        time = max(self.time(random), self.memory.held[dataflow.id]) + random.choice((0, 0, 1, 2, FAR))
        try:
            since, upper = self.controller.frontiers(dataflow.id)
            is_sure = since <= time and since < upper and not self.memory.is_shut
        except FlowError:
            is_sure = False
        asked = Asked(self.oracle(dataflow.id), time, is_sure, self.disturbances)

        def receive(response: PeekResponse) -> None:
            assert not asked.answers, "a peek was answered twice"
            assert not asked.is_cancelled, "a peek was answered that nobody waited for"
            if isinstance(response.result, FlowError):
                asked.answers.append(response.result)
                is_sure = asked.is_sure or "not maintained" in str(response.result)
                is_gone = isinstance(response.result, FrontierError) and is_sure
                assert not is_gone or asked.disturbances < self.disturbances, (
                    "what was held is forgotten",
                    response.result,
                )
                return
            asked.parts += response.result
            if response.is_last:
                asked.answers.append(asked.parts)

        get = Get(dataflow.id, TYPES)
        uuid = self.controller.peek(Query(get, EVERYTHING), asked.time, receive)
        self.asked[uuid], self.about[uuid] = asked, dataflow.id

    @event
    def cancel(self, random: Random) -> None:
        """Somebody waits no more."""
        if not any(asked.is_awaited for asked in self.asked.values()):
            return
        self.give_up(random.choice([uuid for uuid, asked in self.asked.items() if asked.is_awaited]))

    def give_up(self, uuid: int) -> None:
        """Nobody waits for a peek any more."""
        self.asked[uuid].is_cancelled = self.asked[uuid].is_given_up = True
        self.controller.cancel(uuid)

    @event
    def subscribe(self, random: Random) -> None:
        """Somebody follows a relation."""
        if len(self.tails) >= 3:
            return
        sample, has_snapshot, as_of = random.randrange(len(SAMPLES)), random.random() < 0.5, self.time(random)
        same = [key for key, dataflow in self.catalog.items() if dataflow.plan == SAMPLES[sample][0]]
        export = Tail(has_snapshot, of=random.choice([None, *same]))
        dataflow = self.define(self.new_id(), sample, export, as_of)
        followed = Followed(dataflow, self.oracle(dataflow.id), has_snapshot, as_of)
        self.tails[dataflow.id] = followed
        self.controller.subscribe(dataflow, followed.receive)

    @event
    def unsubscribe(self, random: Random) -> None:
        """Somebody follows it no more."""
        if not self.tails:
            return
        self.unfollow(random.choice(list(self.tails)))

    def unfollow(self, identifier: GlobalId) -> None:
        """End a tail."""
        self.tails.pop(identifier).check()
        self.controller.drop(identifier)

    # What goes wrong

    def turn(self, random: Random) -> bool:
        """Whatever may happen in a moment; whether anything did."""
        self.seconds += 0.05
        happened = False
        for wire in self.wires:
            happened |= not wire.is_quiet()
            wire.deliver(random)
        for process in self.processes.values():
            if random.random() < 0.6 and process.name not in self.lazy:
                happened |= process.reconciler.work()
                self.note(process)
        for name, wire in list(self.links.items()):
            if wire.is_lost and random.random() < 0.4:
                self.controller.detach(name, wire.link)
                self.connect(name)
                happened = True
        for identifier, tail in list(self.tails.items()):
            if tail.failure is not None:
                is_away = "the disk is away" in str(tail.failure)
                assert is_away or isinstance(tail.failure, SqlError), tail.failure
                self.unfollow(identifier)
        self.wires = [wire for wire in self.wires if not wire.is_quiet() or (wire.is_open and not wire.is_lost)]
        return happened

    def note(self, process: Process) -> None:
        """Remember how far a replica is, and see that compaction stays below what is held."""
        reconciler, instance = process.reconciler, process.reconciler._instance
        for identifier, dataflow in self.catalog.items():
            if reconciler._dataflows.present.get(identifier) != dataflow or not instance.has_begun(identifier):
                continue
            try:
                since, upper = instance.frontiers(identifier)
            except FlowError:
                continue
            self.reached[identifier] = max(upper, self.reached.get(identifier, 0))
            key, build = (process.name, process.count, identifier), reconciler._builds.get(identifier, 0)
            before = self.known.get(key)
            if before is not None and before[0] == build and before[1] < since < before[2]:
                assert since <= self.memory.held[identifier], "a dataflow has forgotten what is held"
            self.known[key] = build, since, upper

    @event
    def crash(self, random: Random) -> None:
        """A replica dies and starts again, with or without its disk."""
        process = self.processes[random.choice(list(self.processes))]
        self.disturbances += 1
        self.leave(process)
        process.die(is_lost=random.random() < 0.4)

    def leave(self, process: Process) -> None:
        """All connections to a replica are gone, at its end."""
        for wire in self.wires:
            if wire.replica is process.reconciler:
                wire.lose()

    @event
    def cut(self, random: Random) -> None:
        """A connection is cut, of which the replica may not know; what is under way down there arrives yet, or late."""
        name = random.choice(list(self.processes))
        self.disturbances += 1
        for _ in range(random.choice((1, 2))):
            wire = self.links[name]
            self.controller.detach(name, wire.link)
            wire.is_stalled = random.random() < 0.5
            if not wire.is_stalled and random.random() < 0.5 and wire.replica is not None:
                wire.replica.lose(wire.session)
                wire.lose()
            self.connect(name)

    @event
    def stall(self, random: Random) -> None:
        """A connection stalls, or a replica has other things to do, or they go on."""
        if random.random() < 0.5:
            self.lazy ^= {random.choice(list(self.processes))}
            return
        if self.wires:
            wire = random.choice(self.wires)
            wire.is_stalled = not wire.is_stalled

    @event
    def restart(self, random: Random) -> None:
        """The controller dies, and another one starts; the old one may live on, and its catalog be another one by then."""
        self.end_controller()
        if random.random() < 0.5:
            self.zombies.append(self.controller)
            self.controller._holds = Memory({})
        if self.catalog and random.random() < 0.5:
            identifier = random.choice(list(self.catalog))
            if random.random() < 0.5:
                for gone in self.over(identifier):
                    del self.catalog[gone]
            else:
                for changed in self.over(identifier):
                    self.reached.pop(changed, None)
                dataflow = self.catalog[identifier]
                sample = random.randrange(len(SAMPLES))
                self.catalog[identifier] = self.define(identifier, sample, dataflow.export, dataflow.as_of)
        self.begin_controller()

    def end_controller(self) -> None:
        """Nobody hears of the controller any more, nor does it of anybody."""
        for asked in self.asked.values():
            asked.is_given_up |= not asked.answers
        for tail in self.tails.values():
            tail.check()
        self.tails.clear()
        for wire in self.links.values():
            wire.is_open = False

    @event
    def haunt(self, random: Random) -> None:
        """A controller that was taken for dead connects to replicas, and has everything dropped."""
        if not self.zombies:
            return
        zombie = random.choice(self.zombies)
        self.disturbances += 1
        for name in self.processes:
            if random.random() < 0.7:
                zombie.attach(name, self.wired(zombie, name).link)
        for identifier in zombie.ids():
            if random.random() < 0.5:
                zombie.drop(identifier)

    @event
    def die_while_compacting(self, random: Random) -> None:
        """The controller dies as it moves what is held."""
        if not self.catalog:
            return
        self.memory.dies = random.random() < 0.5
        try:
            self.controller.allow_compaction(self.frontiers(random))
        except Died:
            self.memory.dies = None
            self.end_controller()
            self.begin_controller()
        self.memory.dies = None

    @event
    def add(self, random: Random) -> None:
        """A replica is added."""
        if len(self.processes) >= 3:
            return
        before = set(self.processes)
        self.new_process(random)
        for name in self.processes.keys() - before:
            self.connect(name)

    @event
    def remove(self, random: Random) -> None:
        """A replica is taken away."""
        if len(self.processes) <= 1:
            return
        name = random.choice(list(self.processes))
        self.disturbances += 1
        process = self.processes.pop(name)
        self.known = {key: known for key, known in self.known.items() if key[0] != name}
        self.leave(process)
        self.controller.detach(name, self.links.pop(name).link)
        process.reconciler.close()

    @event
    def shut(self, random: Random) -> None:
        """Storage cannot be read for a while."""
        self.memory.is_shut = random.random() < 0.5
        self.was_shut |= self.memory.is_shut
        self.disturbances += 1
        self.seconds += random.randrange(20)

    # What holds

    @invariant()
    def what_is_known_is_so(self) -> None:
        """A frontier that was told is never taken back, and some replica has been so far."""
        for identifier in self.catalog:
            wanted = self.controller.dataflow(identifier)
            assert wanted is not None
            failure = self.controller.failure(identifier)
            is_late = self.was_shut and isinstance(failure, FrontierError)  # holds do not wait for what has failed
            assert failure is None or is_late or "the disk is away" in str(failure), failure
            if failure is not None:
                continue
            _, upper = self.controller.frontiers(identifier)
            assert upper >= self.uppers.get(identifier, 0), "an upper went back"
            assert upper <= max(wanted.as_of, self.reached.get(identifier, 0)), "nobody has been so far"
            self.uppers[identifier] = upper

    @invariant()
    def holds_pass_nobody_who_reads(self) -> None:
        """Whoever reads something can go on from where he is."""
        held = self.memory.held
        for identifier in self.catalog:
            below = self.recipes[identifier][0]
            assert below in self.collections or held[below] <= held[identifier], "a hold has passed a reader"
        for uuid, asked in self.asked.items():
            if asked.is_awaited and asked.is_sure:
                assert held[self.about[uuid]] <= asked.time, "a hold has passed a peek"
        for identifier, tail in self.tails.items():
            if tail.failure is None:
                assert held[identifier] <= max(tail.frontier - 1, tail.dataflow.as_of), "a hold has passed a tail"

    @invariant()
    def replicas_wait_for_nothing_that_nobody_asks(self) -> None:
        """Once it has heard of all, a replica works at nothing in vain."""
        for wire in self.links.values():
            replica = wire.replica
            if replica is not None and not wire.down and replica._session is wire.session:
                assert replica.peeks._waiting.keys() <= self.controller._peeks.keys(), "nobody waits for that"

    def check(self) -> None:
        """What holds at every moment."""
        self.what_is_known_is_so()
        self.holds_pass_nobody_who_reads()
        self.replicas_wait_for_nothing_that_nobody_asks()

    def teardown(self) -> None:
        """Once nothing goes wrong any more, everything settles, and everything was true."""
        try:
            if self.processes:
                self.end()
        finally:
            self.close()

    def close(self) -> None:
        """Give everything back."""
        for process in self.processes.values():
            process.reconciler.close()
        self.folder.cleanup()

    def end(self) -> None:
        """Nothing goes wrong any more."""
        random = Random(0)
        for _ in range(3):
            self.pass_time(random)
        for uuid, asked in self.asked.items():
            if asked.is_awaited and asked.time >= FAR:
                self.give_up(uuid)
        self.settle(random)
        for tail in self.tails.values():
            tail.check()
            assert tail.failure is not None or tail.frontier > self.now, "a tail has stopped"
        for asked in self.asked.values():
            self.check_answer(asked)
        self.check_replicas()
        self.haunt_all(random)
        self.check_replicas()
        self.check_kept(random)

    def settle(self, random: Random) -> None:
        """Go on until nothing happens any more."""
        self.memory.is_shut = False
        self.lazy.clear()
        for wire in self.wires:
            wire.is_stalled = False
        quiet = 0
        for _ in range(MOST_ROUNDS):
            self.seconds += 1
            happened = self.turn(random)
            self.what_is_known_is_so()
            quiet = 0 if happened else quiet + 1
            if quiet > 40:  # longer than retries pause
                return
        raise AssertionError("it never settles")

    def haunt_all(self, random: Random) -> None:
        """Controllers that were taken for dead are not heard any more."""
        for zombie in self.zombies:
            for name in self.processes:
                zombie.attach(name, self.wired(zombie, name).link)
        if self.zombies:
            self.settle(random)

    def check_answer(self, asked: Asked) -> None:
        """A peek was answered once, and truthfully."""
        if asked.is_given_up:
            return
        assert asked.answers, "a peek was never answered"
        (answer,) = asked.answers
        if isinstance(answer, SqlError):
            assert asked.rows_at(asked.time) is None, "a peek was answered with an error that is not there"
        elif not isinstance(answer, FlowError):
            expected = asked.rows_at(asked.time)
            assert expected is not None, "a peek hides an error"
            assert Counter(answer) == +expected, "a peek was answered wrongly"

    def check_replicas(self) -> None:
        """Each replica maintains what is wanted and nothing else, up to the present; and so much is held."""
        assert self.memory.held.keys() == self.catalog.keys() | self.tails.keys(), "too much or too little is held"
        for identifier in self.catalog:
            assert self.controller.frontiers(identifier)[1] > self.now, "a frontier was not told"
        for process in self.processes.values():
            instance = process.reconciler._instance
            assert set(instance.ids()) == self.catalog.keys(), "a replica maintains something else"
            assert not process.reconciler.peeks._waiting, "a replica waits for nobody"
            for identifier in self.catalog:
                assert instance.frontiers(identifier)[1] > self.now, "a dataflow has stopped"
                rows, expected = self.asked_directly(process, identifier), self.oracle(identifier)(self.now)
                assert rows == (None if expected is None else +expected), "a dataflow is wrong"

    def asked_directly(self, process: Process, identifier: GlobalId) -> Rows:
        """What a replica has."""
        try:
            rows = process.reconciler._instance.peek(Get(identifier, TYPES), EVERYTHING, self.now)
            return Counter(row for batch in rows for row in batch)
        except SqlError:
            return None

    def same(self, process: Process) -> set[GlobalId]:
        """What a replica is to keep: all that is known from where it is held on, and over nothing that is not."""
        same = set(self.collections)
        for identifier in sorted(self.catalog):
            since, _ = process.reconciler._instance.frontiers(identifier)
            if since <= self.memory.held[identifier] and self.recipes[identifier][0] in same:
                same.add(identifier)
        return same - set(self.collections)

    def check_kept(self, random: Random) -> None:
        """Where all is as wanted, another controller has nothing made anew, though replicas were restarted as well."""
        same = {name: self.same(process) for name, process in self.processes.items()}
        tails = set(self.tails)
        self.end_controller()
        if random.random() < 0.5 or len(self.catalog) % 2:
            for process in self.processes.values():
                self.leave(process)
                process.die(is_lost=False)
        self.welcomes.clear()
        self.begin_controller()
        self.settle(random)
        for name in self.processes:
            welcome = self.welcomes[name]
            assert set(welcome.dropped) <= tails, "what is wanted was dropped"
            assert same[name] <= set(welcome.kept), ("what is the same was made anew", str(welcome))
        self.check_replicas()


def play(seed: int, steps: int) -> None:
    """One history, in which anything may happen, some things more often than others.

    Raises:
        AssertionError: something that holds does not.
    """
    random = Random(seed)
    weights = [random.choice((0.3, 1, 3)) for _ in EVENTS]
    model = Model()
    try:
        model.begin(random.randint(1, 3), random)
        for name in random.choices(EVENTS, weights, k=steps):
            getattr(model, name)(random)
            model.check()
        model.end()
    finally:
        model.close()
