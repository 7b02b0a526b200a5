"""Wherever a process is killed in a COMMIT that defines and writes, all of it has happened, or nothing."""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from patience import PATIENCE_SECONDS
from sql_world import Client

from derive import failpoint
from derive.sql.coordinator import Coordinator

BEFORE = (
    "CREATE TABLE t (a int)",
    "INSERT INTO t VALUES (1)",
    "CREATE TABLE gone (a int)",
    "CREATE TABLE old (a int)",
    "INSERT INTO old VALUES (7)",
    "CREATE TABLE wide (a int, b int, c int)",
    "INSERT INTO wide VALUES (1, 2, 3)",
)
BLOCKS = {
    "names": ("CREATE TABLE u (a int)", "ALTER TABLE old RENAME TO new", "DROP TABLE gone"),
    "new rows": ("CREATE TABLE u AS SELECT 5 AS a", "CREATE MATERIALIZED VIEW m AS SELECT sum(a) AS a FROM u"),
    "all": (
        "CREATE TABLE u (a int)",
        "INSERT INTO u VALUES (5)",
        "INSERT INTO t VALUES (2)",
        "CREATE MATERIALIZED VIEW m AS SELECT sum(a) AS a FROM t",
        "INSERT INTO gone VALUES (3)",
        "DROP TABLE gone",
        "CREATE TABLE gone (a text)",
        "ALTER TABLE old RENAME TO new",
    ),
    "places": (
        "INSERT INTO t VALUES (3)",
        "CREATE TABLE tmp AS SELECT 9 AS a",
        "ALTER TABLE t RENAME TO bak",
        "ALTER TABLE tmp RENAME TO t",
        "ALTER TABLE old RENAME TO tmp",
        "ALTER TABLE gone RENAME TO old",
        "ALTER TABLE tmp RENAME TO gone",
        "DROP TABLE bak",
    ),
    "columns": (
        "ALTER TABLE old ADD b int DEFAULT 5",
        "INSERT INTO old VALUES (8)",
        "ALTER TABLE wide RENAME b TO d",
        "ALTER TABLE wide DROP c",
        "ALTER TABLE t ADD b int",
    ),
    "a column": ("ALTER TABLE t ADD b int", "INSERT INTO old VALUES (8)"),
}
POINTS = ("metadata.committing", "metadata.committed")

PROCESSES = multiprocessing.get_context("forkserver")


async def _run(data: Path, texts: Sequence[str], armed: str | None = None) -> None:
    """Run statements, the last one with a failpoint."""
    coordinator = Coordinator(data, None)
    client = Client(coordinator)
    for number, text in enumerate(texts):
        if number == len(texts) - 1 and armed:
            failpoint.arm(armed)
        await client(text)
    await coordinator.close()


def _commit(data: Path, texts: Sequence[str], armed: str) -> None:
    asyncio.run(_run(data, ["BEGIN", *texts, "COMMIT"], armed))


async def _look(data: Path, *, is_owner: bool) -> dict[str, list[tuple[str | None, ...]]]:
    """All relations and their rows."""
    coordinator = Coordinator(data, None)
    if is_owner:
        coordinator.own()
    client = Client(coordinator)
    rows = {
        str(name): sorted(await client(f'SELECT * FROM "{name}"')) if kind == "table" else []
        for name, kind in await client("SHOW OBJECTS")
    }
    if is_owner:
        tables = {table.name for table in coordinator.store.tables.all()}
        assert tables == {f"sql/public/{name}" for name in rows}
        await client.script("CREATE TABLE another (a int); DROP TABLE another")
    await coordinator.close()
    return rows


@pytest.mark.sampled(1)
@pytest.mark.parametrize("block", BLOCKS)
def test_a_kill_in_a_commit_leaves_all_or_nothing(block: str, tmp_path: Path) -> None:
    asyncio.run(_run(tmp_path / "template", BEFORE))
    before = asyncio.run(_look(tmp_path / "template", is_owner=True))
    asyncio.run(_run(shutil.copytree(tmp_path / "template", tmp_path / "done"), ["BEGIN", *BLOCKS[block], "COMMIT"]))
    after = asyncio.run(_look(tmp_path / "done", is_owner=True))
    assert before != after

    for point in POINTS:
        outcomes: list[bool] = []
        while True not in outcomes:
            times = len(outcomes) + 1
            data = shutil.copytree(tmp_path / "template", tmp_path / f"{point}-{times}")
            process = PROCESSES.Process(target=_commit, args=(data, BLOCKS[block], f"{point}:{times}"))
            process.start()
            process.join(PATIENCE_SECONDS)
            assert process.exitcode in {0, -signal.SIGKILL}
            seen = asyncio.run(_look(data, is_owner=False))
            left = asyncio.run(_look(data, is_owner=True))
            assert left in (before, after)
            assert seen == left
            outcomes.append(left == after)
            shutil.rmtree(data)
        assert point == "metadata.committed" or outcomes[0] is False
