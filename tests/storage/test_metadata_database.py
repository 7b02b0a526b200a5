"""The connection to the metadata database, which the threads of a process share."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread

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
