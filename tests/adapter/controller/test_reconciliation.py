"""Whatever is lost, late or restarted: the adapter sees one instance that never errs."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from changing import Changing
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from network import Memory, Process, Wire
from relations_sample import aggregate, call, number

from derive.adapter.controller.controller import Controller
from derive.compute.algebra.expression import Column
from derive.compute.algebra.relation import Filter, Finishing, Get, GlobalId, Project, Reduce, Relation
from derive.compute.algebra.types import Row, Type
from derive.compute.oneshot import evaluate
from derive.compute.protocol.messages import (
    Dataflow,
    Export,
    Import,
    Index,
    PeekResponse,
    Query,
    Tail,
    TailResponse,
)
from derive.errors import FlowError, FrontierError

EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "30"))
TYPES = (Type.BIGINT, Type.BIGINT)
COLLECTION = Get(1, TYPES)
RANDOM = st.integers(0, 2**16).map(Random)
EVERYTHING = Finishing((), None, 0, (0, 1))
PLANS: tuple[Relation, ...] = (
    COLLECTION,
    Filter(COLLECTION, call(">", Column(0, Type.BIGINT), number(2))),
    Project(COLLECTION, (Column(1, Type.BIGINT), Column(0, Type.BIGINT))),
    Reduce(COLLECTION, (Column(0, Type.BIGINT),), (aggregate("count"),)),
)


@dataclass
class Asked:
    """A peek that somebody waits for, and the answers that have come."""

    plan: Relation
    time: int
    answers: list[list[Row] | FlowError] = field(default_factory=list)
    parts: list[Row] = field(default_factory=list)


@dataclass
class Followed:
    """A tail, and what was handed on of it."""

    plan: Relation
    as_of: int
    has_snapshot: bool
    frontier: int
    updates: list[tuple[int, Row, int]] = field(default_factory=list)
    failure: FlowError | None = None

    def receive(self, response: TailResponse) -> None:
        """Take what is new."""
        if response.failure is not None:
            self.failure = response.failure
            return
        assert response.lower == self.frontier, "a tail has a gap, or repeats itself"
        first = self.as_of if self.frontier == self.as_of else self.frontier
        assert all(first <= time < max(response.upper, self.as_of + 1) for time, _, _ in response.updates)
        self.frontier = response.upper
        self.updates += response.updates


class Model(RuleBasedStateMachine):
    """Controllers, replicas, and wires between them, in which anything may go wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory(prefix="flow-model-")
        self.collection = Changing(TYPES)
        self.rows: list[Row] = []
        self.now = 1
        self.collection.seal(2)
        self.memory = Memory({1: self.collection})
        self.epoch = 0
        self.next_id = 100
        self.catalog: dict[GlobalId, Dataflow] = {}
        self.plans: dict[GlobalId, Relation] = {}
        self.asked: dict[int, Asked] = {}
        self.given_up: set[int] = set()
        self.tails: dict[GlobalId, Followed] = {}
        self.uppers: dict[GlobalId, int] = {}
        self.wires: list[Wire] = []
        self.processes = {"a": Process("a", self.memory, Path(self.folder.name))}
        self.begin()

    def begin(self) -> None:
        """A controller starts, which knows what is durable: the catalog and its holds."""
        self.epoch += 1
        self.controller = Controller(self.epoch, self.memory)
        self.uppers = {}
        held = self.memory.held
        self.controller.create([replace(dataflow, as_of=held[dataflow.id]) for dataflow in self.catalog.values()])
        for name in self.processes:
            self.connect(name)

    def connect(self, name: str) -> None:
        """The controller connects to a replica."""
        wire = Wire(self.controller, self.processes[name].reconciler)
        self.wires.append(wire)
        self.controller.attach(name, wire.link)

    def define(self, plan: Relation, export: Export, as_of: int) -> Dataflow:
        """A dataflow under a new identifier."""
        self.next_id += 1
        self.plans[self.next_id] = plan
        return Dataflow(self.next_id, plan, (Import(1, None, "u"),), export, as_of)  # type: ignore[arg-type]

    def times(self, random: Random) -> int:
        """A time that is remembered, and known."""
        return random.randint(max(self.memory.since, self.now - 4), self.now)

    # What users do

    @rule(random=RANDOM)
    def tick(self, random: Random) -> None:
        """Rows come and go."""
        self.now += 1
        changes: list[tuple[Row, int]] = []
        for _ in range(random.randrange(4)):
            if self.rows and random.random() < 0.4:
                changes.append((self.rows.pop(random.randrange(len(self.rows))), -1))
            else:
                row = (random.randrange(5), random.randrange(3))
                self.rows.append(row)
                changes.append((row, 1))
        self.collection.change(self.now, changes)
        self.collection.seal(self.now + 1)

    @rule(plan=st.sampled_from(PLANS), random=RANDOM)
    def index(self, plan: Relation, random: Random) -> None:
        """An index is created."""
        dataflow = self.define(plan, Index((0,)), self.times(random))
        self.catalog[dataflow.id] = dataflow
        self.controller.create([dataflow])

    @precondition(lambda self: self.catalog)
    @rule(random=RANDOM)
    def index_on_index(self, random: Random) -> None:
        """An index on what another one keeps is created."""
        below = random.choice(list(self.catalog.values()))
        plan = Filter(Get(below.id, below.plan.types), call(">", Column(0, Type.BIGINT), number(1)))
        self.next_id += 1
        self.plans[self.next_id] = plan
        as_of = max(self.times(random), self.memory.held[below.id])
        dataflow = Dataflow(self.next_id, plan, (), Index(), as_of)
        self.catalog[dataflow.id] = dataflow
        self.controller.create([dataflow])

    @precondition(lambda self: self.catalog)
    @rule(random=RANDOM)
    def drop(self, random: Random) -> None:
        """An index is dropped, with all that is over it."""
        gone = {random.choice(list(self.catalog))}
        for identifier, dataflow in self.catalog.items():
            if isinstance(dataflow.plan, Filter) and dataflow.plan.input.id in gone:  # type: ignore[union-attr]
                gone.add(identifier)
        for uuid, asked in self.asked.items():
            if asked.plan.id in gone and not asked.answers:  # type: ignore[union-attr]
                self.controller.cancel(uuid)
                self.given_up.add(uuid)
        for identifier in sorted(gone, reverse=True):
            del self.catalog[identifier]
            self.controller.drop(identifier)

    @precondition(lambda self: self.catalog)
    @rule(random=RANDOM)
    def allow(self, random: Random) -> None:
        """Nobody is to ask for earlier times any more; what nobody holds is forgotten."""
        identifiers = random.sample(list(self.catalog), random.randint(1, len(self.catalog)))
        frontiers = {identifier: self.times(random) for identifier in identifiers}
        self.controller.allow_compaction(frontiers | dict.fromkeys(self.tails, self.now))
        self.memory.compact(self.now)

    @rule()
    def settle(self) -> None:
        """What has begun later than it was told to is asked for from then on."""
        self.controller.allow_compaction(self.controller.late())

    @precondition(lambda self: self.catalog)
    @rule(random=RANDOM, ahead=st.integers(0, 2))
    def peek(self, random: Random, ahead: int) -> None:
        """Somebody asks."""
        dataflow = random.choice(list(self.catalog.values()))
        get = Get(dataflow.id, dataflow.plan.types)
        asked = Asked(get, max(self.times(random), self.memory.held[dataflow.id]) + ahead)

        def receive(response: PeekResponse) -> None:
            assert not asked.answers, "a peek was answered twice"
            if isinstance(response.result, FlowError):
                asked.answers.append(response.result)
                return
            asked.parts += response.result
            if response.is_last:
                asked.answers.append(asked.parts)

        self.asked[self.controller.peek(Query(get, EVERYTHING), asked.time, receive)] = asked

    @precondition(lambda self: any(not asked.answers for asked in self.asked.values()))
    @rule(random=RANDOM)
    def cancel(self, random: Random) -> None:
        """Somebody waits no more."""
        uuid = random.choice([uuid for uuid, asked in self.asked.items() if not asked.answers])
        self.controller.cancel(uuid)
        self.given_up.add(uuid)

    @precondition(lambda self: len(self.tails) < 3)
    @rule(plan=st.sampled_from(PLANS), has_snapshot=st.booleans(), random=RANDOM)
    def subscribe(self, plan: Relation, has_snapshot: bool, random: Random) -> None:
        """Somebody follows a relation."""
        as_of = self.times(random)
        same = [identifier for identifier, dataflow in self.catalog.items() if dataflow.plan == plan]
        dataflow = self.define(plan, Tail(has_snapshot, of=random.choice([None, *same])), as_of)
        followed = Followed(plan, as_of, has_snapshot, as_of)
        self.tails[dataflow.id] = followed
        self.controller.subscribe(dataflow, followed.receive)

    # What goes wrong

    @rule(random=RANDOM, count=st.integers(1, 12))
    def run(self, random: Random, count: int) -> None:
        """Messages arrive, and replicas work."""
        for _ in range(count):
            for wire in self.wires:
                wire.deliver(random)
            for process in self.processes.values():
                if random.random() < 0.6:
                    process.reconciler.work()

    @rule(random=RANDOM, is_lost=st.booleans())
    def crash(self, random: Random, is_lost: bool) -> None:
        """A replica dies and starts again, with or without its disk; later, the controller connects to it."""
        name = random.choice(list(self.processes))
        old = self.processes[name].reconciler
        for wire in self.wires:
            if wire.replica is old:
                wire.replica = None
                wire.down.clear()
        self.processes[name].die(is_lost=is_lost)
        self.connect(name)

    @rule(random=RANDOM, is_known_below=st.booleans())
    def cut(self, random: Random, is_known_below: bool) -> None:
        """A connection is cut, of which the replica may not know; what is under way down there arrives yet."""
        name = random.choice(list(self.processes))
        for wire in self.wires:
            if wire.controller is self.controller and wire.replica is self.processes[name].reconciler:
                wire.controller = None
                if is_known_below:
                    wire.replica = None
                    wire.down.clear()
        self.connect(name)

    @rule(is_zombie=st.booleans())
    def restart(self, is_zombie: bool) -> None:
        """The controller dies, and another one starts; the old one may send on."""
        for uuid, asked in self.asked.items():
            if not asked.answers:
                self.given_up.add(uuid)
        self.tails.clear()
        old = self.controller
        if is_zombie:
            old._holds = Memory({})
            for identifier in list(self.catalog):
                old.drop(identifier)
        else:
            for wire in self.wires:
                wire.controller = None if wire.controller is old else wire.controller
        for identifier in list(self.memory.held.keys() - self.catalog.keys()):
            self.memory.release(identifier)
        self.begin()

    @precondition(lambda self: len(self.processes) < 3)
    @rule()
    def add(self) -> None:
        """A replica is added."""
        name = next(name for name in "abcd" if name not in self.processes)
        self.processes[name] = Process(name, self.memory, Path(self.folder.name))
        self.connect(name)

    @precondition(lambda self: len(self.processes) > 1)
    @rule(random=RANDOM)
    def remove(self, random: Random) -> None:
        """A replica is taken away."""
        name = random.choice(list(self.processes))
        process = self.processes.pop(name)
        link = self.controller.replicas()[name].link
        self.controller.detach(name, link)
        self.wires = [wire for wire in self.wires if wire.replica is not process.reconciler]
        process.reconciler.close()

    # What holds

    @invariant()
    def uppers_never_go_back(self) -> None:
        """A frontier that was told is never taken back."""
        for identifier in self.catalog:
            try:
                _, upper = self.controller.frontiers(identifier)
            except FlowError:
                continue
            assert upper >= self.uppers.get(identifier, 0)
            self.uppers[identifier] = upper

    def teardown(self) -> None:
        """Once nothing goes wrong any more, everything settles, and everything was true."""
        random = Random(0)
        for _ in range(3):
            self.tick(random)
        for _ in range(300):
            for wire in self.wires:
                wire.deliver(random)
            for process in self.processes.values():
                process.reconciler.work()
        try:
            self.check_peeks()
            self.check_tails()
            self.check_replicas()
        finally:
            for process in self.processes.values():
                process.reconciler.close()
            self.folder.cleanup()

    def truth(self, plan: Relation, time: int) -> Counter[Row]:
        """The rows of a relation at a time, from scratch."""
        if isinstance(plan, Get) and plan.id != 1:
            return self.truth(self.plans[plan.id], time)
        if isinstance(plan, Filter) and isinstance(plan.input, Get) and plan.input.id != 1:
            below = self.truth(plan.input, time)
            return Counter({row: count for row, count in below.items() if row[0] > 1})  # type: ignore[operator]
        finishing = Finishing((), None, 0, tuple(range(len(plan.types))))
        batches = evaluate(plan, finishing, lambda identifier, columns: self.collection.at(time), None, lambda: False)
        return Counter(row for batch in batches for row in batch)

    def check_peeks(self) -> None:
        """Each peek was answered once, and truthfully."""
        for uuid, asked in self.asked.items():
            if uuid in self.given_up:
                continue
            assert asked.answers, ("a peek was never answered", asked, self.described())
            (answer,) = asked.answers
            if isinstance(answer, FlowError):
                assert isinstance(answer, FrontierError), answer
                continue
            assert Counter(answer) == self.truth(asked.plan, asked.time)

    def check_tails(self) -> None:
        """Each tail has come to the end, with the rows of every time."""
        for tail in self.tails.values():
            assert tail.failure is None, tail.failure
            assert tail.frontier > self.now - 1, ("a tail has stopped", tail, self.described())
            begun = Counter() if tail.has_snapshot else self.truth(tail.plan, tail.as_of)
            for time in range(tail.as_of, self.now + 1):
                rows = Counter(begun)
                for when, row, diff in tail.updates:
                    if when <= time:
                        rows[row] += diff
                assert +rows == self.truth(tail.plan, time), time

    def check_replicas(self) -> None:
        """Each replica maintains what is wanted, from where it is held on, up to the present."""
        wanted = self.catalog.keys()
        for process in self.processes.values():
            instance = process.reconciler._instance
            assert set(instance.ids()) == wanted, self.described()
            for identifier in wanted:
                _, upper = instance.frontiers(identifier)
                assert upper > self.now, self.described()

    def described(self) -> str:
        """How far everything is."""
        lines = [f"now {self.now}, held {self.memory.held}"]
        for name, process in self.processes.items():
            instance = process.reconciler._instance
            lines.append(f"{name}: waiting {process.reconciler.peeks._waiting}")
            for identifier in instance.ids():
                try:
                    lines.append(f"  {identifier} {instance.frontiers(identifier)}")
                except FlowError as error:
                    lines.append(f"  {identifier} {error}")
            for cohort in instance._dataflows._cohorts.values():
                lines.append(
                    f"  cohort {cohort.id} upper {cohort.upper} roots {list(cohort.roots)} sources {cohort.sources} wanted {cohort.wanted()} feeds {[(i, f.frontier) for i, f in cohort.feeds.items()]} {instance._dataflows.broken}"
                )
            lines.append(f"  failures {process.reconciler._failures}")
        return "\n".join(lines)


TestReconciliation = Model.TestCase
TestReconciliation.settings = settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None)
