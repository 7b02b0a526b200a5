"""Every way to write × every kind of relation × every reader: each is right, as a model says, or refused with an error.

Cells are made of three lists. A writer either may write a kind, and then the model follows, or has to be refused with an
error of a class that is expected there. After each writer, all readers are compared with the model: of the kinds that it
writes, after the last writer of all kinds, and in `make torture` always of all kinds.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import apsw
import orjson
import pytest
from patience import PATIENCE_SECONDS
from sql_world import Client, SqlWorld

import derive
from connectors.kit.servicer import ConnectorServer
from connectors.materialize_sqlite import MaterializeSqlite
from derive.catalog import load
from derive.contents.reads import ReadOptions, read_rows, subscribe_at
from derive.contents.reduced import read_reduced, reduced_locally
from derive.contents.rows import rows_of_share, shares_at
from derive.engine.executor import InProcessExecutor
from derive.engine.reset import reset, split
from derive.engine.task_reconciler import open_run
from derive.errors import CatalogError, FencedError, FlowError, OwnedError, SqlError, TaskError, UsageError
from derive.protocol.specs import CollectionSpec
from derive.relations.columns import columns_of
from derive.relations.table_rows import TableRows
from derive.sql.coordinator import Coordinator
from derive.storage.compaction import compact
from derive.storage.ingest import Ingestion
from derive.storage.location import Location
from derive.storage.metadata.owner import Door
from derive.storage.segments.rows import with_deletions
from derive.storage.store import Store
from derive.storage.table_types import RowUpdate, TableUpdate

Rows = dict[int, int]
"""By id, the value of each row."""


@dataclass(frozen=True)
class Kind:
    """A kind of relation, and the one of it that is written.

    Attributes:
        sql: its name in SQL.
        stored: its name in Storage; of one that is not stored, the one that it would have.
        word: what ALTER calls it; empty for what SQL does not alter.
        is_stored: whether Storage has rows of it.
        is_read: whether anybody but flowctl itself reads it.
    """

    sql: str
    stored: str
    word: str = ""
    is_stored: bool = True
    is_read: bool = True


KINDS = {
    "ingested": Kind("c/ingested", "c/ingested"),
    "derived": Kind("c/derived", "c/derived"),
    "table": Kind("t", "sql/public/t", "TABLE"),
    "indexed table": Kind("ti", "sql/public/ti", "TABLE"),
    "materialized view": Kind("mv", "sql/public/mv", "MATERIALIZED VIEW"),
    "view": Kind("vw", "sql/public/vw", "VIEW", is_stored=False),
    "file source": Kind("src", "sql/public/src", "SOURCE"),
    "collection source": Kind("csrc", "sql/public/csrc", "SOURCE", is_stored=False),
    "index": Kind("ix", "sql/public/ix", "INDEX", is_stored=False, is_read=False),
    "position": Kind("position", "sql@position/public/src", is_read=False),
}
STORED = {name for name, kind in KINDS.items() if kind.is_stored and kind.is_read}
READ = {name for name, kind in KINDS.items() if kind.is_read}
TABLES = {"table", "indexed table"}

SCHEMA = """
    schema:
      type: object
      required: [id]
      properties: {id: {type: integer}, v: {type: integer}, _meta: {type: object, properties: {op: {type: string}}}}
      if: {required: [_meta], properties: {_meta: {required: [op], properties: {op: {const: d}}}}}
      then: {reduce: {strategy: lastWriteWins, delete: true}}
      else: {reduce: {strategy: lastWriteWins}}
    key: [/id]
"""
COPY = """
    derive:
      using: {sqlite: {}}
      shards: {maxTxnDuration: 10ms}
      transforms: [{name: copy, source: SOURCE, shuffle: any, lambda: "LAMBDA"}]
"""
COPIED = """
    schema:
      type: object
      required: [id]
      reduce: {strategy: lastWriteWins}
      properties: {id: {type: integer}, v: {type: integer}, op: {type: [string, "null"]}}
    key: [/id]
"""


def catalog_text(derived: dict[str, str], endpoint: str = "") -> str:
    """A catalog of all collections, some of which are derived from others."""
    names = ["c/source", *(KINDS[name].stored for name in sorted(STORED)), *derived]
    text = "collections:"
    for name in dict.fromkeys(names):
        is_copy = name.startswith("r/")
        text += f"\n  {name}:{COPIED if is_copy else SCHEMA}"
        if name in derived:
            op = ", json_extract($flow_document, '$._meta.op') AS op" if is_copy else ""
            block = COPY.strip("\n").replace("SOURCE", derived[name]).replace("LAMBDA", f"SELECT $id, $v{op};")
            text += f"{block}\n"
    if endpoint:
        text += f"materializations:\n  m/all:\n    endpoint: {endpoint}\n    bindings:\n"
        for name in sorted(STORED):
            text += f"      - {{resource: {{table: '{table_of(name)}'}}, source: {KINDS[name].stored}}}\n"
    return text


def table_of(kind: str) -> str:
    return kind.replace(" ", "_")


def copy_of(kind: str) -> str:
    """The collection that is derived from a kind."""
    return f"r/{table_of(kind)}"


class Running(threading.Thread):
    """A run of the catalog that goes on, with a store of its own."""

    def __init__(self, root: Path, source: Path) -> None:
        super().__init__(daemon=True)
        self._root, self._source = root, source
        self._ended = threading.Event()
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        store = Store(self._root, durable=False)
        try:
            run = open_run(load(self._source), store, InProcessExecutor())
            while not self._ended.is_set():
                run.step()
                for task in run.tasks.values():
                    if task.error:
                        raise task.error
                run.wait(0.05)
            run.close()
        except BaseException as error:  # it is told by whoever ends the run
            self.failure = error
        store.close()

    def end(self) -> None:
        self._ended.set()
        self.join()
        if self.failure is not None:
            raise self.failure


class Bench:
    """A data folder with a relation of each kind, a model of what they hold, and readers that go on."""

    def __init__(self, world: SqlWorld, coordinator: Coordinator, source: Path, endpoint: Path) -> None:
        self.world, self.coordinator, self.source, self.endpoint = world, coordinator, source, endpoint
        self.store = Store(world.data, durable=False)
        self.catalog = world.catalog
        self.client = Client(coordinator)
        self.model: dict[str, Rows] = {name: {} for name in READ}
        self.base: Rows = {}
        self.last = 0
        self.followers: dict[str, Iterator[Any]] = {}
        self.followed: dict[str, Rows] = {}
        self.subscribers: dict[str, Client] = {}
        self.subscribed: dict[str, Counter[tuple[int, int]]] = {}
        self.running = Running(world.data, source)
        self.file = world.folder / "src.csv"

    def next(self) -> int:
        self.last += 1
        return self.last

    def spec(self, kind: str) -> CollectionSpec:
        """A collection of the name that a kind has, or would have, in Storage."""
        template = self.catalog.collections["c/ingested"]
        return self.catalog.collections.get(KINDS[kind].stored, replace(template, name=KINDS[kind].stored))

    async def begin(self) -> None:
        self.file.write_text("")
        for text in (
            "CREATE TABLE t (id int NOT NULL, v int)",
            "CREATE TABLE ti (id int NOT NULL, v int)",
            "CREATE INDEX ix ON ti (id)",
            "CREATE TABLE b (id int NOT NULL, v int)",
            "CREATE MATERIALIZED VIEW mv AS SELECT id, v FROM b",
            "CREATE VIEW vw AS SELECT id, v FROM b",
            f"CREATE SOURCE src (id int, v int) FROM FILE '{self.file}' FORMAT CSV",
            'CREATE SOURCE csrc FROM COLLECTION "c/ingested"',
        ):
            await self.client(text)

    async def end(self) -> None:
        for follower in self.followers.values():
            follower.close()  # type: ignore[attr-defined]
        for subscriber in self.subscribers.values():
            await subscriber.session.close()
        await asyncio.to_thread(self.running.end)
        self.store.close()


# Writers


async def ingest(bench: Bench, kind: str) -> None:
    number = bench.next()
    document = {"id": number, "v": number}
    await asyncio.to_thread(lambda: Ingestion(bench.store, bench.spec(kind)).load("test", [(1, document)]))
    bench.model[kind][number] = number
    if kind == "ingested":
        bench.model["collection source"][number] = number


async def run(bench: Bench, kind: str) -> None:
    """A run derives into the collection; for one that the catalog derives, what goes on does."""
    number = bench.next()
    spec = bench.catalog.collections["c/source"]
    if kind == "derived":
        await asyncio.to_thread(lambda: Ingestion(bench.store, spec).load("test", [(1, {"id": number, "v": number})]))
        bench.model["derived"][number] = number
        return
    running = open_run(deriving(bench, kind), bench.store, InProcessExecutor(), tasks=[KINDS[kind].stored])
    await asyncio.to_thread(running.step)
    error = running.tasks[KINDS[kind].stored].error
    running.close()
    if error is not None:
        raise error


def deriving(bench: Bench, kind: str) -> Any:
    """A catalog that derives a kind of relation."""
    path = bench.world.folder / "deriving.yaml"
    path.write_text(catalog_text({KINDS[kind].stored: "c/source"}))
    return load(path)


async def start_over(bench: Bench, kind: str) -> None:
    await asyncio.to_thread(bench.running.end)
    try:
        catalog = bench.catalog if kind == "derived" else deriving(bench, kind)
        await asyncio.to_thread(lambda: reset(catalog, bench.store, [KINDS[kind].stored], cascade=True))
    finally:
        bench.running = Running(bench.world.data, bench.source)


async def divide(bench: Bench, kind: str) -> None:
    await asyncio.to_thread(bench.running.end)
    try:
        await asyncio.to_thread(split, bench.store, KINDS[kind].stored)
    finally:
        bench.running = Running(bench.world.data, bench.source)


async def merge(bench: Bench, kind: str) -> None:
    await asyncio.to_thread(lambda: compact(bench.store, bench.spec(kind), grace=0))


async def forget(bench: Bench, kind: str) -> None:
    await asyncio.to_thread(lambda: compact(bench.store, bench.spec(kind), since=bench.store.timeline.wall(), grace=0))


async def insert(bench: Bench, kind: str) -> None:
    number = bench.next()
    await bench.client(f'INSERT INTO "{KINDS[kind].sql}" (id, v) VALUES ({number}, {number})')
    bench.model[kind][number] = number


async def copy(bench: Bench, kind: str) -> None:
    numbers = [bench.next(), bench.next()]
    session = bench.client.session
    prepared = await session.prepare(f'COPY "{KINDS[kind].sql}" (id, v) FROM STDIN', ())
    try:
        await session.begin_implicit()
        result = await session.execute(prepared, ())
        assert result.copy_in is not None

        async def lines() -> AsyncIterator[bytes]:
            yield "".join(f"{number}\t{number}\n" for number in numbers).encode()

        assert await result.copy_in(lines()) == 2
        await session.end_implicit()
    except BaseException:
        await session.fail()
        raise
    bench.model[kind].update(zip(numbers, numbers, strict=True))


async def update(bench: Bench, kind: str) -> None:
    number = min(bench.model.get(kind, {}), default=1)
    await bench.client(f'UPDATE "{KINDS[kind].sql}" SET v = v - 1000 WHERE id = {number}')
    bench.model[kind][number] -= 1000


async def delete(bench: Bench, kind: str) -> None:
    number = max(bench.model.get(kind, {}), default=1)
    await bench.client(f'DELETE FROM "{KINDS[kind].sql}" WHERE id = {number}')
    del bench.model[kind][number]


async def truncate(bench: Bench, kind: str) -> None:
    await bench.client(f'TRUNCATE "{KINDS[kind].sql}"')
    bench.model[kind].clear()


def created(text: str, word: str) -> Callable[[Bench, str], Awaitable[None]]:
    """Create something of a name, and drop it where that was free."""

    async def create(bench: Bench, kind: str) -> None:
        name = f'"{KINDS[kind].sql}"'
        await bench.client(text.replace("NAME", name).replace("PATH", str(bench.file)))
        await bench.client(f"DROP {word} {name}")

    return create


async def rename(bench: Bench, kind: str) -> None:
    """A relation is called otherwise, and as before again: at once, and one after the other in one transaction."""
    word, name = KINDS[kind].word or "TABLE", KINDS[kind].sql
    await bench.client("BEGIN")
    try:
        await bench.client(f'ALTER {word} "{name}" RENAME TO other_name')
        await bench.client(f'ALTER {word} other_name RENAME TO "{name}"')
    finally:
        await bench.client("COMMIT")


async def drop(bench: Bench, kind: str) -> None:
    """DROP of another kind than it is."""
    await bench.client(f'DROP {"VIEW" if kind in TABLES else "TABLE"} "{KINDS[kind].sql}"')


async def add_column(bench: Bench, kind: str) -> None:
    await bench.client(f'ALTER TABLE "{KINDS[kind].sql}" ADD COLUMN w int')


async def maintain(bench: Bench, kind: str) -> None:
    """A relation is written of which a materialized view, or a view, is made."""
    number = bench.next()
    await bench.client(f"INSERT INTO b VALUES ({number}, {number})")
    await bench.client(f"UPDATE b SET v = v + 1 WHERE id = {number}")
    for name in ("materialized view", "view"):
        bench.model[name][number] = number + 1


async def feed(bench: Bench, kind: str) -> None:
    number = bench.next()
    with bench.file.open("a") as file:
        file.write(f"{number},{number}\n")
    bench.model[kind][number] = number


def through(door: Door) -> Callable[[Bench, str], Awaitable[None]]:
    """Rows are written to Storage as somebody does who owns other tables."""

    async def write(bench: Bench, kind: str) -> None:
        table = bench.store.tables.find(KINDS[kind].stored)
        assert table is not None
        clock = bench.store.timeline.assign(1)
        row = (1,) * len(table.columns)
        (change,) = TableRows(table).changes([(row, 1)])
        bench.store.tables.commit([TableUpdate(table.id, None, clock + 1, (RowUpdate(clock, *change),))], door)

    return write


@dataclass(frozen=True)
class Writer:
    """A way to write.

    Attributes:
        write: tries to, and has the model follow.
        may: kinds that it may write.
        kinds: kinds that it is tried with.
        refusals: classes of errors that it is refused with elsewhere, or SQLSTATEs.
        keeps_rows: whether it changes no rows, so that the readers are compared after a later writer.
    """

    write: Callable[[Bench, str], Awaitable[None]]
    may: set[str]
    refusals: tuple[type[FlowError] | str, ...]
    kinds: set[str] = field(default_factory=lambda: set(KINDS))
    keeps_rows: bool = False


IN_STORAGE = {name for name, kind in KINDS.items() if kind.is_stored}
NAMELESS = {"position"}
DML = ("42809", "42P01", "0A000")
TAKEN = ("42P07",)
WRITERS = {
    "flowctl ingest": Writer(ingest, {"ingested"}, (OwnedError,)),
    "flowctl run": Writer(run, {"derived"}, (OwnedError, CatalogError)),
    "INSERT": Writer(insert, TABLES, DML),
    "maintenance": Writer(maintain, {"materialized view"}, (), {"materialized view"}),
    "COPY": Writer(copy, TABLES, DML),
    "file": Writer(feed, {"file source"}, (), {"file source"}),
    "UPDATE": Writer(update, TABLES, DML),
    "flowctl compact": Writer(merge, IN_STORAGE, (), IN_STORAGE),
    "DELETE": Writer(delete, TABLES, DML),
    "CREATE TABLE AS": Writer(
        created("CREATE TABLE NAME AS SELECT 1 AS id", "TABLE"), NAMELESS, TAKEN, keeps_rows=True
    ),
    "CREATE VIEW": Writer(created("CREATE VIEW NAME AS SELECT 1 AS id", "VIEW"), NAMELESS, TAKEN, keeps_rows=True),
    "CREATE MATERIALIZED VIEW": Writer(
        created("CREATE MATERIALIZED VIEW NAME AS SELECT id FROM b", "MATERIALIZED VIEW"),
        NAMELESS,
        TAKEN,
        keeps_rows=True,
    ),
    "CREATE SOURCE": Writer(
        created("CREATE SOURCE NAME (id int) FROM FILE 'PATH' FORMAT CSV", "SOURCE"), NAMELESS, TAKEN, keeps_rows=True
    ),
    "CREATE INDEX": Writer(created("CREATE INDEX NAME ON b (id)", "INDEX"), NAMELESS, TAKEN, keeps_rows=True),
    "RENAME": Writer(rename, {name for name, kind in KINDS.items() if kind.word}, DML[:2], keeps_rows=True),
    "ADD COLUMN": Writer(add_column, {"indexed table"}, ("42809", "42P01"), set(KINDS) - {"table"}, keeps_rows=True),
    "DROP of another kind": Writer(drop, set(), ("42809", "42P01")),
    "flowctl reset": Writer(start_over, {"derived"}, (OwnedError, CatalogError, UsageError)),
    "flowctl split": Writer(divide, {"derived"}, (OwnedError, TaskError)),
    "a dataflow": Writer(through(Door.DATAFLOW), set(), (OwnedError,), TABLES | {"file source", "position"}),
    "the server": Writer(through(Door.SERVER), set(), (OwnedError,), {"materialized view"}),
    "flowctl compact --since": Writer(forget, IN_STORAGE, (), IN_STORAGE),
    "TRUNCATE": Writer(truncate, TABLES, DML),
}


async def attempt(bench: Bench, writer: Writer, kind: str) -> str | None:
    """Try a writer on a kind; returns what is wrong with what comes of it."""
    try:
        await asyncio.wait_for(writer.write(bench, kind), PATIENCE_SECONDS)
    except SqlError as error:
        is_expected = kind not in writer.may and error.sqlstate in writer.refusals
        return None if is_expected else f"SQLSTATE {error.sqlstate}: {error}"
    except FlowError as error:
        classes = tuple(refusal for refusal in writer.refusals if isinstance(refusal, type))
        is_expected = kind not in writer.may and isinstance(error, classes)
        return None if is_expected else f"{type(error).__name__}: {error}"
    except Exception as error:  # which nobody should meet
        return f"{type(error).__name__}, no error of ours: {error}"
    return None if kind in writer.may else "was not refused"


# Readers


def fold(rows: Rows, documents: list[dict[str, Any]]) -> Rows:
    """Documents are told one after the other; the last one of a key says what there is."""
    for document in documents:
        if "d" in {document.get("op"), document.get("_meta", {}).get("op")}:
            rows.pop(document["id"], None)
        else:
            rows[document["id"]] = document["v"]
    return rows


async def raw(bench: Bench, kind: str) -> Rows:
    def read() -> Rows:
        parts = read_rows(bench.store, bench.spec(kind), ReadOptions())
        return fold({}, [orjson.loads(text) for rows in parts for text in with_deletions(rows).texts.to_pylist()])

    return await asyncio.to_thread(read)


def reduced_at(bench: Bench, kind: str, as_of: int | None) -> Rows:
    def here(location: Location, spec: CollectionSpec, read: Any) -> Any:
        return reduced_locally(location, spec, read, bench.world.folder)

    with closing(read_reduced(bench.store, bench.spec(kind), ReadOptions(as_of=as_of), here)) as parts:
        return fold({}, [orjson.loads(text) for rows in parts for text in rows.texts.to_pylist()])


async def reduced(bench: Bench, kind: str) -> Rows:
    return await asyncio.to_thread(reduced_at, bench, kind, None)


async def as_of(bench: Bench, kind: str) -> Rows:
    """At the last time that is final, by its clock."""
    return await asyncio.to_thread(reduced_at, bench, kind, bench.store.upper(KINDS[kind].stored) - 1)


class IdleError(Exception):
    """There is nothing new."""


async def follow(bench: Bench, kind: str) -> Rows:
    """The rows of a --follow, which goes on from read to read; one that is told of a reset begins anew."""

    def read() -> Rows:
        rows = bench.followed.setdefault(kind, {})
        updates = bench.followers.get(kind)
        if updates is None:
            rows.clear()
            updates = bench.followers[kind] = subscribe_at(bench.store, bench.spec(kind), ReadOptions(), lambda: None)
        end = bench.store.upper(KINDS[kind].stored)
        try:
            for update in updates:
                if not isinstance(update, int):
                    fold(rows, [orjson.loads(text) for text in with_deletions(update).texts.to_pylist()])
                elif update >= end:
                    return dict(rows)
        except FencedError:
            del bench.followers[kind]
            raise
        raise AssertionError("it has come to an end")

    return await asyncio.to_thread(read)


async def strict(bench: Bench, kind: str) -> Rows:
    return await select(Client(bench.coordinator), kind)


async def serializable(bench: Bench, kind: str) -> Rows:
    return await select(Client(bench.coordinator, transaction_isolation="serializable"), kind)


async def select(client: Client, kind: str) -> Rows:
    rows = await client(f'SELECT id, v FROM "{KINDS[kind].sql}"')
    await client.session.close()
    assert len({id_ for id_, _ in rows}) == len(rows)
    return {int(str(id_)): int(str(v)) for id_, v in rows}


async def subscribe(bench: Bench, kind: str) -> Rows:
    """The rows of a SUBSCRIBE, which goes on from read to read; one that is told of a reset begins anew."""
    client = bench.subscribers.get(kind)
    if client is None:
        client = bench.subscribers[kind] = Client(bench.coordinator)
        bench.subscribed[kind] = Counter()
        await client("BEGIN")
        await client(f'DECLARE c CURSOR FOR SUBSCRIBE (SELECT id, v FROM "{KINDS[kind].sql}")')
    try:
        rows = await client("FETCH ALL c WITH (timeout = '50ms')")
    except SqlError:
        del bench.subscribers[kind]
        await client.session.close()
        raise
    for _, diff, id_, v in rows:
        bench.subscribed[kind][int(str(id_)), int(str(v))] += int(str(diff))
    assert min(bench.subscribed[kind].values(), default=0) >= 0
    return dict((+bench.subscribed[kind]).keys())


async def transform(bench: Bench, kind: str) -> Rows:
    def read() -> Rows:
        parts = read_rows(bench.store, bench.catalog.collections[copy_of(kind)], ReadOptions())
        return fold({}, [orjson.loads(text) for rows in parts for text in rows.texts.to_pylist()])

    return await asyncio.to_thread(read)


async def materialization(bench: Bench, kind: str) -> Rows:
    with closing(apsw.Connection(str(bench.endpoint))) as db:
        if not db.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (table_of(kind),)).fetchall():
            return {}
        rows: Any = db.execute(f'SELECT id, v FROM "{table_of(kind)}"').fetchall()
    return dict(rows)


async def python(bench: Bench, kind: str) -> Rows:
    def read() -> Rows:
        with derive.open(bench.world.data, source=bench.source) as folder:
            found = folder.collection(KINDS[kind].stored).latest().to_arrow().select(["id", "v"]).to_pylist()
        return {row["id"]: row["v"] for row in found}

    return await asyncio.to_thread(read)


async def spark(bench: Bench, kind: str) -> Rows:
    """Return the rows that an executor of Spark reads of its share, without Spark."""

    def read() -> Rows:
        source = bench.store.tables.find(KINDS[kind].stored) or bench.spec(kind)
        time = bench.store.upper(KINDS[kind].stored) - 1
        shares = shares_at(bench.store, source, time)
        found: list[Any] = [row for share in shares for rows in rows_of_share(share) for row in rows]
        names = [column.name for column in columns_of(source)]
        return {row[names.index("id")]: row[names.index("v")] for row in found}

    return await asyncio.to_thread(read)


READERS: dict[str, tuple[Callable[[Bench, str], Awaitable[Rows]], set[str]]] = {
    "SELECT, strict serializable": (strict, READ),
    "SELECT, serializable": (serializable, READ),
    "SUBSCRIBE": (subscribe, READ),
    "collections read": (raw, STORED),
    "collections read --reduce": (reduced, STORED),
    "collections read --as-of": (as_of, STORED),
    "collections read --follow": (follow, STORED),
    "a transform": (transform, STORED),
    "a materialization": (materialization, STORED),
    "Python": (python, STORED),
    "Spark's shares": (spark, STORED),
}
AT_ONCE = {"SELECT, strict serializable"}
"""Readers that see at once what was acknowledged, but for what follows a file or is derived from it in time."""


async def compare(bench: Bench, reader: str, kind: str) -> str | None:
    """Wait until a reader has come to the model; returns what is wrong if it has not."""
    read, _ = READERS[reader]
    loop = asyncio.get_running_loop()
    begun = loop.time()
    seen: Rows | FlowError
    while True:
        try:
            seen = await asyncio.wait_for(read(bench, kind), PATIENCE_SECONDS)
        except FlowError as error:
            seen = error
        if seen == bench.model[kind]:
            return None
        is_late = reader in AT_ONCE and kind != "file source" and not isinstance(seen, FlowError)
        if is_late or loop.time() - begun > PATIENCE_SECONDS:
            return f"{seen!r} in place of {bench.model[kind]}"
        await asyncio.sleep(0.02)


async def play(bench: Bench, *, is_complete: bool) -> list[str]:
    """Try all writers on all kinds, and all readers after each; returns what is wrong, by cell."""
    wrong = []
    last = [*WRITERS][-1]
    for writer_name, writer in WRITERS.items():
        before = deepcopy(bench.model)
        for kind in KINDS:
            if kind in writer.kinds and (said := await attempt(bench, writer, kind)):
                wrong.append(f"{writer_name} × {kind}: {said}")
        written = writer.may | {kind for kind, rows in bench.model.items() if rows != before[kind]}
        compared = READ if is_complete or writer_name == last else written
        for reader, (_, kinds) in READERS.items():
            for kind in [] if writer.keeps_rows else sorted(kinds & compared):
                if said := await compare(bench, reader, kind):
                    wrong.append(f"after {writer_name}: {kind} × {reader}: {said}")
        if wrong:
            return wrong
    return wrong


@pytest.mark.xdist_group("doors")
@pytest.mark.parametrize("is_complete", [False, pytest.param(True, marks=pytest.mark.torture)])
def test_combinations_of_writers_and_readers_are_correct_or_refused(tmp_path: Path, *, is_complete: bool) -> None:
    endpoint = tmp_path / "endpoint.db"
    derived = {"c/derived": "c/source", **{copy_of(name): KINDS[name].stored for name in sorted(STORED)}}
    server = ConnectorServer(MaterializeSqlite(), "127.0.0.1:0")
    text = catalog_text(derived, f"{{address: '{server.address}', config: {{path: '{endpoint}'}}}}")
    world = SqlWorld(tmp_path, text)

    async def work(coordinator: Coordinator) -> list[str]:
        bench = Bench(world, coordinator, tmp_path / "flow.yaml", endpoint)
        await bench.begin()
        try:
            return await play(bench, is_complete=is_complete)
        finally:
            await bench.end()

    try:
        wrong = world.within(work)
        assert not wrong, "\n".join(wrong)
    finally:
        server.stop()
