"""Metadata of PostgreSQL behind a connection pooler: sessions are needed, and a pooler that shares them is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from fake_pooler import Pooler
from postgres_server import server

from derive.errors import StorageError
from derive.storage.metadata.place import Place, place_of, write_place
from derive.storage.metadata.postgres import PostgresMetadata, create

LEFT = """
SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND application_name LIKE 'flowctl %'
"""


@contextmanager
def pooled(*, shares: bool) -> Iterator[tuple[Place, Place]]:
    """A place behind a pooler, and the same place without it."""
    url = server().metadata_url
    pooler = Pooler(server().port, shares=shares)
    try:
        yield place_of(url.replace(f":{server().port}/", f":{pooler.port}/")), place_of(url)
    finally:
        pooler.close()


def test_pooler_that_shares_sessions_is_refused(tmp_path: Path) -> None:
    with pooled(shares=True) as (place, direct):
        with pytest.raises(StorageError, match="behind a connection pooler that shares sessions") as caught:
            create(place, 1000, lambda: "an identifier")
        assert "pool_mode = session" in str(caught.value.hint)
        create(direct, 1000, lambda: "an identifier")
        write_place(tmp_path, direct)
        with pytest.raises(StorageError, match="behind a connection pooler"):
            PostgresMetadata(tmp_path, place)
        with closing(PostgresMetadata(tmp_path, direct)) as metadata, metadata.snapshot() as db:
            assert db.execute("SELECT id FROM folder").get == "an identifier"


def test_pooler_that_shares_no_session_is_used(tmp_path: Path) -> None:
    with pooled(shares=False) as (place, direct):
        create(place, 1000, lambda: "an identifier")
        write_place(tmp_path, direct)
        with closing(PostgresMetadata(tmp_path, place)) as metadata:
            with metadata.transaction(wakes=True) as db:
                db.execute("UPDATE timeline SET clock = 7")
            with closing(PostgresMetadata(tmp_path, direct)) as other, other.snapshot() as db:
                assert db.execute("SELECT clock FROM timeline").get == 7


def test_refused_pooler_keeps_no_setting_and_no_lock() -> None:
    """Sessions of the pooler go to other clients."""
    with pooled(shares=True) as (place, _), server().connect() as connection:
        before = connection.execute(LEFT).fetchone()
        with pytest.raises(StorageError, match="behind a connection pooler"):
            create(place, 1000, lambda: "an identifier")
        assert connection.execute(LEFT).fetchone() == before
