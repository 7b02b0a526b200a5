"""Random histories of the adapter's timeline: clients side by side, in any interleaving, and crashes at any moment.

Storage is a fake that lets others run before and after whatever it does. A crash takes the adapter's memory and leaves
storage as it is. `History.check` is the checker of strict serializability.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from derive.algebra.types import Row
from derive.errors import DiskFullError, FrontierError, SqlError
from derive.sql.transactions.group_commit import Basis, GroupCommit, Histories
from derive.sql.transactions.timeline import Timeline
from derive.sql.transactions.transaction import Isolation, Modes, Transaction
from derive.sql.transactions.writes import Write
from derive.storage.metadata.definitions import Definitions

TABLES = (1, 2)
SOURCE = 3
"""Others write it, with clocks of the same timeline."""

Contents = dict[int, Counter[Row]]


class Storage:
    """What survives a crash, and a wall clock that jumps."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.uppers = dict.fromkeys((*TABLES, SOURCE), 1)
        self.updates: list[tuple[int, int, Row, int]] = []  # id, time, row, diff
        self.appends: list[tuple[int, Sequence[Write]]] = []
        self.ingesting: list[int] = []  # frontiers, which the source's upper does not pass
        self.assigned = 0
        self._wall = 1

    def present(self) -> int:
        self._wall += self.chance.choice([0, 0, 1, 3, -2])
        return max(self._wall, self.assigned + 1)

    def contents(self, ids: Collection[int], time: int) -> Contents:
        contents: Contents = {id_: Counter() for id_ in ids}
        for id_, clock, row, diff in self.updates:
            if id_ in contents and clock <= time:
                contents[id_][row] += diff
        return {id_: Counter({row: count for row, count in rows.items() if count}) for id_, rows in contents.items()}

    def begin_ingesting(self) -> int:
        frontier = max(self.present(), self.uppers[SOURCE])
        self.assigned = max(self.assigned, frontier - 1)
        self.ingesting.append(frontier)
        return frontier

    def ingest(self, row: Row, frontier: int) -> int:
        self.assigned = time = max(self.present(), self.uppers[SOURCE])
        self.updates.append((SOURCE, time, row, 1))
        self.ingesting.remove(frontier)
        self.seal([SOURCE], time)
        return time

    def seal(self, ids: Collection[int], time: int) -> None:
        for id_ in ids:
            bound = min([time + 1, *self.ingesting]) if id_ == SOURCE else time + 1
            self.uppers[id_] = max(self.uppers[id_], bound)
        self.assigned = max(self.assigned, time)


class FakeStorageClock:
    """One process's way to storage; once that has crashed, nothing goes through it any more."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.is_dead = False

    async def _others(self) -> None:
        for _ in range(self.storage.chance.choice([0, 1, 1, 2, 5])):
            await asyncio.sleep(0)
        if self.is_dead:
            await asyncio.get_running_loop().create_future()

    async def present(self, *, is_exact: bool = True) -> int:
        await self._others()
        return self.storage.present() - (0 if is_exact else self.storage.chance.choice([0, 1, 5, 40]))

    async def append(
        self, time: int, writes: Sequence[Write], definitions: Definitions | None = None, *, is_estimate: bool = False
    ) -> None:
        assert definitions is None
        await self._others()
        storage = self.storage
        if is_estimate and storage.assigned >= time:
            raise FrontierError("a wrong estimate")
        if any(storage.uppers[table] > time for table in TABLES):
            raise FrontierError("sealed")
        is_failing = storage.chance.random() < 0.1
        if is_failing and storage.chance.random() < 0.5:
            raise DiskFullError("nothing was written")
        storage.appends.append((time, list(writes)))
        storage.updates += [(table, time, row, diff) for table, row, diff in writes]
        storage.uppers |= dict.fromkeys(TABLES, time + 1)
        storage.assigned = max(storage.assigned, time)
        await self._others()
        if is_failing:
            raise DiskFullError("everything was written")

    async def seal(self, ids: Collection[int], time: int) -> None:
        await self._others()
        self.storage.seal(ids, time)
        await self._others()

    async def frontiers(self, ids: Collection[int]) -> tuple[int, int]:
        await self._others()
        return 1, min(self.storage.uppers[id_] for id_ in ids)

    async def changed(self, ids: Collection[int], time: int) -> None:
        assert self.storage.ingesting or time >= self.storage.uppers[SOURCE]
        await asyncio.sleep(0)
        await self._others()

    def written_by_others(self, basis: Basis) -> frozenset[int]:
        return basis.ids & {SOURCE}

    async def is_unchanged(self, ids: Collection[int], after: int, before: int, writing: Collection[int]) -> bool:
        await self.seal(ids, before - 1)
        if self.storage.uppers[SOURCE] < before:
            return False
        unchanged = not any(id_ in ids and after < time < before for id_, time, _, _ in self.storage.updates)
        await self._others()
        return unchanged

    def histories(self, ids: Collection[int]) -> Histories:
        return dict.fromkeys(ids, (0, 0))

    async def acquire(self, time: int) -> int:
        await self._others()
        return 1

    async def release(self, hold: int) -> None: ...


@dataclass
class Operation:
    """What a client did, and when: `begin` and `end` count steps of the whole simulation."""

    kind: str
    begin: int
    end: int | None = None
    read: int | None = None
    write: int | None = None
    seen: Contents = field(default_factory=dict)

    @property
    def first(self) -> int:
        time = self.read if self.read is not None else self.write
        assert time is not None
        return time

    @property
    def last(self) -> int:
        time = self.write if self.write is not None else self.read
        assert time is not None
        return time


@dataclass
class History:
    """What all clients did."""

    storage: Storage
    operations: list[Operation] = field(default_factory=list)
    refused: int = 0
    _step: int = 0

    def step(self) -> int:
        self._step += 1
        return self._step

    def begin(self, kind: str) -> Operation:
        operation = Operation(kind, self.step())
        self.operations.append(operation)
        return operation

    def check(self) -> None:
        """Fail unless the history is strictly serializable."""
        done = [operation for operation in self.operations if operation.end is not None]
        for before in done:
            for after in done:
                if before.end is not None and before.end < after.begin:
                    _check_order(before, after)
        for operation in done:
            if operation.read is not None:
                expected = self.storage.contents(list(operation.seen), operation.read)
                assert operation.seen == expected, "a read is not all that was written up to its time"
        times = [time for time, _ in self.storage.appends]
        assert times == sorted(set(times)), "two groups at one time"
        self._check_intervals(done)
        self._check_counts()

    def _check_intervals(self, done: Sequence[Operation]) -> None:
        written = {(table, time) for table, time, _, _ in self.storage.updates}
        for operation in done:
            if operation.read is not None and operation.write is not None:
                assert operation.read < operation.write
                between = [at for at in written if operation.read < at[1] < operation.write and at[0] in operation.seen]
                assert not between, "written between a transaction's read and its write"

    def _check_counts(self) -> None:
        counts: Counter[tuple[int, Row]] = Counter()
        for _, writes in self.storage.appends:
            for table, row, diff in writes:
                counts[table, row] += diff
            assert min(counts.values(), default=0) >= 0, "deleted twice"


def _check_order(before: Operation, after: Operation) -> None:
    if before.kind == "ingest" and after.read is not None and SOURCE not in after.seen:
        return  # a read of tables alone is at the time of the last of our own commands
    assert before.last <= after.first or (after.read is None and before.last <= after.last), "time went back"
    if after.write is not None and before.read is not None and before.write is None:
        assert before.read < after.write, "a write is not above an earlier read"
    if after.read is not None and before.write is not None:
        assert before.write <= after.read, "an acknowledged write is not seen"


@dataclass
class Machine:
    """What is simulated; mutants replace parts of it."""

    timeline: type[Timeline] = Timeline
    commits: type[GroupCommit] = GroupCommit
    remembers: bool = True
    """Whether a new process begins where the one before it was."""

    def start(self, storage_clock: FakeStorageClock) -> tuple[Timeline, GroupCommit]:
        timeline = self.timeline(storage_clock, storage_clock.storage.assigned if self.remembers else 0, seal_seconds=0)
        return timeline, self.commits(timeline, others=storage_clock)


class Client:
    """Does random things, one after the other."""

    def __init__(
        self, history: History, storage_clock: FakeStorageClock, machine: tuple[Timeline, GroupCommit], name: str
    ) -> None:
        self._history, self._storage_clock, self._name = history, storage_clock, name
        self._timeline, self._commits = machine
        self._chance = history.storage.chance

    async def run(self) -> None:
        for index in range(6):
            action = self._chance.choice([self._insert, self._insert, self._select, self._select, self._ingest])
            action = self._chance.choice([action, action, self._move, self._transact])
            await action(f"{self._name}.{index}")

    async def _contents(self, ids: Collection[int], time: int) -> Contents:
        return self._storage_clock.storage.contents(ids, time)

    async def _insert(self, label: str) -> None:
        operation = self._history.begin("insert")
        writes = [(self._chance.choice(TABLES), (label,), 1) for _ in range(self._chance.choice([1, 2]))]
        try:
            operation.write = await self._commits.commit(writes)
        except DiskFullError:
            self._history.operations.remove(operation)
            return
        operation.end = self._history.step()

    async def _ingest(self, label: str) -> None:
        operation = self._history.begin("ingest")
        storage = self._history.storage
        frontier = storage.begin_ingesting()
        try:
            for _ in range(self._chance.choice([0, 0, 1, 8])):
                await asyncio.sleep(0)
            operation.write = storage.ingest((label,), frontier)
        except asyncio.CancelledError:
            storage.ingesting.remove(frontier)
            raise
        await asyncio.sleep(0)
        operation.end = self._history.step()

    async def _select(self, label: str) -> None:
        operation = self._history.begin("select")
        ids = self._chance.choice([TABLES, (SOURCE,), (1,), (2, SOURCE)])
        operation.read = await self._timeline.read(ids, at_present=SOURCE in ids)
        operation.seen = await self._contents(ids, operation.read)
        operation.end = self._history.step()

    async def _move(self, label: str) -> None:
        """DELETE of everything in a table, and INSERT of one row that tells how many there were."""
        operation = self._history.begin("move")
        table = self._chance.choice(TABLES)
        ids = [table, SOURCE][: self._chance.choice([1, 1, 2])]
        try:
            async with self._commits.exclusive() as write:
                operation.read = await self._timeline.read(ids, at_present=SOURCE in ids)
                operation.seen = await self._contents(ids, operation.read)
                basis = Basis(frozenset(ids), operation.read)
                operation.write = await write(_moved(table, operation.seen[table], label), basis)
        except (SqlError, DiskFullError) as error:
            self._refused(error, operation)
            return
        operation.end = self._history.step()

    async def _transact(self, label: str) -> None:
        """BEGIN; SELECT; …; COMMIT, with other things in between."""
        operation = self._history.begin("transaction")
        modes = Modes(Isolation.STRICT_SERIALIZABLE, is_explicit=True)
        transaction = Transaction(self._timeline, self._commits, self._storage_clock, modes)
        table = self._chance.choice(TABLES)
        ids = [table, SOURCE][: self._chance.choice([1, 1, 2])]
        operation.read = await transaction.read(ids, at_present=False)
        operation.seen = await self._contents(ids, operation.read)
        for _ in range(self._chance.choice([0, 3, 10])):
            await asyncio.sleep(0)
        if self._chance.random() < 0.7:
            transaction.write(_moved(table, operation.seen[table], label))
        try:
            operation.write = await transaction.commit()
        except (SqlError, DiskFullError) as error:
            self._refused(error, operation)
            return
        operation.end = self._history.step()

    def _refused(self, error: SqlError | DiskFullError, operation: Operation) -> None:
        if isinstance(error, SqlError) and error.sqlstate != "40001":
            raise error
        self._history.refused += 1
        self._history.operations.remove(operation)


def _moved(table: int, rows: Mapping[Row, int], label: str) -> list[Write]:
    return [*((table, row, -count) for row, count in rows.items()), (table, (f"{label}m",), 1)]


async def _simulate(history: History, machine: Machine) -> None:
    chance = history.storage.chance
    for life in range(4):
        storage_clock = FakeStorageClock(history.storage)
        parts = machine.start(storage_clock)
        clients = [asyncio.create_task(Client(history, storage_clock, parts, f"{life}.{n}").run()) for n in range(4)]
        steps = chance.randrange(10, 150) if life < 3 else None
        while not all(client.done() for client in clients) and steps != 0:
            await asyncio.sleep(0)
            steps = None if steps is None else steps - 1
        storage_clock.is_dead = True
        for client in clients:
            if client.done():
                client.result()
        while killed := asyncio.all_tasks() - {asyncio.current_task()}:  # who is cancelled as it succeeds goes on
            for task in killed:
                task.cancel()
            await asyncio.wait(killed, timeout=0)


def simulate(seed: int, machine: Machine | None = None) -> History:
    """One random history, unchecked."""
    history = History(Storage(random.Random(seed)))
    with asyncio.Runner() as runner:
        runner.run(_simulate(history, machine or Machine()))
    return history
