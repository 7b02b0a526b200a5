"""The connection to the metadata database, which the threads of a process share."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from threading import Event, Thread
from typing import Any

import apsw

from derive.storage.metadata.database import Metadata


def test_connection_is_closed_after_its_last_use(tmp_path: Path) -> None:
    metadata = Metadata(tmp_path / "metadata.db")
    begun, values = Event(), []

    def read() -> None:
        numbers = "WITH RECURSIVE n(v) AS (SELECT 1 UNION ALL SELECT v + 1 FROM n LIMIT 1000000) SELECT sum(v) FROM n"
        with metadata.snapshot() as db:
            begun.set()
            values.append(db.execute(numbers).get)

    reading = Thread(target=read)
    reading.start()
    begun.wait(60)
    metadata.close()
    reading.join()
    assert values == [500000500000]


def schema_of(path: Path) -> list[tuple[str, str]]:
    with closing(apsw.Connection(str(path))) as db:
        rows: list[Any] = db.execute(
            "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name"
        ).fetchall()
        columns: list[Any] = db.execute("SELECT name, type FROM pragma_table_info('task')").fetchall()
    return [(name, "" if name == "task" else sql) for name, sql in rows] + columns


def test_first_databases_of_the_present_format_get_its_later_tables(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    Metadata(path).close()
    present = schema_of(path)
    with closing(apsw.Connection(str(path))) as db:
        db.execute("ALTER TABLE task DROP COLUMN home")
        for table in ("applied", "ingestion", "version", "shadow", "shadow_binding", "decision"):
            db.execute(f"DROP TABLE {table}")
    Metadata(path).close()
    assert schema_of(path) == present
