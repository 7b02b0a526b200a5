"""Identity of relations: every reader keeps an identifier, every relation has one owner, and a name only finds one.

Law: whatever is created, dropped, renamed, swapped, altered, reset, ingested, derived, backed up and restored in any
order, the results of tasks and endpoints follow from one relation, or from the present one where the catalog says
`follow`. Followers, subscriptions and transactions read the exact history of one relation, or end with the error that
says so. No other writer than the owner writes a relation, and identifiers never return.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import apsw
import identity_folder
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from identity_folder import Folder, Follower, Subscriber, rows_of
from identity_model import INDEXED, NAMES, PLAIN, SOURCE, SUBJECT, Model, Relation, Rows
from sql_world import Client, lapse

from derive.backup import Options, back_up
from derive.contents import reads
from derive.engine import following, inputs, task
from derive.engine.reset import reset
from derive.errors import FencedError, FlowError, OwnedError, SqlError, StorageError, UsageError
from derive.relations.table_rows import TableRows
from derive.restore import restore
from derive.sql.transactions import group_commit
from derive.storage import sql_catalog
from derive.storage.capability import table as capabilities
from derive.storage.ingest import Ingestion
from derive.storage.metadata import identity, owner, sqlite
from derive.storage.metadata.owner import Door, Owner
from derive.storage.store import Store
from derive.storage.table_types import RowUpdate, TableUpdate
from derive.time.positions import Place

T = TypeVar("T")
NUMBERS = st.integers(0, 11)
"""Numbers that choose one of the things that are there."""
READERS = ("r/stops", "r/follows", "m/stops", "m/follows")
SQL_POINTS = (
    "names.committing",
    "names.committed",
    *(f"metadata.{what}:{n}" for what in ("committing", "committed") for n in (1, 2, 3, 5)),
)
STEP_POINTS = (
    "state.committing",
    "state.committed",
    "switch.written",
    "switch.removed",
    "segment.closed",
    "materialize.committing",
    "materialize.committed",
    *SQL_POINTS[2:],
)
TOO_LATE = {"40001", "22023"}
"""SQLSTATEs of a read at a time before the relation, or before its present columns."""
RESET_POINTS = ("reset.committing", "reset.committed", "reset.removed")


@dataclass
class Reading:
    """An open transaction, with what it has read.

    Attributes:
        client: its session.
        commit: number of the last commit before its first read.
        read: relations that it has read, with the number of their column changes at that time.
    """

    client: Client
    commit: int
    read: dict[Relation, int]

    def is_broken(self) -> bool:
        """Return whether a relation that it has read is no more, or has other columns."""
        return any(relation.is_dropped or relation.rewrites != count for relation, count in self.read.items())

    def is_outdated(self) -> bool:
        """Return whether a relation that it has read was written since."""
        return any(relation.versions[-1][0] > self.commit for relation in self.read)


@dataclass
class Saved:
    """A backup, with the model and the endpoint as of its time."""

    folder: Path
    endpoint: Path
    model: Model


class Identity(RuleBasedStateMachine):
    """One data folder, and one model of it."""

    @initialize(with_table=st.booleans())
    def begin(self, *, with_table: bool) -> None:
        self.temporary = Path(tempfile.mkdtemp())
        self.folder = Folder(self.temporary)
        self.model = Model()
        self.follower: Follower | None = None
        self.subscriber: Subscriber | None = None
        self.reading: Reading | None = None
        self.documents: tuple[Client, Relation, Rows | None] | None = None
        self.saved: Saved | None = None
        self.folders = 0
        self.folder.open(self.model)
        self.folder.sql("CREATE TABLE kept (v int)")
        self.settle()
        if with_table:
            self.create_table(0)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            try:
                self.forget_readers()
                self.folder.end()
            finally:
                shutil.rmtree(self.temporary)

    def forget_readers(self) -> None:
        """Close what reads; none of it outlives its process."""
        if self.follower:
            self.follower.close()
        self.follower = self.subscriber = self.reading = self.documents = None

    def reopen(self, *, with_replica: bool = False) -> None:
        self.forget_readers()
        self.folder.close()
        self.folder.open(self.model, with_replica=with_replica)

    # Statements

    def transact(self, *texts: str) -> None:
        self.folder.sql("BEGIN", *texts, "COMMIT")

    def identify(self) -> None:
        """Learn the identifiers of new relations, which no relation ever had."""
        for name, identifier in self.folder.identifiers().items():
            relation = self.model.names[name]
            if relation.id == -1:
                assert identifier not in self.model.ids
                relation.id = identifier
                self.model.ids.add(identifier)

    @precondition(lambda self: self.model.free())
    @rule(n=NUMBERS)
    def create_table(self, n: int) -> None:
        name = pick(self.model.free(), n)
        self.folder.sql(f'CREATE TABLE "{name}" (id bigint NOT NULL, v bigint)')
        self.model.create(name, Owner.TABLE)
        self.identify()

    @precondition(lambda self: self.model.free() and self.model.tables())
    @rule(n=NUMBERS, m=NUMBERS)
    def create_view(self, n: int, m: int) -> None:
        name, base = pick(self.model.free(), n), pick(self.model.tables(), m)
        self.folder.sql(f'CREATE MATERIALIZED VIEW "{name}" AS SELECT id, v * 10 AS v FROM "{base}"')
        self.model.create(name, Owner.VIEW, self.model.names[base])
        self.identify()

    @precondition(lambda self: self.model.tables() and INDEXED not in self.model.live())
    @rule(n=NUMBERS)
    def create_indexed_view(self, n: int) -> None:
        base = pick(self.model.tables(), n)
        self.folder.sql(
            f'CREATE VIEW {INDEXED} AS SELECT id, v * 10 AS v FROM "{base}"', f"CREATE INDEX ON {INDEXED} (id)"
        )
        self.model.create(INDEXED, Owner.VIEW, self.model.names[base])
        self.identify()

    def kind_of(self, name: str) -> str:
        if name == INDEXED:
            return "VIEW"
        return "TABLE" if self.model.names[name].owner is Owner.TABLE else "MATERIALIZED VIEW"

    @precondition(lambda self: self.model.live())
    @rule(n=NUMBERS)
    def drop(self, n: int) -> None:
        name = pick(self.model.live(), n)
        self.folder.sql(f'DROP {self.kind_of(name)} "{name}" CASCADE')
        self.model.drop(name)

    @precondition(lambda self: self.model.stored() and self.model.free())
    @rule(n=NUMBERS, m=NUMBERS)
    def rename(self, n: int, m: int) -> None:
        name, new_name = pick(self.model.stored(), n), pick(self.model.free(), m)
        self.folder.sql(f'ALTER {self.kind_of(name)} "{name}" RENAME TO "{new_name}"')
        self.model.rename(name, new_name)

    def swapping(self, n: int, m: int) -> tuple[list[str], Callable[[Model], None]]:
        one = pick(self.model.stored(), n)
        two = pick([name for name in self.model.stored() if name != one], m)
        texts = [
            f'ALTER {self.kind_of(one)} "{one}" RENAME TO between',
            f'ALTER {self.kind_of(two)} "{two}" RENAME TO "{one}"',
            f'ALTER {self.kind_of(one)} between RENAME TO "{two}"',
        ]
        return texts, lambda model: model.swap(one, two)

    @precondition(lambda self: len(self.model.stored()) > 1)
    @rule(n=NUMBERS, m=NUMBERS)
    def swap(self, n: int, m: int) -> None:
        texts, change = self.swapping(n, m)
        self.transact(*texts)
        change(self.model)

    def recreating(self, n: int) -> tuple[list[str], Callable[[Model], None]]:
        """Drop a relation and create a table of its name with one row, or put one in its place as dbt does."""
        name, value = pick(self.model.stored(), n), self.model.next_value()
        drop = f'DROP {self.kind_of(name)} "{name}" CASCADE'
        create = "CREATE TABLE {} (id bigint NOT NULL, v bigint)"
        if n % 2:
            texts = [drop, create.format(f'"{name}"'), f'INSERT INTO "{name}" VALUES ({n % 3}, {value})']
        else:
            texts = [create.format("made"), f"INSERT INTO made VALUES ({n % 3}, {value})"]
            texts += [f'ALTER {self.kind_of(name)} "{name}" RENAME TO gone', f'ALTER TABLE made RENAME TO "{name}"']
            texts.append(drop.replace(f'"{name}"', "gone"))

        def change(model: Model) -> None:
            model.drop(name)
            relation = model.create(name, Owner.TABLE)
            relation.versions[-1] = (model.commits, {n % 3: value})

        return texts, change

    @precondition(lambda self: self.model.stored())
    @rule(n=NUMBERS)
    def recreate(self, n: int) -> None:
        texts, change = self.recreating(n)
        self.transact(*texts)
        change(self.model)
        self.identify()

    @precondition(lambda self: self.model.tables())
    @rule(n=NUMBERS, adds=st.booleans())
    def alter(self, n: int, *, adds: bool) -> None:
        name = pick(self.model.tables(), n)
        relation = self.model.names[name]
        text = f'ALTER TABLE "{name}" ' + ("ADD COLUMN extra int" if adds else "DROP COLUMN extra")
        if relation.has_extra is adds:
            assert self.folder.error_of(text) == ("42701" if adds else "42703")
        else:
            self.folder.sql(text)
            relation.has_extra = adds
            relation.rewrites += not adds

    @precondition(lambda self: self.model.tables())
    @rule(n=NUMBERS, key=st.integers(0, 3), deletes=st.booleans())
    def write(self, n: int, key: int, *, deletes: bool) -> None:
        name = pick(self.model.tables(), n)
        relation, value = self.model.names[name], self.model.next_value()
        rows = dict(relation.rows)
        if key not in rows:
            self.folder.sql(f'INSERT INTO "{name}" (id, v) VALUES ({key}, {value})')
            rows[key] = value
        elif deletes:
            self.folder.sql(f'DELETE FROM "{name}" WHERE id = {key}')
            del rows[key]
        else:
            self.folder.sql(f'UPDATE "{name}" SET v = {value} WHERE id = {key}')
            rows[key] = value
        self.model.write(relation, rows)

    # Writers

    @rule(name=st.sampled_from([PLAIN, PLAIN, SOURCE, SOURCE, *NAMES]))
    def ingest(self, name: str) -> None:
        value = self.model.next_value()
        stored = name if "/" in name and name != "@1/a" else f"sql/public/{name}"
        is_open = name == SOURCE or (name == PLAIN and self.is_open_to_ingestion())
        spec = self.folder.catalog.collections["c/source"]
        spec = spec if name == SOURCE else named(spec, stored)
        document = {"id": value, "v": value}
        if not is_open:
            with pytest.raises(OwnedError):
                Ingestion(self.folder.store, spec).load("test", [(1, document)])
            return
        Ingestion(self.folder.store, spec).load("test", [(1, document)])
        if name == SOURCE:
            self.model.source = {**self.model.source, value: value}
        else:
            self.model.plain.owner = Owner.INGEST
            self.model.write(self.model.plain, {**self.model.plain.rows, value: value})

    def is_open_to_ingestion(self) -> bool:
        owner = self.model.plain.owner
        return owner is Owner.INGEST or (owner is Owner.NOBODY and not self.model.is_deriving)

    @precondition(lambda self: self.model.live())
    @rule(n=NUMBERS)
    def write_by_another_door(self, n: int) -> None:
        name = pick(self.model.live(), n)
        owner = self.model.names[name].owner
        if owner is Owner.VIEW:
            assert self.folder.error_of(f'INSERT INTO "{name}" (id, v) VALUES (9, 9)') == "42809"
        if name == INDEXED:
            return
        store = self.folder.store
        table = store.tables.find(f"sql/public/{name}")
        assert table is not None
        (change,) = TableRows(table).changes([((9, 9, *[None] * (len(table.columns) - 2)), 1)])
        clock = store.timeline.assign(1)
        update = TableUpdate(table.id, None, clock + 1, (RowUpdate(clock, *change),))
        with pytest.raises(OwnedError):
            store.tables.commit([update], Door.DATAFLOW if owner is Owner.TABLE else Door.SERVER)

    # Tasks

    @rule()
    def settle(self) -> None:
        self.model.step()
        self.folder.settle(self.model.results())

    @rule()
    def edit_catalog(self) -> None:
        self.model.is_deriving = not self.model.is_deriving
        self.reopen()

    def resetting(self, name: str) -> Callable[[Model], None]:
        def change(model: Model) -> None:
            if name == PLAIN:
                model.plain.is_dropped = True
                model.plain = Relation(-1, Owner.NOBODY)
            else:
                model.readers[name].relation, model.readers[name].rows = None, {}

        return change

    @rule(name=st.sampled_from([PLAIN, *READERS]), cascade=st.booleans())
    def reset(self, name: str, *, cascade: bool) -> None:
        """Reset a task under its run, which can commit nothing more."""
        if (name != PLAIN and SUBJECT not in self.model.live()) or (name == PLAIN and not self.model.is_deriving):
            return
        catalog, store = self.folder.catalog, self.folder.store
        if name == PLAIN and not cascade:
            with pytest.raises(UsageError, match="would keep the results of the old documents"):
                reset(catalog, store, [name])
            return
        if name == PLAIN and self.model.plain.owner is Owner.INGEST:
            with pytest.raises(OwnedError):
                reset(catalog, store, [name], cascade=True)
            return
        reset(catalog, store, [name], cascade=cascade)
        self.resetting(name)(self.model)
        self.supersede()

    @rule()
    def supersede(self) -> None:
        """Open a run after another one, which commits nothing more."""
        former = self.folder.run
        self.folder.open_run(self.model)
        with pytest.raises(FencedError):
            former.step()

    # Processes

    @rule(with_replica=st.booleans())
    def restart(self, *, with_replica: bool) -> None:
        self.reopen(with_replica=with_replica)

    def begin_again(self, *, with_replica: bool = False) -> None:
        """Open everything again, once nothing is open."""
        self.folder.open(self.model, with_replica=with_replica)

    @precondition(lambda self: len(self.model.stored()) > 1)
    @rule(n=NUMBERS, m=NUMBERS, swaps=st.booleans(), point=st.sampled_from(SQL_POINTS))
    def crash_in_statements(self, n: int, m: int, point: str, *, swaps: bool) -> None:
        """Kill the server within a transaction: all of it has happened, or none."""
        texts, change = self.swapping(n, m) if swaps else self.recreating(n)
        self.stop()

        self.folder.killed(point, "sql", *(part for text in ("BEGIN", *texts, "COMMIT") for part in ("-c", text)))
        before = {name: self.model.names[name].id for name in self.model.live()}
        self.begin_again()
        if self.folder.identifiers() != before:
            change(self.model)
            self.identify()

    @rule(point=st.sampled_from(STEP_POINTS))
    def crash_in_run(self, point: str) -> None:
        """Kill a run; the next one continues."""
        self.stop()

        self.folder.killed(point, "run", "--until-idle")
        self.begin_again()
        self.settle()

    @precondition(lambda self: self.model.is_deriving and self.model.plain.owner is not Owner.INGEST)
    @rule(point=st.sampled_from(RESET_POINTS))
    def crash_in_reset(self, point: str) -> None:
        """Kill a reset: it has happened, or not."""
        relation = self.relation_of(PLAIN)
        self.stop()
        self.folder.killed(point, "reset", "--task", PLAIN, "--cascade")
        self.begin_again()
        if self.relation_of(PLAIN) != relation:
            self.resetting(PLAIN)(self.model)

    def relation_of(self, name: str) -> int:
        known = self.folder.store.collection(name)
        assert known is not None
        return known.relation

    def stop(self) -> None:
        """Close everything."""
        self.forget_readers()
        self.folder.close()

    @rule(with_replica=st.booleans())
    def lose_metadata(self, *, with_replica: bool) -> None:
        """Open a folder without its metadata database: it is refused, and keeps its files."""
        self.stop()
        root = self.folder.root
        kept = list(root.glob("metadata.db*"))
        for path in kept:
            path.rename(path.with_name(f"kept.{path.name}"))
        before = sorted(path for path in root.rglob("*.parquet"))
        with pytest.raises(StorageError, match=r"metadata\.db is missing"):
            Store(root, durable=False).close()
        assert sorted(path for path in root.rglob("*.parquet")) == before
        for path in kept:
            path.with_name(f"kept.{path.name}").rename(path)
        self.begin_again(with_replica=with_replica)

    @rule()
    def save(self) -> None:
        """Take a backup while everything is open."""
        if self.saved:
            shutil.rmtree(self.saved.folder)
        self.settle()
        self.folders += 1
        folder, endpoint = self.temporary / f"backup-{self.folders}", self.temporary / f"endpoint-{self.folders}"
        back_up(self.folder.store, folder, Options())
        with closing(apsw.Connection(str(self.folder.endpoint))) as db:
            db.set_busy_timeout(10_000)
            db.execute("VACUUM INTO ?", (str(endpoint),))
        self.saved = Saved(folder, endpoint, deepcopy(self.model))

    @precondition(lambda self: self.saved is not None)
    @rule()
    def restore(self) -> None:
        """Go on in another folder, as of the backup, with the endpoint as it was then."""
        assert self.saved is not None
        self.stop()
        self.folders += 1
        restored = self.temporary / f"data-{self.folders}"
        restore(self.saved.folder, restored)
        shutil.rmtree(self.folder.root)
        for path in self.temporary.glob("endpoint.db*"):
            path.unlink()
        shutil.copy(self.saved.endpoint, self.folder.endpoint)
        self.folder.root, self.model = restored, deepcopy(self.saved.model)
        self.begin_again()

    @rule()
    def supersede_server(self) -> None:
        """Begin another server beside one that was silent for too long; the first one commits nothing more."""
        self.forget_readers()
        lapse(self.folder.root)
        client = self.folder.client
        self.folder.begin_sql()
        with pytest.raises((FencedError, SqlError)):
            self.folder.loop.run(client("INSERT INTO kept VALUES (1)"))

    # Readers

    @precondition(lambda self: self.model.stored())
    @rule(n=NUMBERS)
    def follow(self, n: int) -> None:
        """Begin `flowctl collections read --follow` of a relation."""
        if self.follower:
            self.follower.close()
        name = pick([*self.model.stored(), PLAIN], n)
        relation = self.model.plain if name == PLAIN else self.model.names[name]
        if name == PLAIN:
            if not relation.versions or (self.model.is_deriving and relation.owner is Owner.INGEST):
                return  # no time of it is final
            self.settle()
        self.follower = Follower(self.folder, name, relation)
        self.follower.begin()

    @precondition(lambda self: self.follower is not None)
    @rule()
    def read_follower(self) -> None:
        """Read what a follower has: all of its relation, and where that has ended the error that says so."""
        assert self.follower is not None
        relation = self.follower.relation
        if relation.owner not in {Owner.TABLE, Owner.VIEW}:
            if self.model.is_deriving and relation.owner is Owner.INGEST:  # nothing says what is final
                return
            self.settle()
        error = self.folder.loop.run(asyncio.to_thread(self.follower.read))
        assert (error is not None) == relation.is_dropped, (error, relation)
        if error is not None:
            assert error.startswith("the subscription ended: '")
            assert relation.owner in {Owner.TASK, Owner.INGEST, Owner.NOBODY} or self.follower.rows == relation.rows
            self.follower = None

    @precondition(lambda self: self.model.live())
    @rule(n=NUMBERS)
    def subscribe(self, n: int) -> None:
        name = pick(self.model.live(), n)
        client = self.folder.connect()
        query = f'SELECT id, v FROM "{name}"'
        self.folder.loop.run(client("BEGIN"))
        self.folder.loop.run(client(f"DECLARE c CURSOR FOR SUBSCRIBE ({query})"))
        self.subscriber = Subscriber(client, self.model.names[name])

    @precondition(lambda self: self.subscriber is not None)
    @rule()
    def read_subscriber(self) -> None:
        assert self.subscriber is not None
        error = self.folder.loop.run(self.subscriber.read())
        relation = self.subscriber.relation
        assert (error == "55000") == relation.is_dropped, (error, relation)
        if error is not None:
            self.subscriber = None

    @precondition(lambda self: self.model.live())
    @rule(n=NUMBERS)
    def begin_transaction(self, n: int) -> None:
        """Begin a transaction, which reads one relation."""
        name = pick(self.model.live(), n)
        client, relation = self.folder.connect(), self.model.names[name]
        self.reading = Reading(client, self.model.commits, {relation: relation.rewrites})
        self.folder.loop.run(client("BEGIN"))
        assert self.read_in_transaction(name) == relation.rows

    def read_in_transaction(self, name: str) -> Rows:
        assert self.reading is not None
        return rows_of(self.folder.loop.run(self.reading.client(f'SELECT id, v FROM "{name}"')))

    @rule()
    def read_documents(self) -> None:
        """Read a collection in a serializable transaction: always the same rows, or 40001 once it was reset."""
        if self.documents is None:
            self.documents = self.folder.connect(transaction_isolation="serializable"), self.model.plain, None
            self.folder.loop.run(self.documents[0]("BEGIN"))
        client, relation, before = self.documents
        if before is not None and relation.is_dropped:
            assert self.folder.loop.run(client.fails(f'SELECT id, v FROM "{PLAIN}"')) == "40001"
            self.documents = None
            return
        rows = rows_of(self.folder.loop.run(client(f'SELECT id, v FROM "{PLAIN}"')))
        assert rows.items() <= relation.rows.items() | self.model.source.items()
        assert before is None or rows == before
        self.documents = client, relation, rows

    @precondition(lambda self: self.reading is not None and self.model.live())
    @rule(n=NUMBERS)
    def read_again(self, n: int) -> None:
        """Read a name in the open transaction: the rows of its relation as of the first read, or an error."""
        assert self.reading is not None
        name = pick(self.model.live(), n)
        relation = self.model.names[name]
        rows = relation.at(self.reading.commit)
        is_broken = self.reading.is_broken()
        if is_broken or rows is None:
            with pytest.raises(SqlError) as raised:
                self.read_in_transaction(name)
            assert raised.value.sqlstate in ({"40001"} if is_broken else TOO_LATE)
            self.reading = None
            return
        if relation.rewrites and relation not in self.reading.read:  # its rows may be those of other columns
            return
        assert self.read_in_transaction(name) == rows
        self.reading.read.setdefault(relation, relation.rewrites)

    @precondition(lambda self: self.reading is not None)
    @rule(writes=st.booleans())
    def commit(self, *, writes: bool) -> None:
        """Commit the open transaction: 40001 where a relation is no more, or was written before a write."""
        assert self.reading is not None
        client, reading, self.reading = self.reading.client, self.reading, None
        if writes:
            self.folder.loop.run(client("INSERT INTO kept VALUES (1)"))
        fails = reading.is_broken() or (writes and reading.is_outdated())
        if fails:
            assert self.folder.loop.run(client.fails("COMMIT")) == "40001"
        else:
            assert self.folder.loop.run(client.tag("COMMIT")) == "COMMIT"

    @invariant()
    def names_find_their_relations(self) -> None:
        if not hasattr(self, "folder"):
            return
        live = self.model.live()
        found = self.folder.identifiers()
        assert found == {name: self.model.names[name].id for name in live}
        for name in live:
            assert self.folder.rows(name) == self.model.names[name].rows, name
        for name in NAMES:
            relation = self.model.names.get(name)
            owner = relation.owner if relation and name in live else Owner.TABLE
            assert self.folder.store.owner(f"sql/public/{name}") is owner, name


def pick(choices: Sequence[T], number: int) -> T:
    """Return one of some choices."""
    return choices[number % len(choices)]


def named(spec: Any, name: str) -> Any:
    from dataclasses import replace

    return replace(spec, name=name)


TestIdentity = Identity.TestCase
TestIdentity.settings = settings(max_examples=int(os.environ.get("FLOW_LAW_EXAMPLES", "3")), stateful_step_count=25)


# Mutants: without a guard, a short history of the machine fails


def without_owners(patch: pytest.MonkeyPatch) -> None:
    for door in Door:
        patch.setitem(owner._OPEN, door, set(Owner))


def with_names_for_tasks(patch: pytest.MonkeyPatch) -> None:
    """Let tasks read whatever has the name of a source."""
    patch.setattr(task, "look", lambda store, spec, positions, places, switched: inputs.look(store, spec, positions))
    patch.setattr(task.Task, "follow", lambda self: ())


def without_retractions(patch: pytest.MonkeyPatch) -> None:
    """Let a task that follows add the rows of another relation to those of the former one."""
    write_switch = following.write_switch

    def write(store: Any, spec: Any, source: Any, place: Place, position: int, epoch: int) -> Any:
        return write_switch(store, spec, source, place._replace(relation=0), position, epoch)

    patch.setattr(task, "write_switch", write)


def with_names_for_followers(patch: pytest.MonkeyPatch) -> None:
    def followed(store: Any, spec: Any, relation: int, frontier: int) -> Any:
        return store.collection(spec.name)

    patch.setattr(reads, "_followed", followed)


def without_histories(patch: pytest.MonkeyPatch) -> None:
    """Let a transaction commit although a relation that it has read is no more."""
    patch.setattr(group_commit.GroupCommit, "histories", lambda self, ids: {})


def without_histories_of_documents(patch: pytest.MonkeyPatch) -> None:
    """Let a transaction read on in a collection that was reset."""
    without_histories(patch)


def without_validation(patch: pytest.MonkeyPatch) -> None:
    """Let a transaction write although what it has read was written."""
    patch.setattr(group_commit.GroupCommit, "_is_outdated", lambda self, basis, before: False)


def with_lost_metadata(patch: pytest.MonkeyPatch) -> None:
    for module in (identity, sqlite):
        patch.setattr(module, "require_new", lambda path, is_there=None: None)


def without_fence_of_runs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(capabilities, "is_live", lambda db, identifier: True)


def without_fence_of_servers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sql_catalog.Fence, "_admit", lambda self, db: None)


def without_cascade(patch: pytest.MonkeyPatch) -> None:
    """Reset a derivation without the tasks that read it."""
    patch.setattr(sys.modules["derive.engine.reset"], "readers_of", lambda catalog, store, names: [])


Step = tuple[str, dict[str, Any]]

TABLE: Step = "begin", {"with_table": True}
WRITE: Step = "write", {"n": 0, "key": 0, "deletes": False}
RECREATE: Step = "recreate", {"n": 1}
SETTLE: Step = "settle", {}
TRANSACTION: Step = "begin_transaction", {"n": 0}
MUTANTS: dict[Callable[[pytest.MonkeyPatch], None], list[Step]] = {
    without_owners: [TABLE, ("write_by_another_door", {"n": 0})],
    with_names_for_tasks: [TABLE, WRITE, SETTLE, RECREATE, SETTLE],
    without_retractions: [TABLE, WRITE, SETTLE, RECREATE, SETTLE],
    with_names_for_followers: [TABLE, WRITE, ("follow", {"n": 0}), RECREATE, ("read_follower", {})],
    without_histories: [TABLE, TRANSACTION, RECREATE, ("commit", {"writes": False})],
    without_histories_of_documents: [
        TABLE,
        ("edit_catalog", {}),
        ("ingest", {"name": SOURCE}),
        SETTLE,
        ("read_documents", {}),
        ("reset", {"name": PLAIN, "cascade": True}),
        ("read_documents", {}),
    ],
    without_validation: [TABLE, TRANSACTION, WRITE, ("commit", {"writes": True})],
    with_lost_metadata: [TABLE, ("lose_metadata", {"with_replica": False})],
    without_fence_of_runs: [TABLE, WRITE, ("supersede", {})],
    without_fence_of_servers: [TABLE, ("supersede_server", {})],
    without_cascade: [TABLE, ("edit_catalog", {}), ("reset", {"name": PLAIN, "cascade": False})],
}
"""Mutants, each with a short history that shows it."""
SAMPLED = (without_owners, without_retractions, without_histories, without_fence_of_runs)


def play(history: Sequence[Step]) -> None:
    """Play a history on a machine of its own."""
    machine = Identity()
    try:
        for name, values in history:
            getattr(machine, name)(**values)
            machine.names_find_their_relations()
    finally:
        machine.teardown()


CASES = [pytest.param(mutant, marks=() if mutant in SAMPLED else pytest.mark.torture) for mutant in MUTANTS]
NOTICED = (AssertionError, FlowError, pytest.fail.Exception, BaseExceptionGroup)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mutant", CASES)
def test_history_check_detects_each_missing_guard(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    play(MUTANTS[mutant])
    monkeypatch.setattr(identity_folder, "PATIENCE", 3.0)
    mutant(monkeypatch)
    with pytest.raises(NOTICED):
        play(MUTANTS[mutant])
