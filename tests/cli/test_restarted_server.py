"""What a server with replicas finds when it is started again, from outside."""

from __future__ import annotations

import signal
import time
from contextlib import closing
from pathlib import Path

import apsw
import psycopg
from test_sql_serve import serve

from derive.compute.dataflow.database import NAME
from derive.sql.maintenance.instance_options import PROCESSES
from derive.sql.maintenance.instances import FOLDER
from derive.storage.store import Store
from derive.storage.task_log import recent_entries

_PATIENCE_SECONDS = 120.0


def begun_at(instance: Path) -> dict[int, int]:
    """The views and indexes that an instance has, and from when on it knows them."""
    try:
        with closing(apsw.Connection(str(instance / NAME), flags=apsw.SQLITE_OPEN_READONLY)) as database:
            rows = database.execute("SELECT id, since FROM dataflows").fetchall()
    except apsw.Error:  # it is only just being made
        return {}
    return {int(str(id_)): int(str(since)) for id_, since in rows}


def is_durable(data: Path, count: int) -> bool:
    """Whether all instances have so many indexes, and a server that begins asks for no more than they know."""
    with closing(Store(data, reading=True)) as store:
        held = store.task_capabilities.dataflows("index")
    instances = [begun_at(instance) for instance in (data / PROCESSES).iterdir()]
    return all(len(begun) == count and all(begun[id_] <= held[id_] for id_ in begun) for begun in instances)


def test_nothing_is_worked_out_anew_when_the_server_was_killed(tmp_path: Path) -> None:
    data, count = tmp_path / ".flow", 5
    with serve(tmp_path, "--replicas", "2") as served, psycopg.connect(served.address, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (a bigint)")
        for number in range(count):
            connection.execute("INSERT INTO t VALUES (%s)", (number,))
            connection.execute(f"CREATE VIEW v{number} AS SELECT a + {number} AS b FROM t")
            connection.execute(f"CREATE INDEX ON v{number} (b)")
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not is_durable(data, count):
            assert time.monotonic() < deadline
            connection.execute("SELECT pg_sleep(0.1)")
        served.stop(signal.SIGKILL)
    before = len(recent_entries(data, FOLDER))

    with serve(tmp_path, "--replicas", "2") as served, psycopg.connect(served.address, autocommit=True) as connection:
        for number in range(count):
            query = f"SELECT count(*) FROM v{number} WHERE b >= {number}"
            assert connection.execute(query).fetchall() == [(count,)]
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while len(welcomes := [entry for entry in recent_entries(data, FOLDER)[before:] if "rebuilt" in entry]) < 2:
            assert time.monotonic() < deadline
            connection.execute("SELECT pg_sleep(0.1)")
        assert [(entry["kept"], entry["rebuilt"], entry["dropped"]) for entry in welcomes] == [(count, 0, 0)] * 2
