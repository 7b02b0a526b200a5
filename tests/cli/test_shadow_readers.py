"""Readers of every kind while a shadow replaces what they read, under live ingestion: each of them sees one version.

Every document names the version of the lambda that derived it. So whatever a reader sees at one time has one version,
and what follows is the new one for good.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from forked_flowctl import Flowctl, flowctl
from postgres_server import PostgresServer
from sql_world import Client

import derive
from derive.catalog import load
from derive.sql.coordinator import Coordinator
from derive.storage.ingest import Ingestion
from derive.storage.store import Store

CATALOG = """
collections:
  acme/transfers:
    schema: {type: object, required: [id, sender], properties: {id: {type: integer}, sender: {type: string}}}
    key: [/id]
  acme/sent:
    schema:
      type: object
      required: [sender, version]
      reduce: {strategy: merge}
      properties:
        sender: {type: string}
        version: {type: integer}
        count: {type: integer, reduce: {strategy: sum}}
    key: [/sender]
    derive:
      using: {sqlite: {}}
      transforms: [{name: count, source: acme/transfers, shuffle: any, lambda: "SELECT $sender, VERSION AS version, VERSION AS count;"}]
  acme/large:
    schema:
      type: object
      required: [sender, version]
      properties: {sender: {type: string}, version: {type: integer}}
    key: [/sender]
    derive:
      using: {sqlite: {}}
      transforms: [{name: pick, source: acme/sent, shuffle: any, lambda: "SELECT $sender, $version;"}]
materializations:
  acme/stored:
    endpoint: {connector: {image: materialize-postgres, config: CONFIG}}
    bindings: [{source: acme/large, resource: {table: large}}]
"""


@contextmanager
def postgres() -> Iterator[PostgresServer]:
    with tempfile.TemporaryDirectory() as name:
        server = PostgresServer(Path(name))
        try:
            yield server
        finally:
            server.stop()


class Acme:
    """A folder with a catalog, whose lambda is that of one version or the other."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        self.folder, self.server, self.data, self.count = folder, server, folder / ".flow", 0
        self.write(1)

    def write(self, version: int) -> None:
        text = CATALOG.replace("CONFIG", json.dumps(self.server.config)).replace("VERSION", str(version))
        (self.folder / "flow.yaml").write_text(text)

    def ingest(self, store: Store) -> None:
        spec = load(self.folder / "flow.yaml").collections["acme/transfers"]
        documents = [{"id": self.count + n, "sender": f"account-{(self.count + n) % 7}"} for n in range(5)]
        self.count += len(documents)
        Ingestion(store, spec, clock=None).load("test", enumerate(documents, start=1))

    def stored(self) -> set[int]:
        with self.server.connect() as connection:
            return {row[0] for row in connection.execute("SELECT DISTINCT version FROM large").fetchall()}

    def read(self) -> set[int]:
        with derive.open(self.data, source=self.folder / "flow.yaml") as opened:
            return set(opened.collection("acme/large").latest().to_arrow().column("version").to_pylist())

    @contextmanager
    def running(self, *arguments: str, out: str) -> Iterator[Flowctl]:
        with (self.folder / out).open("wb") as stream:
            command = [*arguments, "--source", str(self.folder / "flow.yaml")]
            process = Flowctl(command, stdout=stream, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


async def observe(acme: Acme, coordinator: Coordinator, end: Callable[[], bool]) -> None:
    """Ingest, and look at every reader again and again, until all have come to the second version."""
    settings = {"statement_timeout": "60s", "transaction_isolation": "serializable"}
    client, follower = Client(coordinator, **settings), Client(coordinator, **settings)
    await client('CREATE MATERIALIZED VIEW m AS SELECT sender, version FROM "acme/large"')
    await follower("BEGIN")
    await follower("DECLARE c CURSOR FOR SUBSCRIBE m WITH (PROGRESS)")
    last: dict[str, int] = {}
    subscribed: Counter[str] = Counter()
    deadline = time.monotonic() + 200
    while not end() or set(last.values()) != {2}:
        assert time.monotonic() < deadline, last
        await asyncio.to_thread(acme.ingest, coordinator.store)
        at: str | None = None
        for clock, is_progress, diff, *row in await follower("FETCH ALL c WITH (timeout = '100ms')"):
            if clock != at:
                assert len(+subscribed) <= 1, (at, subscribed)
            at = clock
            if is_progress == "f":
                subscribed[str(row[1])] += int(str(diff))
        seen: dict[str, list[tuple[str | None, ...]]] = {
            "collection": await client('SELECT DISTINCT version FROM "acme/large"'),
            "view": await client("SELECT DISTINCT version FROM m"),
            "both": await client('SELECT version FROM "acme/sent" UNION SELECT version FROM "acme/large"'),
            "endpoint": [(str(version),) for version in await asyncio.to_thread(acme.stored)],
            "python": [(str(version),) for version in await asyncio.to_thread(acme.read)],
        }
        seen["subscription"] = [(version,) for version in +subscribed]
        for name, rows in seen.items():
            assert len(rows) <= 1, (name, rows)
            for (version,) in rows:
                assert int(str(version)) >= last.get(name, 1), name
                last[name] = int(str(version))


@pytest.mark.torture
def test_all_readers_see_one_version_at_each_time(tmp_path: Path) -> None:
    with postgres() as server:
        acme = Acme(tmp_path, server)
        with closing(Store(acme.data)) as store:
            acme.ingest(store)
        assert flowctl(tmp_path, "run", "--until-idle")[0] == 0
        old = load(tmp_path / "flow.yaml")
        with acme.running("collections", "read", "--collection", "acme/large", "--follow", out="followed") as follow:
            acme.write(2)

            async def work() -> None:
                coordinator = Coordinator(acme.data, old)
                coordinator.own()
                try:
                    with acme.running("run", "--shadow", out="told") as run:
                        await observe(acme, coordinator, lambda: "is in force" in (tmp_path / "told").read_text())
                        assert run.poll() is None
                finally:
                    await coordinator.close()

            asyncio.run(work())
            assert follow.wait(60) == 1
        followed = (tmp_path / "followed").read_text()
        assert "was replaced at" in followed
        assert {json.loads(line)["version"] for line in followed.splitlines() if line.startswith("{")} == {1}
        with server.connect() as connection:
            assert connection.execute("SELECT count(*) FROM large").fetchall() == [(7,)]
