"""Sessions of former runs that open late: the present run continues, and every row is stored exactly once."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import World, write_catalog
from materialized import CATALOG, folded, ingest
from sql_databases import DATABASES, Database

from connectors.kit.requests import DriverCheckpoint, Opening, StoredRows, Value
from connectors.kit.servicer import ConnectorServer
from connectors.materialize_sql.connector import SqlSession
from derive.catalog import load
from derive.engine.run import Run
from derive.errors import EndpointGoneError, FencedError, FlowError
from derive.materialize.worker import close_streams
from derive.time.extent import Limits

POINTS = ("opened", "load", "prepare", "commit", "committed")


@dataclass
class LateConnector:
    """A connector of a database, in which sessions of former runs open at some points of a session's work.

    Attributes:
        database: the database.
        act: called at each point, with its name.
        openings: openings of all sessions.
    """

    database: Database
    act: Callable[[str], None] = lambda point: None
    openings: list[Opening] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.database.connector, name)

    def open(self, opening: Opening) -> LateSession:
        self.openings.append(opening)
        self.act("opening")
        session = self.database.connector.open(opening)
        assert isinstance(session, SqlSession)
        try:
            self.act("opened")
        except BaseException:
            session.close()
            raise
        return LateSession(session, self)

    def open_late(self, opening: Opening) -> None:
        """Open a session whose process has ended."""
        self.database.connector.open(opening).close()


@dataclass
class LateSession:
    """A session of a `LateConnector`."""

    inner: SqlSession
    connector: LateConnector

    @property
    def checkpoint(self) -> bytes:
        return self.inner.checkpoint

    @property
    def contents(self) -> Sequence[str]:
        return self.inner.contents

    @property
    def narrower(self) -> Sequence[bytes]:
        return self.inner.narrower

    def load(self, binding: int, keys: Sequence[tuple[Value, ...]]) -> None:
        self.connector.act("load")
        self.inner.load(binding, keys)

    def loaded(self) -> Iterator[tuple[int, Sequence[bytes]]]:
        return self.inner.loaded()

    def prepare(self, flow_checkpoint: bytes) -> DriverCheckpoint | None:
        self.connector.act("prepare")
        return self.inner.prepare(flow_checkpoint)

    def store(self, binding: int, rows: StoredRows) -> None:
        self.inner.store(binding, rows)

    def commit(self) -> None:
        self.connector.act("commit")
        self.inner.commit()
        self.connector.act("committed")

    def close(self) -> None:
        self.inner.close()


@contextmanager
def materialized(folder: Path, kind: str) -> Iterator[tuple[World, LateConnector]]:
    """A data folder that is materialized into a database."""
    connector = LateConnector(DATABASES[kind](folder))
    server = ConnectorServer(connector, "127.0.0.1:0")
    text = CATALOG.replace("ADDRESS", server.address).replace('{ path: "PATH" }', json.dumps(connector.database.config))
    world = World(folder / "data", load(write_catalog(folder, text)))
    try:
        yield world, connector
    finally:
        connector.act = lambda point: None
        close_streams()
        world.store.close()
        server.stop()


def stored(connector: LateConnector) -> dict[str, list[str]]:
    """The documents of each table, by key."""
    query = connector.database.query
    document = "SELECT CAST(flow_document AS VARCHAR) FROM"
    return {
        "shop/orders": [text for (text,) in query(f"{document} orders ORDER BY id")],
        "shop/spending": [text for (text,) in query(f"{document} spending ORDER BY customer")],
    }


def errors_of(run: Run) -> list[FlowError]:
    return [task.error for task in run.tasks.values() if task.error]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", [*DATABASES])
def test_late_session_does_not_stop_the_present_run(tmp_path: Path, kind: str, point: str) -> None:
    """A session of the former run opens in the middle of the present run's transaction."""
    if (kind, point) == ("postgres", "commit"):
        pytest.skip("a late session waits 3 s for the transaction, and then ends the connection")
    with materialized(tmp_path, kind) as (world, connector):
        ingest(world, 0, 40)
        world.step()
        late, points = [*connector.openings], list[str]()

        def act(reached: str) -> None:
            points.append(reached)
            if reached == point and late:
                connector.open_late(late.pop())

        connector.act = act
        run = world.run()
        for day in (2, 3):
            ingest(world, day * 20, day * 20 + 40, day)
            run.step()
            assert errors_of(run) == []
            assert stored(connector) == folded(world)
        assert not late
        assert points.count("opened") == 2


@dataclass
class Chaos:
    """A random course of events: ingestions, runs that follow one another, late sessions, and lost connections."""

    world: World
    connector: LateConnector
    dice: random.Random
    is_slow: bool
    left: int = 0
    crashes: bool = False

    def act(self, point: str) -> None:
        """Perhaps let late sessions open, or the connection break."""
        if self.left and self.dice.random() < 0.25 and not (self.is_slow and point == "commit"):
            self.left -= 1
            self.connector.open_late(self.dice.choice(self.connector.openings))
        if self.crashes and self.dice.random() < 0.3:
            self.crashes = False
            raise EndpointGoneError(f"the connection broke at '{point}'")

    def go(self, shards: int) -> None:
        limits = Limits(documents=self.dice.choice([7, 1000]))
        former: list[Run] = []
        run = self.world.run(shards=shards, limits=limits)
        for day in range(1, 7):
            begin = self.dice.randrange(100)
            ingest(self.world, begin, begin + self.dice.randrange(1, 40), day)
            self.left, self.crashes = self.dice.randrange(5), self.dice.random() < 0.25
            has_crash = self.crashes
            if former and self.dice.random() < 0.3:
                with pytest.raises(FencedError):
                    self.dice.choice(former).step()
            run.step()
            if errors_of(run) or self.dice.random() < 0.3:
                assert not errors_of(run) or (has_crash and not self.crashes), errors_of(run)
                former.append(run)
                run = self.world.run(shards=shards, limits=limits)
        self.left, self.crashes = 0, False
        run.step()
        assert errors_of(run) == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(100))
@pytest.mark.parametrize("kind", [*DATABASES])
def test_late_sessions_store_every_row_exactly_once(tmp_path: Path, kind: str, seed: int) -> None:
    """L2: at any interleaving of runs, late sessions and lost connections, tables equal the collections."""
    dice = random.Random(seed)
    with materialized(tmp_path, kind) as (world, connector):
        chaos = Chaos(world, connector, dice, is_slow=kind == "postgres")
        connector.act = chaos.act
        chaos.go(dice.choice([1, 1, 3]))
        assert stored(connector) == folded(world)


def test_run_of_a_copied_folder_stops_once_the_other_run_has_stored_rows(tmp_path: Path) -> None:
    with materialized(tmp_path, "sqlite") as (world, _):
        ingest(world, 0, 40)
        world.step()
        world.store.metadata.settle()
        shutil.copytree(world.root, tmp_path / "copy" / "data")
        copy = World(tmp_path / "copy" / "data", world.catalog)
        ingest(world, 40, 50, 2)
        run = world.run()
        run.step()
        ingest(copy, 60, 70, 3)
        other = copy.run()
        other.step()
        assert errors_of(other) == []

        ingest(world, 80, 90, 4)
        run.step()
        assert [error.message for error in errors_of(run)] == [
            "another run has stored rows of 'shop/view' at its endpoint"
        ]

        ingest(copy, 100, 110, 5)
        other.step()
        assert errors_of(other) == []
        copy.store.close()
