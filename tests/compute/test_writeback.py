"""Whatever instances know from when on, and whoever writes: a view's table holds what the view was, at every time."""

from __future__ import annotations

import os
import threading
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from changing import Changing
from hypothesis import given, settings
from hypothesis import strategies as st
from relations_sample import aggregate, call, column, number

from derive.algebra.expression import Column
from derive.algebra.relation import Get, Project, Reduce
from derive.algebra.types import Row, Type
from derive.compute.instance import Instance, Updates
from derive.compute.replica import writeback
from derive.compute.replica.writeback import Writeback
from derive.contents.rows import table_at
from derive.errors import FrontierError, ViewError
from derive.storage.compaction import compact
from derive.storage.store import Store
from derive.storage.table_types import Table, TableColumn

EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "4"))
NUMBERS = Get(1, (Type.BIGINT,))
QUOTIENTS = Project(NUMBERS, (call("/", number(60), column(NUMBERS, 0)),))
COUNTED = Reduce(QUOTIENTS, (), (aggregate("count"), aggregate("max", Column(0, Type.BIGINT))))
"""One row at all times, and an error while there is a zero."""


class Replica:
    """An instance, and what writes of it."""

    def __init__(self, folder: Path, numbers: Changing, view: Table, as_of: int, store: Store) -> None:
        self.instance = Instance(folder)
        self._writeback, self._view = Writeback(store), view
        self.instance.maintain(view.id, COUNTED, as_of, {1: numbers.since(as_of)})

    def write(self) -> None:
        """Write as far as it goes, as one turn of work does."""
        while self.instance.step():
            pass
        with suppress(FrontierError):  # another replica has just written
            self._writeback.write(self.instance, {self._view.id: self._view.definition})
        self._writeback.close()

    def close(self) -> None:
        self._writeback.close()
        self.instance.close()


class Written:
    """A view of numbers, some of which are zero now and then, and its table."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random, self._folder = Random(seed), folder
        self.numbers = Changing(NUMBERS.types)
        self.time, self._live, self._is_late = 1, list[Row](), False
        for _ in range(self.random.randrange(1, 6)):
            self.change()
        self.store = Store(folder / "data", durable=False)
        columns = [TableColumn("n", "bigint"), TableColumn("most", "bigint")]
        self.first = self.random.randrange(1, self.time + 1)
        self.id = self.store.tables.create("v", columns, at=self.first, view_of=()).id
        self.replicas = [self._replica(number) for number in range(2)]

    def close(self) -> None:
        for replica in self.replicas:
            replica.close()
        self.store.close()

    @property
    def table(self) -> Table:
        table = self.store.tables.table(self.id)
        assert table
        return table

    def _replica(self, number: int) -> Replica:
        """One that knows the view from some time on; mostly from one at which it is not yet, or was just, written."""
        latest = min(max(self.table.since, self.table.upper - 1), self.time)  # no input is known beyond that
        as_of = self.random.randrange(1, latest + 1)
        if self.random.random() < 0.1:
            as_of, self._is_late = self.random.randrange(1, self.time + 1), True
        return Replica(self._folder / str(number), self.numbers, self.table, as_of, self.store)

    def change(self) -> None:
        """A number comes or goes."""
        self.time += self.random.randrange(1, 3)
        if self._live and self.random.random() < 0.5:
            zeros = [row for row in self._live if row == (0,)]
            row = self.random.choice(zeros or self._live)
            self._live.remove(row)
            self.numbers.change(self.time, [(row, -1)])
        else:
            self._live.append((self.random.choice([0, 1, 2, 3]),))
            self.numbers.change(self.time, [(self._live[-1], 1)])
        self.numbers.seal(self.time + 1)

    def write(self) -> None:
        """One replica writes, or two at once."""
        replicas = self.random.choice([self.replicas, self.replicas[:1], self.replicas[1:]])
        threads = [threading.Thread(target=replica.write) for replica in replicas]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.random.random() < 0.3:
            forgotten = self.random.randrange(self.table.upper)
            self.random.choice(self.replicas).instance.allow_compaction(self.id, forgotten)

    def restart(self) -> None:
        """A replica dies, and goes on with what it had, or knows nothing any more."""
        number = self.random.randrange(2)
        self.replicas[number].close()
        if self.random.random() < 0.5:
            self._folder = self._folder / "lost"
            self._folder.mkdir()
        self.replicas[number] = self._replica(number)

    def compact(self) -> None:
        """Forget what was written, some of it or all."""
        self.check()
        compact(self.store, self.table.spec, since=self.random.randrange(self.time + 2), grace=0)
        self._is_late = True

    def check(self) -> None:
        """The table holds what the view was, at every time that is known, and is known from its beginning on."""
        table = self.table
        assert self._is_late or table.since == self.first
        for time in range(table.since, table.upper):
            assert self._stored(table, time) == self._expected(time), (time, table, self.numbers.updates)

    def _stored(self, table: Table, time: int) -> Counter[Row] | str:
        try:
            return Counter(row for batch in table_at(self.store, table, time) for row in batch)
        except ViewError as error:
            return error.sqlstate

    def _expected(self, time: int) -> Counter[Row] | str:
        numbers = [row[0] for batch in self.numbers.at(time) for row in batch if isinstance(row[0], int)]
        if 0 in numbers:
            return "22012"
        return Counter([(len(numbers), max((60 // number for number in numbers), default=None))])


@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(st.integers(0, 1 << 32))
def test_two_replicas_write_the_rows_of_a_view_for_every_time(seed: int) -> None:
    """Two replicas write at once, restart from any time on, and what they have written is compacted.

    First rows are written as rows, or as columns.
    """
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(writeback, "BULK_ROWS", 1 + seed % 2)
        written = Written(seed, Path(folder))
        for _ in range(10):
            choice = written.random.random()
            if choice < 0.4:
                written.change()
            elif choice < 0.75:
                written.write()
            elif choice < 0.9:
                written.restart()
            else:
                written.compact()
        written.change()
        for replica in written.replicas:
            for _ in range(2):  # one that was kept from it by the other one tries again
                replica.write()
        assert written.table.upper == written.time + 1
        written.check()
        written.close()


def test_view_whose_write_fails_delays_no_other_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = Changing(NUMBERS.types)
    numbers.change(1, [((3,), 1)])
    numbers.seal(2)
    columns = [TableColumn("n", "bigint"), TableColumn("most", "bigint")]
    with closing(Store(tmp_path / "data", durable=False)) as store, closing(Instance(tmp_path / "own")) as instance:
        ids = [store.tables.create(name, columns, at=1, view_of=()).id for name in ("bad", "good", "fine")]
        for identifier in ids:
            instance.maintain(identifier, COUNTED, 1, {1: numbers.since(1)})
        while instance.step():
            pass
        updates = instance.updates

        def failing(identifier: int, begin: int, end: int) -> Updates:
            if identifier == ids[0]:
                raise ValueError("no such operator")
            return updates(identifier, begin, end)

        monkeypatch.setattr(instance, "updates", failing)
        writeback = Writeback(store)
        for _ in ids:
            writeback.write(instance, dict.fromkeys(ids, 1))
            writeback.close()
        uppers = [table.upper for identifier in ids if (table := store.tables.table(identifier))]
        assert uppers == [1, 2, 2]
        ((identifier, failure),) = writeback.write(instance, dict.fromkeys(ids, 1)).items()
        assert (identifier, failure.message) == (ids[0], "ValueError: no such operator")
        writeback.close()
        monkeypatch.setattr(instance, "updates", updates)
        for _ in range(2):
            failures = writeback.write(instance, dict.fromkeys(ids, 1))
            writeback.close()
        assert not failures
        table = store.tables.table(ids[0])
        assert table is not None
        assert table.upper == 2
