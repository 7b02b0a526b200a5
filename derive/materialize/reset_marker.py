"""Restarts: the last reset of a materialization has a name, which its endpoint is held against.

An endpoint knows nothing of resets, and has the last word on how far it is. So a reset leaves a name in the task's
folder, and a shard whose endpoint has seen another one begins again: it deletes what it has stored, key by key, and
then stores everything anew. Keys that its sources do not have any more stay.

The metadata commit of a reset decides whether it counts, so the name is announced before that (`announce`) and counts
after it (`settle`): by the reset itself, or by whoever finds what one that was killed has left. A task that has stored
nothing since it was announced, as the metadata database says, was reset; else that commit never came.

Where a reset is only about some bindings, as the sources of others were not reset, each of them has a name of its own.

How far that is, the endpoint need not know: where shards were split, and there is one again, it finds what there was
before. So a reset also leaves how far the bindings were.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
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
        parts: of bindings that have been reset alone since, by name (whatever their `backfill`), a name of that.
        keys: state keys of the bindings that it is about; empty if it is about all.
    """

    name: str = ""
    ends: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()

    def of(self, binding: str) -> str:
        """The name of the last reset of a binding, by its name; empty if there was none."""
        return self.parts.get(binding, self.name)


def clocks_of(state: TaskState) -> dict[str, tuple[str, int]]:
    """For each binding (by state key), its source and the clock below which everything is stored."""
    return {
        key: (place.source, max(state.positions[key] - place.offset, BEGINNING))
        for key, place in state.places.items()
        if key in state.positions
    }


def next_restart(
    root: Path,
    task: str,
    state: TaskState | None,
    keys: Collection[str] = (),
    uppers: Mapping[str, int] | None = None,
) -> Restart:
    """The restart of a materialization that is about to be reset.

    Args:
        root: the data folder.
        task: the materialization.
        state: how far it is; None if it has never run.
        keys: state keys of the bindings that are reset; none for all.
        uppers: of sources (by name) that may be other relations than those that were stored: the clock before which
            these have documents whose keys were stored of the former ones.
    """
    last = last_restart(root, task)
    ends = dict(last.ends)  # it may not have run since
    for key, (source, stored) in (clocks_of(state) if state else {}).items():
        if keys and key not in keys:
            continue
        clock = max(stored, (uppers or {}).get(source, BEGINNING))
        former, before = ends.get(key, (source, clock))
        ends[key] = (source, max(clock, before) if former == source else clock)
    name = str(uuid.uuid4())
    if not keys:
        return Restart(name, ends)
    parts = {**last.parts, **{binding_of(key): name for key in keys}}
    return Restart(last.name, ends, parts, tuple(sorted(keys)))


def binding_of(key: str) -> str:
    """The name of the binding of a state key, whatever its `backfill`."""
    name, _, backfill = key.rpartition(".v")
    return name if name and backfill.isdigit() else key


def announce(root: Path, task: str, restart: Restart) -> None:
    """Say durably, before a materialization is reset, how it begins again once it is; see `settle`."""
    folder = task_folder(root, task)
    make_folders(folder)
    temporary = folder / f"{_NAME}.new"
    parts = {"parts": dict(restart.parts), "keys": restart.keys}
    temporary.write_bytes(orjson.dumps({"name": restart.name, "ends": dict(restart.ends), **parts}))
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
    kept = state.positions if state is not None else {}
    if kept.keys().isdisjoint(_read(announced).keys or kept):
        announced.replace(announced.with_name(_NAME))
    else:
        announced.unlink()
    sync(announced.parent)


def last_restart(root: Path, task: str) -> Restart:
    """The last reset of a materialization."""
    try:
        return _read(task_folder(root, task) / _NAME)
    except FileNotFoundError:
        return Restart()


def _read(path: Path) -> Restart:
    text = path.read_bytes()
    if not text.startswith(b"{"):  # as it was written first
        return Restart(text.decode())
    value = orjson.loads(text)
    ends = {key: (source, clock) for key, (source, clock) in value["ends"].items()}
    return Restart(value["name"], ends, value.get("parts", {}), tuple(value.get("keys", ())))
