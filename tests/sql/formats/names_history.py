"""Data folders of format 10 with SQL, whose names were in a database of their own, `sql.db`.

    PYTHONPATH=CHECKOUT:CHECKOUT/tests/adapter python tests/sql/formats/names_history.py

with a checkout of 27b14ed, the last commit of format 10, writes `tests/sql/formats/10.tar.xz`: a data folder for each
place at which a COMMIT that defines and writes can be killed, and in `seen.json` what that checkout reads in each.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import apsw
import orjson

from derive import failpoint
from derive.storage.store import Store

FORMAT = Path(__file__).with_name("10.tar.xz")
BEFORE = (
    "CREATE TABLE t (a int)",
    "INSERT INTO t VALUES (1)",
    "CREATE TABLE gone (a int)",
    "CREATE TABLE old (a int)",
    "INSERT INTO old VALUES (7)",
    "CREATE SOURCE c FROM LOAD GENERATOR COUNTER",
    "CREATE VIEW v AS SELECT a * 10 AS a FROM old",
    "CREATE INDEX v_a ON v (a)",
)
BLOCK = (
    "DROP VIEW v",
    "ALTER TABLE old ADD b int DEFAULT 5",
    "INSERT INTO t VALUES (2)",
    "CREATE TABLE tmp AS SELECT 9 AS a",
    "ALTER TABLE t RENAME TO bak",
    "ALTER TABLE tmp RENAME TO t",
    "CREATE MATERIALIZED VIEW m AS SELECT sum(a) AS a FROM bak",
    "DROP TABLE gone",
    "CREATE TABLE gone (b text)",
    "ALTER SOURCE c RENAME TO d",
)
"""Statements of the killed COMMIT."""

Rows = dict[str, list[list[Any]]]


async def work(data: Path, texts: Sequence[str], armed: str | None = None) -> None:
    """Run statements, the last one with a failpoint."""
    coordinator, client = opened(data)
    for number, text in enumerate(texts):
        if number == len(texts) - 1 and armed:
            failpoint.arm(armed)
        await client(text)
    await coordinator.close()


def opened(data: Path) -> tuple[Any, Any]:
    """A coordinator and a client of the checkout."""
    coordinator = import_module("derive.adapter.coordinator").Coordinator(data, None)
    return coordinator, import_module("sql_world").Client(coordinator)


def killed(data: Path, armed: str) -> None:
    asyncio.run(work(data, ["BEGIN", *BLOCK, "COMMIT"], armed))


async def read(data: Path) -> Rows:
    """Names and rows, as the next owner finds them; not of the source, whose rows depend on the time."""
    coordinator, client = opened(data)
    coordinator.own()
    kinds = {str(name): str(kind) for name, kind in await client("SHOW OBJECTS")}
    rows = {
        f"{kind} {name}": []
        if kind == "source"
        else [list(row) for row in sorted(await client(f"SELECT * FROM {name}"))]
        for name, kind in kinds.items()
    }
    await coordinator.close()
    return rows


def make(folder: Path) -> dict[str, Rows]:
    """Make the data folders, and return what is read in a copy of each."""
    processes = multiprocessing.get_context("forkserver")
    template = folder / "begun"
    asyncio.run(work(template, BEFORE))
    for point in ("metadata.committed", "names.committed"):
        status, times = -9, 0
        while status:
            times += 1
            data = shutil.copytree(template, folder / f"{point}-{times}")
            process = processes.Process(target=killed, args=(data, f"{point}:{times}"))
            process.start()
            process.join()
            status = process.exitcode or 0
            assert status in {0, -9}
    for data in sorted(folder.glob("metadata.committed-*")):  # the marker in a segment
        with closing(Store(shutil.copytree(data, folder / f"{data.name}-flushed"))) as store:
            store.tables.flush()
    seen, states = {}, []
    for data in sorted(folder.iterdir()):
        if (state := state_of(data)) in states:
            shutil.rmtree(data)
            continue
        states.append(state)
        copy = shutil.copytree(data, folder.with_name("copy"))
        seen[data.name] = asyncio.run(read(copy))
        shutil.rmtree(copy)
    return seen


def state_of(data: Path) -> list[Any]:
    """Return the names, the tables, and the place of the marker."""
    with (
        closing(apsw.Connection(str(data / "sql.db"))) as names,
        closing(apsw.Connection(str(data / "metadata.db"))) as db,
    ):
        return [
            names.execute("SELECT version, change FROM prepared").fetchall(),
            names.execute("SELECT * FROM item ORDER BY id").fetchall(),
            db.execute("SELECT id, name, columns, upper = 1 << 62 FROM collection ORDER BY id").fetchall(),
            db.execute("SELECT count(*) FROM segment WHERE collection = 'sql-catalog'").fetchall(),
            db.execute("SELECT DISTINCT collection FROM appended ORDER BY collection").fetchall(),
        ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folders = Path(name) / "folders"
        folders.mkdir()
        content = make(folders)
        for data in folders.iterdir():
            for kind in ("compute", "logs", "sql-views"):
                shutil.rmtree(data / kind, ignore_errors=True)
        replica = shutil.copytree(folders / "begun", folders / "replica")  # as a server adds one
        with closing(apsw.Connection(str(replica / "sql.db"))) as database:
            database.execute("INSERT INTO replica VALUES ('blue', '127.0.0.1:9')")
        (folders / "seen.json").write_bytes(orjson.dumps(content))
        with tarfile.open(FORMAT, "w:xz") as packed:
            for entry in sorted(folders.iterdir()):
                packed.add(entry, entry.name)
