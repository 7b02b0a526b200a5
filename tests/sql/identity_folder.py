"""A data folder with everything open over it: SQL, a run, endpoints, followers, and an instance in a server of its own."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TypeVar

import apsw
import orjson
from forked_flowctl import BARE, flowctl
from identity_model import INDEXED, NAMES, PLAIN, Model, Relation, Rows
from patience import PATIENCE_SECONDS
from sql_world import Client

from connectors.kit.servicer import ConnectorServer
from derive.catalog import load
from derive.compute.protocol.transport import OPEN
from derive.compute.replica.worker import InstanceServer, Worker
from derive.contents.reads import ReadOptions, subscribe_at
from derive.contents.reduced import read_reduced, reduced_locally
from derive.engine.executor import InProcessExecutor
from derive.engine.task_reconciler import open_run
from derive.errors import FencedError, OwnedError, SourceReplacedError, SqlError
from derive.materialize.worker import close_streams, connectors
from derive.protocol.specs import CatalogSpec
from derive.sql.coordinator import Coordinator
from derive.sql.maintenance.controller.remote import HERE, Instances
from derive.storage.metadata.owner import Owner
from derive.storage.segments.rows import with_deletions
from derive.storage.store import Store

T = TypeVar("T")


_DOCUMENTS = """
    schema:
      type: object
      required: [id]
      properties: {id: {type: integer}, v: {type: integer}, _meta: {type: object, properties: {op: {type: string}}}}
      if: {required: [_meta], properties: {_meta: {required: [op], properties: {op: {const: d}}}}}
      then: {reduce: {strategy: lastWriteWins, delete: true}}
      else: {reduce: {strategy: lastWriteWins}}
    key: [/id]
"""
_DERIVED = """
    derive:
      using: {sqlite: {}}
      shards: {maxTxnDuration: 10ms}
      transforms: [{name: copy, source: c/source, shuffle: any, lambda: "SELECT $id, $v;"}]
"""
_SUMS = """
    schema:
      type: object
      required: [k]
      reduce: {strategy: merge}
      properties:
        k: {type: integer}
        n: {type: integer, reduce: {strategy: sum}}
        v: {type: integer, reduce: {strategy: sum}}
    key: [/k]
    derive:
      using: {sqlite: {}}
      shards: {maxTxnDuration: 10ms}
      transforms:
        - name: read
          source: FROM
          shuffle: any
          onSourceReset: RESET
          lambda: SELECT $id % 3 AS k, iif($_meta$op IS 'd', -1, 1) AS n, iif($_meta$op IS 'd', -$v, $v) AS v;
"""


def catalog_text(endpoint: Path, address: str, *, is_deriving: bool) -> str:
    """Return a catalog: the readers of a table, and a collection that is derived or not."""
    text = f"collections:\n  sql/public/a:{_DOCUMENTS}  c/source:{_DOCUMENTS}  c/x:{_DOCUMENTS}"
    text += _DERIVED.lstrip("\n") if is_deriving else ""
    for name, source, reset in (
        ("r/stops", "sql/public/a", "stop"),
        ("r/follows", "sql/public/a", "follow"),
        ("r/documents", "c/x", "follow"),
    ):
        text += f"  {name}:{_SUMS.replace('FROM', source).replace('RESET', reset)}"
    text += "materializations:\n"
    for name in ("stops", "follows"):
        reset = name.removesuffix("s")
        text += f"  m/{name}:\n    shards: {{maxTxnDuration: 10ms}}\n"
        text += f"    endpoint: {{address: '{address}', config: {{path: '{endpoint}'}}}}\n"
        text += f"    bindings: [{{resource: {{table: {name}}}, source: sql/public/a, onSourceReset: {reset}}}]\n"
    return text


class Replica:
    """A compute instance in a server of its own."""

    def __init__(self, root: Path) -> None:
        self.failures: list[Exception] = []
        self._store = Store(root)
        self._worker = Worker(self._store, root / "compute" / "other", "other", lambda _: None)
        self._server = InstanceServer(self._worker.reconciler, "127.0.0.1:0", OPEN)
        self.address = self._server.address

    def close(self) -> None:
        self._server.stop()
        self._worker.close()
        self._store.close()


class Follower:
    """A `flowctl collections read --follow` of a relation.

    Args:
        store: the data folder.
        spec: the collection that has the name now.
        relation: the relation in the model.
    """

    def __init__(self, folder: Folder, name: str, relation: Relation) -> None:
        self.relation, self.rows = relation, Rows()
        self._version = 0
        self._deadline = 0.0
        spec = folder.spec(name)
        self._updates = subscribe_at(folder.store, spec, ReadOptions(), self._check_patience)

    def begin(self) -> None:
        """Find the relation, which happens at the first read."""
        self._deadline = time.monotonic() + PATIENCE_SECONDS
        update = next(self._updates)
        if not isinstance(update, int):
            fold(self.rows, with_deletions(update).texts.to_pylist())

    def _check_patience(self) -> None:
        if time.monotonic() > self._deadline:
            raise AssertionError(f"a follower has {self.rows} in place of {self.relation.rows}")

    def read(self) -> str | None:
        """Read up to the present rows of the relation, or to its end; return the error that ends it."""
        self._deadline = time.monotonic() + PATIENCE_SECONDS
        try:
            while self.relation.is_dropped or self.rows != self.relation.rows:
                update = next(self._updates)
                if isinstance(update, int):
                    if self.relation.owner in {Owner.TABLE, Owner.VIEW}:
                        self._check_version()
                else:
                    fold(self.rows, with_deletions(update).texts.to_pylist())
        except FencedError as error:
            return error.message
        return None

    def _check_version(self) -> None:
        """Check that the rows are those as of a commit, which is not before the last one."""
        versions = [Rows(), *(rows for _, rows in self.relation.versions)]
        while versions[self._version] != self.rows:
            self._version += 1
            assert self._version < len(versions), f"{self.rows} are the rows as of no commit: {versions}"

    def close(self) -> None:
        self._updates.close()


def fold(rows: Rows, texts: list[str]) -> Rows:
    """Apply documents to rows."""
    for document in map(orjson.loads, texts):
        if document.get("_meta", {}).get("op") == "d":
            rows.pop(document["id"], None)
        else:
            rows[document["id"]] = document["v"]
    return rows


class Subscriber:
    """A SUBSCRIBE of a relation, read by FETCH."""

    def __init__(self, client: Client, relation: Relation) -> None:
        self.client, self.relation, self.rows = client, relation, Rows()

    async def read(self) -> str | None:
        """Read up to the present rows of the relation, or to its end; return the SQLSTATE that ends it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        try:
            while self.relation.is_dropped or self.rows != self.relation.rows:
                for _, diff, key, value in await self.client("FETCH ALL c WITH (timeout = '50ms')"):
                    if int(str(diff)) < 0:
                        assert self.rows.pop(int(str(key))) == int(str(value))
                    else:
                        assert int(str(key)) not in self.rows
                        self.rows[int(str(key))] = int(str(value))
                assert time.monotonic() < deadline, f"{self.rows} in place of {self.relation.rows}"
        except SqlError as error:
            return error.sqlstate
        return None


class Folder:
    """A data folder, and all that is open over it.

    Attributes:
        coordinator: SQL.
        store: the data folder as tasks, ingestion and followers have it open.
        run: the run of the present catalog.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root, self.endpoint = folder / "data", folder / "endpoint.db"
        self.loop = asyncio.Runner()
        self._server = ConnectorServer(_connector(), "127.0.0.1:0")
        self.replica: Replica | None = None
        self._opened = ExitStack()

    def open(self, model: Model, *, with_replica: bool = False) -> None:
        """Open everything, as new processes do."""
        text = catalog_text(self.endpoint, self._server.address, is_deriving=model.is_deriving)
        (self.folder / "flow.yaml").write_text(text)
        self.catalog: CatalogSpec = load(self.folder / "flow.yaml")
        self.replica = Replica(self.root) if with_replica else None
        if self.replica:
            self._opened.callback(self.replica.close)
        self.begin_sql()
        self.store = Store(self.root, durable=False)
        self._opened.callback(self.store.close)
        self.open_run(model)

    def begin_sql(self) -> None:
        """Begin a server of SQL, with one session."""
        self.loop.run(self._coordinate())
        self.client = self.connect()

    async def _coordinate(self) -> None:
        instances = Instances(addresses=(self.replica.address,)) if self.replica else HERE
        self.coordinator = coordinator = Coordinator(self.root, self.catalog, instances=instances)
        self._opened.callback(lambda: self.loop.run(coordinator.close()))
        coordinator.own()

    def open_run(self, model: Model) -> None:
        """Open a run; an earlier one is fenced."""
        self.run = open_run(self.catalog, self.store, InProcessExecutor())
        self._opened.callback(self.run.close)
        model.declare()

    def close(self) -> None:
        """Close everything that is open, also where a part of it fails to close."""
        close_streams()
        self._opened.close()

    def end(self) -> None:
        """Close everything, with the endpoint and the event loop."""
        with ExitStack() as rest:
            rest.callback(self.loop.close)
            rest.callback(lambda: connectors().close())  # another server may get the port
            rest.callback(self._server.stop)
            self.close()

    # SQL

    def connect(self, **options: str) -> Client:
        """Return a new session."""

        async def connect() -> Client:
            return Client(self.coordinator, **options)

        return self.loop.run(connect())

    def sql(self, *texts: str) -> list[tuple[str | None, ...]]:
        """Run statements; return the rows of the last."""
        return self.loop.run(self._script(texts))

    async def _script(self, texts: tuple[str, ...]) -> list[tuple[str | None, ...]]:
        rows: list[tuple[str | None, ...]] = []
        for text in texts:
            rows = await asyncio.wait_for(self.client(text), PATIENCE_SECONDS)
        return rows

    def error_of(self, text: str) -> str:
        """Return the SQLSTATE with which a statement fails."""
        return self.loop.run(self.client.fails(text))

    def rows(self, name: str) -> Rows:
        """Return the rows that SELECT has of a name."""
        return rows_of(self.sql(f'SELECT id, v FROM "{name}"'))

    def identifiers(self) -> dict[str, int]:
        """Return the identifiers of all relations of SQL by name."""
        return {
            item.name: item.id for item in self.coordinator.objects.items.values() if item.name in (*NAMES, INDEXED)
        }

    def spec(self, name: str) -> Any:
        """Return the collection of a name of SQL or of the catalog."""
        table = self.store.tables.find(f"sql/public/{name}")
        return table.spec if table else self.catalog.collections[name]

    # Tasks

    def settle(self, expected: dict[str, object]) -> None:
        """Run until all results are as expected, and check that they stay so."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            self.run.step()
            wrong = self._wrong(expected)
            if not wrong:
                break
            errors = {name: str(task.error) for name, task in self.run.tasks.items() if task.error}
            assert time.monotonic() < deadline, f"{wrong}; {errors}"
            self.run.wait(0.05)
        self.run.step()
        wrong = self._wrong(expected)
        assert not wrong, f"after results as expected: {wrong}"

    def _wrong(self, expected: dict[str, object]) -> dict[str, tuple[object, object]]:
        """Return the results that are not as expected, each with the expected one."""
        found = self.results()
        return {name: (found[name], expected[name]) for name in expected if found[name] != expected[name]}

    def results(self) -> dict[str, object]:
        """Return the results of all tasks, and whether each has stopped."""
        results: dict[str, object] = {PLAIN: self._documents(PLAIN)}
        for name in ("r/stops", "r/follows", "r/documents"):
            groups = {row["k"]: (row["n"], row["v"]) for row in self._reduced(name)}
            results[name] = {key: group for key, group in groups.items() if group != (0, 0)}
        for name in ("m/stops", "m/follows"):
            results[name] = self._endpoint(name.removeprefix("m/"))
        for name in ("r/stops", "r/follows", "m/stops", "m/follows"):
            results[f"{name} is stopped"] = isinstance(self.run.tasks[name].error, SourceReplacedError)
        for name, task in self.run.tasks.items():
            assert task.error is None or isinstance(task.error, SourceReplacedError | OwnedError), (name, task.error)
        return results

    def _documents(self, name: str) -> Rows:
        return {row["id"]: row["v"] for row in self._reduced(name)}

    def _reduced(self, name: str) -> list[dict[str, Any]]:
        scratch = self.folder
        parts = read_reduced(
            self.store,
            self.catalog.collections[name],
            ReadOptions(),
            lambda root, spec, read: reduced_locally(root, spec, read, scratch),
        )
        return [orjson.loads(text) for rows in parts for text in rows.texts.to_pylist()]

    def _endpoint(self, table: str) -> Rows:
        if not self.endpoint.exists():
            return {}
        with closing(apsw.Connection(str(self.endpoint))) as db:
            db.set_busy_timeout(10_000)
            if not db.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (table,)).fetchall():
                return {}
            found: Any = db.execute(f'SELECT id, v FROM "{table}"').fetchall()
        return dict(found)

    # Crashes

    def killed(self, point: str, *command: str) -> None:
        """Run a command that a failpoint may kill; nothing may be open."""
        environment = {**BARE, "FLOW_FAILPOINT": point}
        arguments = [*command, "--data", str(self.root), "--source", str(self.folder / "flow.yaml")]
        status, _, error = flowctl(self.folder, *arguments, env=environment)
        stops = ("is another relation", "is not the relation that was read", "nothing can be derived into it")
        is_stopped = command[0] == "run" and status == 1 and any(text in error for text in stops)
        assert is_stopped or status in {0, -signal.SIGKILL}, error


def rows_of(rows: list[tuple[str | None, ...]]) -> Rows:
    """Return the rows of a result of two columns, whose keys are unique."""
    found = {int(str(key)): int(str(value)) for key, value in rows}
    assert len(found) == len(rows)
    return found


def _connector() -> Any:
    from connectors.materialize_sqlite import MaterializeSqlite

    return MaterializeSqlite()
