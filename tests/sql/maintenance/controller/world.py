"""Controllers, replicas and wires between them, at work with each other; what they are told, and what goes wrong, is said.

Code of the controller and of instances is the real one. The network between them, Storage, disks and the clock are
simulated.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from changing import Changing
from clients import Asked, Followed
from network import Memory, Process, Wire
from oracle import SAMPLES, TYPES, Function, Rows, RowsAt

from derive.algebra.relation import GlobalId
from derive.algebra.types import Row
from derive.compute.dataflow.hydration import MOST_HERE
from derive.compute.protocol.messages import Dataflow, Export, Import, Tail, Welcome
from derive.errors import FlowError, SqlError
from derive.sql.maintenance.controller.controller import Controller


class World:
    """All that is simulated, and what is to be known of it.

    Attributes:
        collections: what Storage has, and `rows` their rows now.
        now: the latest time that is complete.
        seconds: of the clock.
        memory: of Storage, with what is held.
        controller: at work; `zombies` are those that were taken for dead.
        disturbances: how much has happened to replicas.
        catalog: dataflows that are wanted, and `recipes` what they are made of.
        asked: peeks by number, and `about` which dataflow each is.
        tails: those that are followed.
        uppers: that the controller has told.
        reached: how far a replica has been.
        welcomes: what each replica has kept, rebuilt and dropped as it was last connected to.
        wires: connections on which there is something; `links` are those of the controller.
        lazy: replicas that have other things to do.
        was_shut: Storage could not be read once.
    """

    def __init__(self) -> None:
        self.folder = TemporaryDirectory(prefix="flow-model-")
        self.collections = {1: Changing(TYPES), 2: Changing(TYPES)}
        self.rows: dict[int, list[Row]] = {1: [], 2: []}
        self.now, self.seconds = 1, 0.0
        for collection in self.collections.values():
            collection.seal(2)
        self.memory = Memory(self.collections)
        self.epoch, self.next_id, self.disturbances = 0, 100, 0
        self.zombies: list[Controller] = []
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
        self.processes: dict[str, Process] = {}
        self.lazy: set[str] = set()
        self.was_shut = False

    def close(self) -> None:
        """Give everything back."""
        for process in self.processes.values():
            process.reconciler.close()
        self.folder.cleanup()

    # -- Controllers and replicas

    def begin_process(self, random: Random) -> str:
        """A replica starts, and the controller does not know it yet; its name."""
        name = next(name for name in "abcd" if name not in self.processes)
        self.processes[name] = Process(
            name,
            self.memory,
            Path(self.folder.name),
            lambda: self.seconds,
            most_here=random.choice((3, MOST_HERE)),
            tell=lambda process, welcome: self.welcomes.update({process.name: welcome}),
        )
        return name

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

    def end_controller(self) -> None:
        """Nobody hears of the controller any more, nor does it of anybody."""
        for asked in self.asked.values():
            asked.is_given_up |= not asked.answers
        for tail in self.tails.values():
            tail.check()
        self.tails.clear()
        for wire in self.links.values():
            wire.is_open = False
        self.links.clear()

    def connect(self, name: str) -> None:
        """The controller connects to a replica."""
        handed_on = {key: tail.frontier for key, tail in self.tails.items() if tail.frontier > tail.dataflow.as_of}
        self.links[name] = self.wired(self.controller, name)
        self.links[name].handed_on = handed_on
        self.controller.attach(name, self.links[name].link)

    def wired(self, controller: Controller, name: str) -> Wire:
        """A connection that is new."""
        process = self.processes[name]
        wire = Wire(controller, process.reconciler, rivals=process.rivals)
        self.wires.append(wire)
        return wire

    def leave(self, process: Process) -> None:
        """All connections to a replica are gone, at its end."""
        for wire in self.wires:
            if wire.replica is process.reconciler:
                wire.lose()

    # -- What is wanted

    def oracle(self, identifier: GlobalId) -> RowsAt:
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

    def create(self, dataflows: list[Dataflow]) -> None:
        """Dataflows are created."""
        self.catalog |= {dataflow.id: dataflow for dataflow in dataflows}
        self.controller.create(dataflows)

    def drop(self, gone: list[GlobalId]) -> list[Dataflow]:
        """Dataflows are dropped, none before those that are over it; how they were."""
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

    def give_up(self, uuid: int) -> None:
        """Nobody waits for a peek any more."""
        self.asked[uuid].is_cancelled = self.asked[uuid].is_given_up = True
        self.controller.cancel(uuid)

    def unfollow(self, identifier: GlobalId) -> None:
        """A tail is not followed any more."""
        self.tails.pop(identifier).check()
        self.controller.drop(identifier)

    def allow_compaction(self, random: Random) -> None:
        """Nobody is to ask for earlier times any more; what nobody holds is forgotten."""
        if not self.catalog:
            return
        identifiers = random.sample(list(self.catalog), random.randint(1, len(self.catalog)))
        frontiers = {identifier: random.choice((self.now, self.time(random))) for identifier in identifiers}
        self.controller.allow_compaction(frontiers | dict.fromkeys(self.tails, self.now))
        self.memory.compact(self.now)

    # -- Time

    def go_on(self, random: Random) -> None:
        """Some time passes."""
        for _ in range(random.choice((0, 0, 1, 2, 4, 8))):
            if random.random() < 0.2:
                self.pass_time(random)
            if random.random() < 0.3:
                self.allow_compaction(random)
            self.turn(random)

    def pass_time(self, random: Random) -> None:
        """Rows come and go."""
        self.now += 1
        for identifier, collection in self.collections.items():
            rows = self.rows[identifier]
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

    def turn(self, random: Random) -> bool:
        """Whatever may happen in a moment; whether anything did."""
        happened = self.work(random)
        for name, wire in list(self.links.items()):
            if wire.is_lost and random.random() < 0.4:
                self.disturbances += 1  # a replica was lost, perhaps, before somebody asked it
                self.controller.detach(name, wire.link)
                self.connect(name)
                happened = True
        for identifier, tail in list(self.tails.items()):
            if tail.failure is not None:
                is_away = "the disk is away" in str(tail.failure)
                assert is_away or isinstance(tail.failure, SqlError), tail.failure
                self.unfollow(identifier)
        return happened

    def work(self, random: Random) -> bool:
        """Messages arrive, and replicas work, whether there is a controller or not; whether anything happened."""
        self.seconds += 0.05
        happened = False
        for wire in self.wires:
            happened |= not wire.is_quiet()
            wire.deliver(random)
        for process in self.processes.values():
            if random.random() < 0.6 and process.name not in self.lazy:
                happened |= process.reconciler.work()
                self.note(process)
        self.wires = [wire for wire in self.wires if not wire.is_quiet() or (wire.is_open and not wire.is_lost)]
        return happened

    def note(self, process: Process) -> None:
        """Remember how far a replica is, and see that compaction stays below what is held."""
        reconciler, instance = process.reconciler, process.reconciler._instance
        for identifier in reconciler._failures:
            as_of = reconciler._dataflows.present[identifier].as_of
            assert process.tried[identifier] == as_of, "what has failed was not tried when it could begin later"
        for identifier in self.catalog:
            present, wanted = reconciler._dataflows.present.get(identifier), self.controller.dataflow(identifier)
            is_earlier = present is None or wanted is None or present.number != wanted.number
            if is_earlier or present != wanted or not instance.has_begun(identifier):
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
