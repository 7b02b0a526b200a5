"""Readers of every kind while shadows replace what they read, under live ingestion and kills: each sees one version.

The scene is AcmeBank. A materialization into PostgreSQL, a materialized view and a SUBSCRIBE of the SQL server, a reader
in Python, and a follower read derivations in SQL and TypeScript, one of which reads itself. `flowctl run --shadow` brings
an edit and its reverse into force in turns, and is killed once in each turn. Every document names the version that
derived it: in the edited version, amounts and balances of senders have a fraction of 0.125, and balances belong to
clients instead of accounts.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg
import pytest
from checkout import REPOSITORY
from example_script import import_script
from forked_flowctl import BARE, Flowctl, flowctl
from patience import PATIENCE_SECONDS
from postgres_server import server

import derive
from derive.catalog import load_without_tests
from derive.contents.reads import ReadOptions, read_rows
from derive.document.clock import format_rfc3339
from derive.protocol.specs import CatalogSpec
from derive.storage.ingest import Ingestion
from derive.storage.store import Store

EDITS = {
    "debitSender.sql": [("VALUES ($sender, 1000)", "VALUES ($sender, 100.125)")],
    "transfer-outcomes.flow.yaml": [("1000 + $amount", "100.125 + $amount")],
    "last-large-send.flow.yaml": [("$recipient, $amount WHERE", "$recipient, $amount + 0.125 AS amount WHERE")],
    "balances.ts": [
        ("user: sender", "user: sender.replace('account', 'client')"),
        ("user: recipient", "user: recipient.replace('account', 'client')"),
    ],
}
TABLES = {
    "outcomes": "acmeBank/transfer-outcomes",
    "balances": "acmeBank/balances",
    "large": "acmeBank/last-large-send",
}
MEMBERS = tuple(TABLES.values())
BINDINGS = ", ".join(  # the tables are refilled one after the other
    f"{{source: {source}, resource: {{table: {table}}}, priority: {len(table)}}}" for table, source in TABLES.items()
)
SCENE = f"""
import: [flow.yaml]
materializations:
  acmeBank/stored:
    endpoint: {{connector: {{image: materialize-postgres, config: CONFIG}}}}
    bindings: [{BINDINGS}]
"""
ROWS = """
    SELECT 'outcomes' AS kind, sender_balance * 4 <> floor(sender_balance * 4) AS is_edited, 0 AS money FROM {outcomes}
    UNION ALL SELECT 'balances', "user" LIKE 'client-%', balance FROM {balances}
    UNION ALL SELECT 'large', amount * 4 <> floor(amount * 4), 0 FROM {large}
"""
GROUPED = "SELECT kind, is_edited, count(*), sum(money) FROM ({rows}) AS r GROUP BY kind, is_edited"
OF_COLLECTIONS = GROUPED.format(rows=ROWS.format(**{table: f'"{source}"' for table, source in TABLES.items()}))
OF_TABLES = GROUPED.format(rows=ROWS.format(**{table: table for table in TABLES}))
TICK = 1_000_000
ENVIRONMENT = {**BARE, "PATH": os.environ["PATH"]}


class Bank:
    """A copy of AcmeBank, which is edited if the number of its version is even."""

    def __init__(self, folder: Path) -> None:
        shutil.copytree(REPOSITORY / "examples" / "acmebank", folder)
        self.folder, self.data, self.source = folder, folder / ".flow", folder / "scene.flow.yaml"
        self.schema = f"bank_{uuid.uuid4().hex}"
        self.source.write_text(SCENE.replace("CONFIG", json.dumps(server().config | {"schema": self.schema})))
        self.version = 1
        self._originals = {name: (folder / name).read_text() for name in EDITS}
        begin, every = datetime(2024, 1, 1, tzinfo=UTC), timedelta(seconds=1)
        generate = import_script("acmebank/generate.py")
        self._transfers = generate.transfers(1_000_000, 7, seed=1, start=begin, every=every)

    @property
    def is_edited(self) -> bool:
        return self.version % 2 == 0

    def edit(self) -> None:
        """Write the next version of the catalog."""
        self.version += 1
        for name, edits in EDITS.items():
            text = self._originals[name]
            for old, new in edits if self.is_edited else ():
                assert old in text
                text = text.replace(old, new)
            (self.folder / name).write_text(text)

    def catalog(self) -> CatalogSpec:
        return load_without_tests(self.source)

    def ingest(self, store: Store, count: int = 5) -> None:
        documents = [{key: each[key] for key in each if key != "at"} for each in islice(self._transfers, count)]
        spec = self.catalog().collections["acmeBank/transfers"]
        Ingestion(store, spec).load("test", enumerate(documents, start=1))

    def tables(self) -> psycopg.Connection[Any]:
        """A connection to PostgreSQL."""
        return server().connect(options=f"-c search_path={self.schema}")

    def flowctl(self, *arguments: str) -> str:
        status, out, err = flowctl(self.folder, *arguments, "--source", str(self.source), env=ENVIRONMENT)
        assert status == 0, err
        return out

    @contextmanager
    def running(self, *arguments: str, name: str, failpoint: str = "") -> Iterator[Flowctl]:
        """A command, whose output is in files of this name."""
        out, err = (self.folder / f"{name}.{stream}" for stream in ("out", "err"))
        with out.open("wb") as stdout, err.open("wb") as stderr:
            command = [*arguments, "--source", str(self.source)]
            environment = ENVIRONMENT | {"FLOW_FAILPOINT": failpoint}
            process = Flowctl(command, stdout=stdout, stderr=stderr, env=environment)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()

    @contextmanager
    def serving(self) -> Iterator[int]:
        """The SQL server, which listens at a port."""
        with self.running("sql", "serve", "--listen", "127.0.0.1:0", "--retention", "1h", name="serve") as process:
            while not (address := (self.folder / "serve.out").read_text().partition("\n")[0]):
                assert process.poll() is None, (self.folder / "serve.err").read_text()
                time.sleep(0.02)
            yield int(address.rpartition(":")[2])


def connect(port: int) -> psycopg.Connection[Any]:
    settings = "-c statement_timeout=60s -c default_transaction_isolation=serializable"
    address = f"host=127.0.0.1 port={port} user=flow dbname=flow"
    return psycopg.connect(f"{address} options='{settings}'", autocommit=True, prepare_threshold=None)


class Readers:
    """Readers of every kind.

    Attributes:
        last: the last version that each reader saw: whether it is the edited version.
    """

    def __init__(self, bank: Bank, store: Store, port: int) -> None:
        self._bank, self._store = bank, store
        self._client, self._subscriber, self._tables = connect(port), connect(port), bank.tables()
        self._client.execute(f"CREATE MATERIALIZED VIEW versions AS {OF_COLLECTIONS}".encode())
        self._subscriber.execute("BEGIN")
        self._subscriber.execute("DECLARE c CURSOR FOR SUBSCRIBE versions WITH (PROGRESS)")
        self._subscribed: Counter[tuple[Any, ...]] = Counter()
        self._at = 0
        self.last: dict[str, bool] = {}

    def close(self) -> None:
        for connection in (self._client, self._subscriber, self._tables):
            connection.close()

    def look(self) -> None:
        """Ingest, and let every reader read once: each sees one version, and none returns to the former version."""
        self._bank.ingest(self._store)
        self._follow()
        self._note("collections", self.query(OF_COLLECTIONS))
        self._note("view", self.query("SELECT * FROM versions"))
        self._note("tables", self._tables.execute(OF_TABLES.encode()).fetchall())
        with derive.open(self._bank.data, source=self._bank.source) as opened:
            users = opened.collection("acmeBank/balances").latest().to_arrow().column("user").to_pylist()
        self._note("python", [("balances", user.startswith("client-"), 1, 0) for user in users])

    def query(self, query: str) -> list[tuple[Any, ...]]:
        return self._client.execute(query.encode()).fetchall()

    def _follow(self) -> None:
        """Apply the news of the subscription."""
        for at, is_progress, diff, *row in self._subscriber.execute("FETCH ALL c WITH (timeout = '100ms')"):
            if at != self._at:  # within a tick, the documents of a transfer may have different times
                is_tick = int(at) // TICK > int(self._at) // TICK
                self._note("subscription", list((+self._subscribed).elements()), is_tick=is_tick)
            self._at = at
            if not is_progress:
                self._subscribed[tuple(row)] += diff

    def _note(self, name: str, rows: Sequence[tuple[Any, ...]], *, is_tick: bool = True) -> None:
        versions = {is_edited for _, is_edited, *_ in rows}
        assert len(versions) <= 1, (name, rows)
        if is_tick:  # a transfer neither makes nor loses money
            assert not any(money for *_, money in rows), (name, rows)
        for is_edited in versions:
            assert is_edited in (self.last.get(name, is_edited), self._bank.is_edited), name
            self.last[name] = is_edited

    def have_turned(self) -> bool:
        return set(self.last.values()) == {self._bank.is_edited}


def turn(bank: Bank, readers: Readers, store: Store, failpoint: str) -> None:
    """Bring another version into force, in a run that is killed at the failpoint and in another run."""
    before = min(map(store.upper, MEMBERS)) - 1
    former = [readers.query(f'SELECT * FROM "{name}" AS OF {before}') for name in MEMBERS]
    deadline = time.monotonic() + PATIENCE_SECONDS
    follow = ("collections", "read", "--collection", "acmeBank/last-large-send", "--follow")
    with bank.running(*follow, name="follow") as follower:
        while not (bank.folder / "follow.out").stat().st_size:  # it has read the catalog
            assert follower.poll() is None, (bank.folder / "follow.err").read_text()
            time.sleep(0.02)
        bank.edit()
        with bank.running("run", "--shadow", name="killed", failpoint=failpoint) as run:
            while run.poll() is None:
                assert time.monotonic() < deadline, f"{failpoint} is not reached"
                readers.look()
            assert run.returncode == -signal.SIGKILL, (bank.folder / "killed.err").read_text()
        told = bank.folder / "run.err"
        with bank.running("run", "--shadow", name="run") as run:
            while "running " not in told.read_text() or not readers.have_turned():
                assert time.monotonic() < deadline, readers.last
                assert run.poll() is None, told.read_text()
                readers.look()
        assert run.returncode == 0, told.read_text()
        assert follower.wait(PATIENCE_SECONDS) == 1
    assert "was replaced at" in (bank.folder / "follow.err").read_text()
    followed = map(json.loads, (bank.folder / "follow.out").read_text().splitlines())
    assert {each["amount"] % 0.25 > 0 for each in followed} == {not bank.is_edited}

    (at,) = {store.history.versions(name)[-1].begins for name in MEMBERS}
    assert [readers.query(f'SELECT * FROM "{name}" AS OF {before}') for name in MEMBERS] == former
    for time_, version in ((at - 1, not bank.is_edited), (at, bank.is_edited)):
        for query in (OF_COLLECTIONS, "SELECT * FROM versions"):
            assert {row[1] for row in readers.query(f"{query} AS OF {time_}")} == {version}


def rows_of(store: Store, catalog: CatalogSpec, name: str) -> list[tuple[int, int, bytes, str]]:
    parts = read_rows(store, catalog.collections[name], ReadOptions())
    return [row for rows in parts for row in rows.tuples()]


def require_fresh(bank: Bank) -> None:
    """Require the documents, with their times, of a folder in which only the present version ever ran."""
    catalog, fresh = bank.catalog(), bank.folder / "fresh"
    with closing(Store(bank.data)) as store, closing(Store(fresh)) as other:
        documents = [
            json.loads(text) | {"at": format_rfc3339(clock)}
            for clock, _, _, text in rows_of(store, catalog, "acmeBank/transfers")
        ]
        spec = catalog.collections["acmeBank/transfers"]
        Ingestion(other, spec, clock="/at").load("test", enumerate(documents, start=1))
        bank.flowctl("run", "--until-idle", "--data", str(fresh), *(f"--task={name}" for name in catalog.derivations))
        for name in catalog.derivations:
            assert rows_of(store, catalog, name) == rows_of(other, catalog, name), name
    with bank.tables() as connection:
        for table, name in TABLES.items():
            lines = bank.flowctl("collections", "read", "--reduce", "--collection", name).splitlines()
            stored = connection.execute(f"SELECT flow_document::text FROM {table}".encode()).fetchall()
            assert sorted(json.dumps(json.loads(text), sort_keys=True) for (text,) in stored) == sorted(
                json.dumps(json.loads(line), sort_keys=True) for line in lines
            )


NAMED = ("swap.committing", "swap.committed", "swap.applied", "refill.applied", "refill.completing", "refill.completed")
COMMITS = tuple(
    f"{point}:{number}"
    for point in ("metadata.committing", "metadata.committed", "materialize.committing", "materialize.committed")
    for number in (1, 2, 3, 5, 8, 13, 21, 34, 55)
)
EVERY = NAMED + COMMITS


@pytest.mark.deno
@pytest.mark.torture  # test_shadow_kills.py kills swaps, and readers in test_swapped_collections.py see one version
@pytest.mark.parametrize("failpoints", [EVERY[at : at + 3] for at in range(0, len(EVERY), 3)], ids=EVERY[::3])
def test_readers_see_one_version_while_killed_runs_swap_it(failpoints: Sequence[str], tmp_path: Path) -> None:
    bank = Bank(tmp_path / "bank")
    with closing(Store(bank.data)) as store:
        bank.ingest(store, 200)
        bank.flowctl("run", "--until-idle")
        with bank.serving() as port, closing(Readers(bank, store, port)) as readers:
            for failpoint in failpoints:
                turn(bank, readers, store, failpoint)
    bank.flowctl("run", "--until-idle")
    require_fresh(bank)
