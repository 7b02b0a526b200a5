"""A server that was taken for dead and comes back, from outside."""

from __future__ import annotations

import signal
import time
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from test_sql_serve import serve

from derive.errors import FencedError
from derive.sql.catalog.items import Catalog
from derive.sql.catalog.replica_place import ReplicaPlace
from derive.sql.transactions.ownership import FILE
from derive.storage.store import Store

_PATIENCE_SECONDS = 120.0


def held(data: Path) -> dict[int, int]:
    with closing(Store(data, reading=True)) as store:
        return store.task_capabilities.dataflows("index")


def test_it_commits_nothing_and_ends(tmp_path: Path) -> None:
    data = tmp_path / ".flow"
    with serve(tmp_path) as first, psycopg.connect(first.address, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (a bigint)")
        connection.execute("CREATE INDEX t_a ON t (a)")
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not held(data):
            assert time.monotonic() < deadline
            connection.execute("SELECT pg_sleep(0.05)")
        first.process.send_signal(signal.SIGSTOP)
        (data / FILE).unlink()  # as of a file system that has given the lock away
        with serve(tmp_path) as second, psycopg.connect(second.address, autocommit=True) as other:
            other.execute("DROP INDEX t_a")
            while held(data):
                assert time.monotonic() < deadline
                other.execute("SELECT pg_sleep(0.05)")
            first.process.send_signal(signal.SIGCONT)

            assert first.process.wait(_PATIENCE_SECONDS) == 1
            with pytest.raises(psycopg.OperationalError):
                connection.execute("INSERT INTO t VALUES (1)")
            assert other.execute("SELECT count(*) FROM t").fetchall() == [(0,)]
            assert held(data) == {}


def test_it_changes_no_names(tmp_path: Path) -> None:
    old, new = Catalog(tmp_path), Catalog(tmp_path)
    old.begin(1)
    new.begin(2)
    with pytest.raises(FencedError, match="another flowctl has begun to serve SQL"):
        old.add_replica(ReplicaPlace("blue"))
    with pytest.raises(FencedError):
        old.begin(2)
    new.add_replica(ReplicaPlace("blue"))
    assert new.replicas() == [ReplicaPlace("blue")]
    old.close()
    new.close()
