"""Restarts: the last reset of a materialization has a name, which its endpoint is held against.

An endpoint knows nothing of resets, and has the last word on how far it is. So a reset leaves a name in the task's
folder, and a shard whose endpoint has seen another one begins again: it deletes what it has stored, key by key, and
then stores everything anew. Keys that its sources do not have any more stay.

The metadata commit of a reset decides whether it counts, so the name is announced before that (`announce`) and counts
after it (`settle`): by the reset itself, or by whoever finds what one that was killed has left. A task that has stored
nothing since it was announced, as the metadata database says, was reset; else that commit never came.

How far that is, the endpoint need not know: where shards were split, and there is one again, it finds what there was
before. So a reset also leaves how far the bindings were.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from derive.durable import make_folders, sync
from derive.shard.state import task_folder
from derive.storage.metadata.descriptions import TaskState
from derive.time.frontier import BEGINNING

_NAME, _ANNOUNCED = "restart", "restart.announced"

KEPT = frozenset({_NAME, _ANNOUNCED})
"""Files of a materialization's folder that a reset leaves where they are."""


@dataclass(frozen=True, slots=True)
class Restart:
    """A reset.

    Attributes:
        name: of it; empty if there was none.
        ends: for each binding (by state key), its source and the clock below which everything had been stored.
    """

    name: str = ""
    ends: Mapping[str, tuple[str, int]] = field(default_factory=dict)


def clocks_of(state: TaskState) -> dict[str, tuple[str, int]]:
    """For each binding (by state key), its source and the clock below which everything is stored."""
    return {
        key: (place.source, max(state.positions[key] - place.offset, BEGINNING))
        for key, place in state.places.items()
        if key in state.positions
    }


def next_restart(root: Path, task: str, state: TaskState | None) -> Restart:
    """The restart of a materialization that is about to be reset.

    Args:
        root: the data folder.
        task: the materialization.
        state: how far it is; None if it has never run.
    """
    ends = dict(last_restart(root, task).ends)  # it may not have run since
    for key, (source, clock) in (clocks_of(state) if state else {}).items():
        former, before = ends.get(key, (source, clock))
        ends[key] = (source, max(clock, before) if former == source else clock)
    return Restart(str(uuid.uuid4()), ends)


def announce(root: Path, task: str, restart: Restart) -> None:
    """Say durably, before a materialization is reset, how it begins again once it is; see `settle`."""
    folder = task_folder(root, task)
    make_folders(folder)
    temporary = folder / f"{_NAME}.new"
    temporary.write_bytes(orjson.dumps({"name": restart.name, "ends": dict(restart.ends)}))
    sync(temporary)
    temporary.replace(folder / _ANNOUNCED)
    sync(folder)


def settle(root: Path, task: str, state: TaskState | None) -> None:
    """Have a restart that was announced count, durably, if the task was reset; and forget it, if it was not.

    Args:
        root: the data folder, under whose lock of epochs this is done: so no reset is under way.
        task: the materialization.
        state: how far it is; None if it has never run.
    """
    announced = task_folder(root, task) / _ANNOUNCED
    if not announced.exists():
        return
    if state is None or not state.positions:
        announced.replace(announced.with_name(_NAME))
    else:
        announced.unlink()
    sync(announced.parent)


def last_restart(root: Path, task: str) -> Restart:
    """The last reset of a materialization."""
    try:
        text = (task_folder(root, task) / _NAME).read_bytes()
    except FileNotFoundError:
        return Restart()
    if not text.startswith(b"{"):  # as it was written first
        return Restart(text.decode())
    value = orjson.loads(text)
    return Restart(value["name"], {key: (source, clock) for key, (source, clock) in value["ends"].items()})
