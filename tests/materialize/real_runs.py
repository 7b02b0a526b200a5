"""Real `flowctl run`s over one data folder, the collection that they materialize, and the tables that they keep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import orjson
from conftest import World
from forked_flowctl import Flowctl, owned_by
from patience import PATIENCE_SECONDS, wait_until
from postgres_server import PASSWORD, PostgresServer, server

from derive.catalog import load
from derive.contents.reads import ReadOptions
from derive.contents.reduced import read_reduced, reduced_locally

TASK = "shop/view"

SALES = {
    "shop/sales": {
        "key": ["/customer"],
        "schema": {
            "type": "object",
            "required": ["customer", "sales"],
            "reduce": {"strategy": "merge"},
            "properties": {
                "customer": {"type": "string"},
                "sales": {"type": "integer", "reduce": {"strategy": "sum"}},
                "last": {"type": "integer"},
            },
        },
    }
}
"""A collection of sums: whatever is stored twice, or not at all, is seen."""

_schemas = count()


def sales(begin: int, end: int, customers: int = 100) -> list[dict[str, Any]]:
    """Sales of some numbers."""
    return [{"customer": f"c{number % customers}", "sales": 1, "last": number} for number in range(begin, end)]


@dataclass
class Endpoint:
    """A database, empty at first, and who looks into it."""

    image: str
    config: dict[str, Any]
    query: Callable[[str], list[tuple[Any, ...]]]

    def documents(self, table: str = "sales") -> list[str]:
        """The documents of a table, sorted; none if there is no such table."""
        try:
            return sorted(text for (text,) in self.query(f'SELECT CAST(flow_document AS TEXT) FROM "{table}"'))
        except (apsw.SQLError, LookupError):
            return []


def sqlite(folder: Path) -> Endpoint:
    path = folder / "out.db"

    def query(sql: str) -> list[tuple[Any, ...]]:
        with closing(apsw.Connection(str(path))) as database:
            database.set_busy_timeout(60_000)
            return list(database.execute(sql))

    return Endpoint("materialize-sqlite", {"path": str(path)}, query)


def postgres(own: PostgresServer | None = None, database: str = "postgres") -> Endpoint:
    """A schema of a server, by default of the one that all tests share."""
    started = own or server()
    schema = f"runs_{os.getpid()}_{next(_schemas)}"

    def query(sql: str) -> list[tuple[Any, ...]]:
        import psycopg

        with closing(started.connect(dbname=database, options=f"-csearch_path={schema}")) as connection:
            try:
                return connection.execute(sql.encode()).fetchall()
            except psycopg.errors.UndefinedTable as exc:
                raise LookupError(sql) from exc

    config = {**started.config, "password": PASSWORD, "database": database, "schema": schema}
    return Endpoint("materialize-postgres", config, query)


@dataclass
class Project:
    """A folder with a catalog, its data, and the runs over it."""

    folder: Path
    endpoint: Endpoint
    bindings: Sequence[dict[str, Any]] = ({"source": "shop/sales", "resource": {"table": "sales"}},)
    collections: dict[str, Any] = field(default_factory=lambda: dict(SALES))
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.write()

    def write(self) -> None:
        """Write the catalog, as it is now. JSON is YAML."""
        connector = {"image": self.endpoint.image, "config": self.endpoint.config}
        task = {"endpoint": {"connector": connector}, "bindings": list(self.bindings)}
        catalog = {"collections": self.collections, "materializations": {TASK: task}}
        (self.folder / "flow.yaml").write_bytes(orjson.dumps(catalog))

    @contextmanager
    def world(self) -> Iterator[World]:
        """The data folder, as this process has it."""
        world = World(self.folder / "data", load(self.folder / "flow.yaml"), wall=time.time_ns() // 1000)
        try:
            yield world
        finally:
            world.store.close()

    def ingest(self, *parts: Sequence[Any], collection: str = "shop/sales") -> None:
        """Ingest documents, each part a minute after the one before, and the last one now."""
        with self.world() as world:
            now = world.wall
            for minutes, documents in zip(reversed(range(len(parts))), parts, strict=True):
                world.wall = now - minutes * 60_000_000
                world.ingest(collection, documents, clock=None)

    def expected(self, collection: str = "shop/sales") -> list[str]:
        """The documents that a table has to have, sorted."""
        with self.world() as world:
            scratch = self.folder / "scratch"
            spec = world.catalog.collections[collection]
            parts = read_reduced(world.store, spec, ReadOptions(), partial(reduced_locally, scratch=scratch))
            return sorted(text for rows in parts for text in rows.texts.to_pylist())

    def is_stored(self) -> bool:
        """Whether the table has what it has to have."""
        return self.endpoint.documents() == self.expected()

    def wait_until_stored(self) -> None:
        """Wait until the table has what the collection has now."""
        expected = self.expected()
        wait_until(lambda: self.endpoint.documents() == expected)

    def flowctl(self, *arguments: str, failpoint: str = "") -> Flowctl:
        """A command in a process group of its own."""
        command, *others = arguments
        own = [command, "--source", str(self.folder / "flow.yaml"), "--data", str(self.folder / "data"), *others]
        path = os.pathsep.join(part for part in sys.path if part)
        return Flowctl(
            own,
            env={**os.environ, "PYTHONPATH": path, "FLOW_FAILPOINT": failpoint, **self.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def called(self, *arguments: str) -> tuple[int, str]:
        """The exit code of a command that ends, and all that it said."""
        with self.flowctl(*arguments) as process:
            out, err = process.communicate(timeout=PATIENCE_SECONDS)
        return process.returncode, out + err

    @contextmanager
    def run(self, *arguments: str, failpoint: str = "") -> Iterator[subprocess.Popen[str]]:
        """A run that works in its own process, and is over when the block is."""
        with self.flowctl("run", "--local-documents", "1000000", *arguments, failpoint=failpoint) as process:
            try:
                yield process
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def end(run: subprocess.Popen[str]) -> str:
    """Stop a run as a supervisor does; what it said."""
    run.terminate()
    _, said = run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode == 0, said
    return said


def connector_of(run: subprocess.Popen[str]) -> int:
    """The process that serves the connector of a run."""
    (connector,) = owned_by(run.pid)
    return connector
