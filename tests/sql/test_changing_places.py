"""Relations are created, dropped and renamed into one another's place: SQL, Storage and what COMMIT says agree."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sql_world import Client, SqlWorld

from derive.engine.executor import InProcessExecutor
from derive.engine.task_reconciler import open_run
from derive.errors import DiskFullError, OwnedError, StorageError
from derive.sql.coordinator import Coordinator
from derive.storage.metadata.owner import Door, Owner
from derive.storage.metadata.sqlite import SqliteMetadata
from derive.storage.store import Store

NAMES = ("a", "b", "c", "a_tmp", "a@new", "a/position", "@1/a", "B")
OWNERS = {"MATERIALIZED VIEW": Owner.VIEW, "SOURCE": Owner.SOURCE}
KINDS = ("TABLE", "VIEW", "MATERIALIZED VIEW", "SOURCE", "INDEX")


@dataclass(frozen=True)
class Relation:
    """The model's entry of a name: of a view, the table that it is over, by what never changes."""

    kind: str
    number: int
    rows: tuple[int, ...] = ()
    over: int = 0


@dataclass
class Model:
    """Names, and what they stand for."""

    names: dict[str, Relation] = field(default_factory=dict)
    last: int = 0

    def rows(self, relation: Relation) -> list[tuple[str]]:
        if relation.kind == "TABLE":
            return sorted((str(row),) for row in relation.rows)
        (base,) = [other for other in self.names.values() if other.number == relation.over]
        return sorted((str(10 * row),) for row in base.rows)

    def of_kind(self, *kinds: str) -> list[str]:
        return sorted(name for name, relation in self.names.items() if relation.kind in kinds)

    def copy(self) -> Model:
        return Model(dict(self.names), self.last)

    def create(self, kind: str, name: str, base: str | None) -> str:
        """Create a relation, and return the statement that does."""
        self.last += 1
        over = self.names[base].number if base else 0
        rows = (self.last,) if kind == "TABLE" else ()
        self.names[name] = Relation(kind, self.last, rows, over)
        if kind == "TABLE":
            return f'CREATE TABLE "{name}" AS SELECT {self.last} AS v'
        if kind == "SOURCE":
            return f'CREATE SOURCE "{name}" FROM LOAD GENERATOR COUNTER'
        if kind == "INDEX":
            return f'CREATE INDEX "{name}" ON "{base}" (v)'
        return f'CREATE {kind} "{name}" AS SELECT v * 10 AS v FROM "{base}"'

    def insert(self, name: str) -> str:
        self.last += 1
        relation = self.names[name]
        self.names[name] = replace(relation, rows=(*relation.rows, self.last))
        return f'INSERT INTO "{name}" VALUES ({self.last})'

    def rename(self, name: str, new_name: str) -> str:
        relation = self.names.pop(name)
        self.names[new_name] = relation
        return f'ALTER {relation.kind} "{name}" RENAME TO "{new_name}"'

    def drop(self, name: str) -> str:
        relation = self.names.pop(name)
        for other in [other for other, user in self.names.items() if user.over == relation.number]:
            del self.names[other]
        return f'DROP {relation.kind} "{name}"' + ("" if relation.kind == "INDEX" else " CASCADE")


def step(draw: st.DrawFn, model: Model) -> str:
    """Draw one statement that a model allows, and carry it out there."""
    free = [name for name in NAMES if name not in model.names]
    tables = model.of_kind("TABLE")
    actions = [
        *(["create"] * 3 if free else []),
        *(["rename"] * 6 if free and model.names else []),
        *(["drop"] if model.names else []),
        *(["insert"] if tables else []),
    ]
    match draw(st.sampled_from(actions)):
        case "create":
            kind = draw(st.sampled_from(KINDS if tables else ("TABLE", "SOURCE")))
            base = draw(st.sampled_from(tables)) if kind not in {"TABLE", "SOURCE"} else None
            return model.create(kind, draw(st.sampled_from(free)), base)
        case "rename":
            return model.rename(draw(st.sampled_from(sorted(model.names))), draw(st.sampled_from(free)))
        case "drop":
            return model.drop(draw(st.sampled_from(sorted(model.names))))
    return model.insert(draw(st.sampled_from(tables)))


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, list[str], Model]]:
    """Transactions: how each ends, its statements, and what is there after it."""
    model = Model()
    history = []
    for end in draw(
        st.lists(st.sampled_from(["COMMIT"] * 6 + ["ROLLBACK", "error", "restart"]), min_size=1, max_size=6)
    ):
        after = model.copy()
        texts = [step(draw, after) for _ in range(draw(st.integers(1, 6)))]
        model = after if end in {"COMMIT", "restart"} else model
        history.append((end, texts, model))
    return history


async def check(coordinator: Coordinator, model: Model) -> None:
    """Check that names in SQL and in Storage, and rows, are those of a model."""
    client = Client(coordinator)
    objects = coordinator.objects.items.values()
    assert {item.name: item.kind.value.upper() for item in objects} == {
        name: relation.kind for name, relation in model.names.items()
    }
    for name in model.of_kind("TABLE", "VIEW", "MATERIALIZED VIEW"):
        assert sorted(await client(f'SELECT v FROM "{name}"')) == model.rows(model.names[name])
    assert {table.name for table in coordinator.store.tables.all()} == set(stored(model))
    for name in NAMES:  # whoever has a name, or had it, no other door opens
        relation = model.names.get(name)
        assert coordinator.store.owner(f"sql/public/{name}") is OWNERS.get(
            relation.kind if relation else "", Owner.TABLE
        )
        for door in (Door.INGEST, Door.TASK):
            with pytest.raises(OwnedError):
                coordinator.store.require_open(f"sql/public/{name}", door)


def stored(model: Model) -> Iterator[str]:
    for name in model.of_kind("TABLE", "MATERIALIZED VIEW", "SOURCE"):
        yield f"sql/public/{name}"
    for name in model.of_kind("SOURCE"):
        yield f"sql@position/public/{name}"


@settings(max_examples=12)
@given(histories())
def test_renamed_relations_equal_a_model(history: list[tuple[str, list[str], Model]]) -> None:
    async def run(folder: Path) -> None:
        coordinator = Coordinator(folder, None)
        for end, texts, model in history:
            client = Client(coordinator)
            await client("BEGIN")
            await client.script(*texts)
            if end == "error":
                await client.fails("SELECT nothing")
            tag = await client.tag("ROLLBACK" if end == "ROLLBACK" else "COMMIT")
            assert tag == ("COMMIT" if end in {"COMMIT", "restart"} else "ROLLBACK")
            if end == "restart":
                await coordinator.close()
                coordinator = Coordinator(folder, None)
                coordinator.own()
            await check(coordinator, model)
        await coordinator.close()

    with tempfile.TemporaryDirectory() as name:
        asyncio.run(run(Path(name)))


SWAP = (
    "CREATE TABLE live_tmp AS SELECT 1 AS v",
    "ALTER TABLE live RENAME TO live_bak",
    "ALTER TABLE live_tmp RENAME TO live",
)


async def test_table_can_be_swapped_repeatedly(world: SqlWorld) -> None:
    """As dbt does for each table of each run."""
    for _ in range(3):
        async with world.served() as (coordinator, client):
            if not await client("SHOW TABLES"):
                await client("CREATE TABLE live (v int)")
            for number in range(4):
                await client.script("BEGIN", *SWAP)
                assert await client.tag("COMMIT") == "COMMIT"
                await client.script(f"DROP TABLE live_bak; INSERT INTO live VALUES ({number})")
                assert len(await client("SELECT * FROM live")) == 2
                assert [table.name for table in coordinator.store.tables.all()] == ["sql/public/live"]


DECLARED = """
collections:
  sql/public/live: {schema: {type: object, required: [id], properties: {id: {type: integer}}}, key: [/id]}
  r/copies:
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
    derive: {using: {sqlite: {}}, transforms: [{name: c, source: sql/public/live, shuffle: any, lambda: SELECT $id;}]}
"""


async def test_table_takes_a_name_that_a_catalog_has_declared(tmp_path: Path) -> None:
    world = SqlWorld(tmp_path, DECLARED)
    store = Store(world.data, durable=False)
    store.create(*world.catalog.collections.values())
    store.close()

    async with world.served() as (coordinator, client):
        await client.script("CREATE TABLE live_tmp AS SELECT 'x' AS name, 2 AS id; ALTER TABLE live_tmp RENAME TO live")
        assert [table.name for table in coordinator.store.tables.all()] == ["sql/public/live"]

    async with world.opened() as coordinator:
        coordinator.own()
        assert await Client(coordinator)("SELECT id FROM live") == [("2",)]
    store = Store(world.data, durable=False)
    with closing(store), pytest.raises(StorageError, match="was stored with key") as raised:
        open_run(world.catalog, store, InProcessExecutor())
    assert "change the catalog to fit the table of SQL" in str(raised.value)


@pytest.mark.parametrize("failing", range(1, 4))
async def test_commit_reports_its_outcome_on_a_full_disk(failing: int, world: SqlWorld) -> None:
    """One commit of a deployment finds no space: what COMMIT says is so, then and after a restart."""

    async def rows(client: Client) -> dict[str, list[tuple[str | None, ...]]]:
        return {name: sorted(await client(f"SELECT v FROM {name}")) for name in ("live", "other")}

    async with world.served() as (coordinator, client):
        await client.script("CREATE TABLE live AS SELECT 0 AS v; CREATE TABLE other (v int); BEGIN")
        await client.script(*SWAP, "INSERT INTO other VALUES (7)", "DROP TABLE live_bak")
        full = Full(coordinator, failing)
        try:
            is_committed = await client.tag("COMMIT") == "COMMIT"
        except DiskFullError:
            is_committed = False
        full.end()
        seen = await rows(client)
        await client.script("CREATE TABLE another (v int); DROP TABLE another")
        names = {table.name for table in coordinator.store.tables.all()}
        assert names == {"sql/public/live", "sql/public/other"}
    assert seen == ({"live": [("1",)], "other": [("7",)]} if is_committed else {"live": [("0",)], "other": []})
    async with world.served() as (coordinator, client):
        coordinator.own()
        assert await rows(client) == seen


class Full:
    """Has one transaction of a coordinator find the disk full, as SQLite says it."""

    def __init__(self, coordinator: Coordinator, failing: int) -> None:
        metadata = coordinator.store._metadata
        assert isinstance(metadata, SqliteMetadata)
        self._db, self._turn = metadata._db, metadata._turn  # other threads commit as well
        self._left = failing
        with self._turn:
            self._db.set_commit_hook(self._commit)

    def _commit(self) -> bool:
        self._left -= 1
        if self._left == 0:
            raise apsw.FullError("database or disk is full")
        return False

    def end(self) -> None:
        with self._turn:
            self._db.set_commit_hook(None)
