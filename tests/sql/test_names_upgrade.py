"""Names of format 10, in `sql.db`, move into the metadata database, wherever a COMMIT or the upgrade was killed."""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import signal
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import orjson
import pytest
from patience import PATIENCE_SECONDS
from sql_world import Client

from derive import failpoint
from derive.errors import StorageError
from derive.sql.coordinator import Coordinator
from derive.storage.store import Store

FORMAT = Path(__file__).with_name("formats") / "10.tar.xz"
POINTS = ("upgrade.fenced", "metadata.committing", "metadata.committed", "upgrade.removing")

PROCESSES = multiprocessing.get_context("forkserver")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folders of format 10, as `names_history.py` describes them."""
    folder = tmp_path_factory.mktemp("names")
    with tarfile.open(FORMAT) as packed:
        packed.extractall(folder, filter="data")
    yield folder
    shutil.rmtree(folder)


def upgraded(data: Path) -> dict[str, list[list[Any]]]:
    """Upgrade a data folder, and return its names and rows; all of them fit one another."""

    async def read() -> dict[str, list[list[Any]]]:
        coordinator = Coordinator(data, None)
        coordinator.own()
        client = Client(coordinator)
        rows = {}
        for name, kind in await client("SHOW OBJECTS"):
            is_read = kind != "source"
            rows[f"{kind} {name}"] = sorted(map(list, await client(f"SELECT * FROM {name}"))) if is_read else []
        stored = {table.name for table in coordinator.store.tables.all()}
        items = coordinator.objects.items.values()
        assert stored == {f"sql/public/{item.name}" for item in items if item.is_stored} | {
            f"sql@position/public/{item.name}" for item in items if item.position is not None
        }
        assert {item.id for item in items if item.is_stored} <= {table.id for table in coordinator.store.tables.all()}
        await client("CREATE TABLE another AS SELECT 1 AS a")
        assert await client("SELECT a FROM another") == [("1",)]
        await coordinator.close()
        return rows

    rows = asyncio.run(read())
    assert not list(data.glob("sql.db*"))
    return rows


@pytest.mark.parametrize("some", ["prepared", pytest.param("all", marks=pytest.mark.torture)])
def test_names_of_format_10_are_upgraded_unchanged(some: str, folders: Path) -> None:
    """L1: a commit that was killed has happened or not, as format 10 read it."""
    seen = orjson.loads((folders / "seen.json").read_bytes())
    chosen = {name: rows for name, rows in seen.items() if some == "all" or _is_prepared(folders / name)}
    assert len({orjson.dumps(rows) for rows in chosen.values()}) == 2
    for name, rows in chosen.items():
        assert upgraded(shutil.copytree(folders / name, folders / "copy")) == rows, name
        shutil.rmtree(folders / "copy")


def test_replicas_of_format_10_are_upgraded(folders: Path) -> None:
    with closing(Store(shutil.copytree(folders / "replica", folders / "copy"))) as store:
        assert store.sql_catalog.replicas() == [("blue", "127.0.0.1:9")]
    shutil.rmtree(folders / "copy")


def _open(data: Path, armed: str) -> None:
    failpoint.arm(armed)
    Store(data).close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("point", POINTS)
def test_killed_upgrade_is_completed_by_the_next_start(point: str, folders: Path) -> None:
    seen = orjson.loads((folders / "seen.json").read_bytes())
    name = next(name for name, rows in seen.items() if "table bak" in rows and _is_prepared(folders / name))
    data = shutil.copytree(folders / name, folders / "copy")
    process = PROCESSES.Process(target=_open, args=(data, point))
    process.start()
    process.join(PATIENCE_SECONDS)
    assert process.exitcode == -signal.SIGKILL
    assert (data / "sql.db").exists()
    assert upgraded(data) == seen[name]
    shutil.rmtree(data)


def _is_prepared(data: Path) -> bool:
    with closing(apsw.Connection(str(data / "sql.db"))) as database:
        return bool(database.execute("SELECT count(*) FROM prepared").get)


def test_an_upgrade_without_the_names_of_its_tables_is_refused(folders: Path) -> None:
    data = shutil.copytree(folders / "begun", folders / "copy")
    for path in data.glob("sql.db*"):
        path.rename(data / f"away-{path.name}")
    with pytest.raises(StorageError, match=r"sql\.db is missing, and the folder has 4 tables of SQL"):
        Store(data)
    for path in data.glob("away-*"):
        path.rename(data / path.name.removeprefix("away-"))
    assert "table old" in upgraded(data)
    shutil.rmtree(data)


def test_an_upgrade_with_an_empty_database_of_names_is_refused(folders: Path) -> None:
    """A copy of `sql.db` without its -wal file may have no tables."""
    data = shutil.copytree(folders / "begun", folders / "copy")
    for path in data.glob("sql.db*"):
        path.unlink()
    (data / "sql.db").touch()
    with pytest.raises(StorageError, match=r"sql\.db has no tables, and the folder has 4 tables of SQL"):
        Store(data)
    assert (data / "sql.db").exists()
    shutil.rmtree(data)


def test_the_server_of_an_older_version_is_fenced_by_the_upgrade(folders: Path) -> None:
    data = shutil.copytree(folders / "begun", folders / "copy")
    with closing(apsw.Connection(str(data / "sql.db"))) as names:  # as an older server has it open
        epoch = names.pragma("user_version")
        Store(data).close()
        assert names.pragma("user_version") > epoch
    shutil.rmtree(data)
