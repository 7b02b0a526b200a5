"""Facts about materializations that their endpoints do not store, in the metadata database.

A materialization has its rows and its checkpoints in its endpoint. The metadata has the rest, so that any machine can
run the materialization: the last reset, the refills in progress, and the data of shards that connectors let the runtime
keep. A fact is committed together with the change to which it belongs: the reset with the lost progress, and the data
of shards with the progress of the transaction.

Releases before format 13 had these facts in files of the data folder. The upgrade of the format moves the files of its
folder. The folder of another machine keeps its files until the materialization runs there, or is reset there. Commands
that only read, and backups, take the facts from these files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import orjson

from derive.storage.blobs import translated
from derive.storage.metadata.descriptions import MaterializationRecord, ShardData
from derive.storage.metadata.transaction import Transaction, insert_rows
from derive.storage.segments.partition import own_path


def read_record(db: Transaction, task: str) -> MaterializationRecord:
    """Return the record of a materialization; the record is empty if there is none."""
    row: Any = db.execute("SELECT restart, refills FROM materialization WHERE task = ?", (task,)).fetchone()
    kept: list[Any] = db.execute("SELECT number, flow, driver FROM shard_data WHERE task = ?", (task,)).fetchall()
    if row is None:
        return MaterializationRecord()
    restart, refills = row
    data = {number: ShardData(flow.encode(), driver.encode()) for number, flow, driver in kept}
    return MaterializationRecord(restart, orjson.loads(refills), data, is_stored=True)


def find_record(
    snapshot: Callable[[], AbstractContextManager[Transaction]], root: Path, task: str
) -> MaterializationRecord:
    """Return the record of a materialization, or the facts in the files of an earlier release, which are not stored.

    Args:
        snapshot: begins a read of the metadata.
        root: the data folder.
        task: name of the materialization.
    """
    with snapshot() as db:
        record = read_record(db, task)
        if record.is_stored:
            return record
        unrecorded = read_files(db, root, task)
    with snapshot() as db:  # another process may have recorded and removed the files while they were read
        record = read_record(db, task)
    return record if record.is_stored else unrecorded


def write_restart(db: Transaction, task: str, restart: str) -> None:
    """Record the last reset of a materialization, in the write transaction of the reset."""
    db.execute(
        "INSERT INTO materialization VALUES (?, ?, '{}') ON CONFLICT (task) DO UPDATE SET restart = excluded.restart",
        (task, restart),
    )


def write_refills(db: Transaction, task: str, limits: Mapping[str, int]) -> None:
    """Record the refills in progress: by state key, the timestamp up to which each binding must be stored."""
    text = orjson.dumps(dict(limits)).decode()
    db.execute("UPDATE materialization SET refills = ? WHERE task = ?", (text, task))


def write_kept(db: Transaction, task: str, kept: Mapping[int, ShardData]) -> None:
    """Replace the data of some shards, by their numbers."""
    insert_rows(
        db,
        "shard_data",
        [(task, number, data.flow.decode(), data.driver.decode()) for number, data in kept.items()],
        "ON CONFLICT (task, number) DO UPDATE SET flow = excluded.flow, driver = excluded.driver",
    )


def replace_kept(db: Transaction, task: str, kept: Mapping[int, ShardData]) -> None:
    """Replace the data of all shards, by their numbers."""
    db.execute("DELETE FROM shard_data WHERE task = ?", (task,))
    write_kept(db, task, kept)


def forget_progress(db: Transaction, task: str) -> None:
    """Delete the facts about a task that starts over, except its last reset."""
    db.execute("DELETE FROM shard_data WHERE task = ?", (task,))
    db.execute("UPDATE materialization SET refills = '{}' WHERE task = ?", (task,))


_RESTART, _REFILLS, _KEPT = "restart", "refills", "kept.json"
_ANNOUNCED = "restart.announced"
"""Names of the files of earlier releases."""


def adopt_every_file(db: Transaction, root: Path) -> list[str]:
    """Record the facts in the files of an earlier release; return the tasks with such files in a data folder."""
    names = [str(name) for (name,) in db.execute("SELECT name FROM task ORDER BY name").fetchall()]
    tasks = [task for task in names if next(_files(root, task), None) is not None]
    for task in tasks:
        adopt_files(db, root, task)
    return tasks


def adopt_files(db: Transaction, root: Path, task: str) -> None:
    """Record the facts in the files of an earlier release about a materialization, unless it has a record.

    Args:
        db: a write transaction.
        root: the data folder.
        task: name of the materialization.
    """
    if read_record(db, task).is_stored:
        return  # a killed process has left its files, which are outdated
    record = read_files(db, root, task)
    refills = orjson.dumps(dict(record.refills)).decode()
    db.execute("INSERT INTO materialization VALUES (?, ?, ?)", (task, record.restart, refills))
    write_kept(db, task, record.kept)


def read_files(db: Transaction, root: Path, task: str) -> MaterializationRecord:
    """Return the facts in the files of an earlier release about a materialization, which are not stored.

    An announced reset of an earlier epoch was committed if the bindings have no progress. No other announced reset can
    be committed any more, because earlier releases can no longer write the metadata.

    Args:
        db: a transaction.
        root: the data folder.
        task: name of the materialization.
    """
    folder = root / own_path("state", task)
    row: Any = db.execute("SELECT shards, epoch, positions FROM task WHERE name = ?", (task,)).fetchone()
    shards, epoch, positions = row or (0, 0, "{}")
    with translated(folder):
        restart = _announced(folder, epoch, orjson.loads(positions) if shards else {}) or _text(folder / _RESTART)
        refills = _text(folder / _REFILLS) if shards else ""
        kept = {number: data for number in range(shards) if (data := _kept(folder, number, shards)) is not None}
    return MaterializationRecord(restart, orjson.loads(refills or "{}"), kept)


def _announced(folder: Path, epoch: int, positions: Collection[str]) -> str:
    """Return the announced reset that was committed; empty if there is none.

    At most one was committed since the last run, and the others were refused: the reset of the most bindings counts.
    """
    committed: list[tuple[bool, int, str]] = []
    for file in folder.glob(f"{_ANNOUNCED}*"):
        begun = int(file.name.split("-")[1]) if "-" in file.name else 0
        if begun >= epoch:
            continue
        text = _text(file)
        keys = orjson.loads(text).get("keys", []) if text.startswith("{") else []
        if not (set(keys) or set(positions)) & set(positions):
            committed.append((not keys, len(keys), text))
    return max(committed, default=(False, 0, ""))[2]


def _kept(folder: Path, number: int, shards: int) -> ShardData | None:
    begin, end = -(-(number << 32) // shards), -(-((number + 1) << 32) // shards) - 1
    text = _text(folder / f"{begin:08x}-{end:08x}" / _KEPT)
    if not text:
        return None
    value = orjson.loads(text)
    return ShardData(value["flow"].encode(), value["driver"].encode())


def _text(file: Path) -> str:
    """Return the text of a file; empty if it does not exist."""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _files(root: Path, task: str) -> Iterator[Path]:
    """Yield the files of an earlier release about a materialization."""
    folder = root / own_path("state", task)
    yield from folder.glob(f"{_RESTART}*")
    yield from folder.glob(_REFILLS)
    yield from folder.glob(f"*-*/{_KEPT}")


def remove_adopted(root: Path, tasks: Collection[str]) -> None:
    """Remove the files of an earlier release, whose facts are recorded."""
    for task in tasks:
        for file in _files(root, task):
            with suppress(OSError):  # nothing reads the files any more
                file.unlink()
