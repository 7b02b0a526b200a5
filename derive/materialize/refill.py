"""Refills: how long a binding that starts over is stored beside its rows, and how others find out that it is.

A connector that refills says which bindings of a materialization it stores beside their rows. Such a refill is complete
once it is as far as the rows were that it replaces, so that readers never see less than before. The moment does not
matter for what rows come to be, as checkpoints name the rows that they are about.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import orjson

from derive.durable import make_folders
from derive.materialize.reset_marker import Restart, binding_of, clocks_of
from derive.protocol.collection import InputSpec
from derive.shard.state import task_folder
from derive.storage.metadata.descriptions import TaskState
from derive.time.frontier import BEGINNING

_NAME = "refills"


def refill_limit(spec: InputSpec, restart: Restart, state: TaskState | None, present: int) -> int:
    """Return the clock up to which a binding has to be stored before its refill is complete.

    Args:
        spec: its input.
        restart: the last reset.
        state: how far the materialization is; None if it has never run.
        present: a clock that its source is known to reach, for a binding of which nobody knows how far its rows are.
    """
    key, former = spec.state_key, clocks_of(state) if state else {}
    former.pop(key, None)
    clocks = [
        clock
        for other, (source, clock) in [*restart.ends.items(), *former.items()]
        if source == spec.source and binding_of(other) == binding_of(key)
    ]
    return max(clocks, default=present)


def note_refills(root: Path, task: str, limits: Mapping[str, int]) -> None:
    """Tell other processes which bindings are being refilled.

    Args:
        root: the data folder.
        task: the materialization.
        limits: for each binding (by state key), the clock up to which it has to be stored.
    """
    folder = task_folder(root, task)
    if limits == read_refills(root, task):
        return
    make_folders(folder)
    temporary = folder / f"{_NAME}.new"
    temporary.write_bytes(orjson.dumps(dict(limits)))
    temporary.replace(folder / _NAME)


def read_refills(root: Path, task: str) -> dict[str, int]:
    """Return what `note_refills` has told: for each binding (by state key), the clock up to which it has to be stored.

    After a crash it may be out of date until the materialization runs again.
    """
    try:
        limits: dict[str, int] = orjson.loads((task_folder(root, task) / _NAME).read_bytes())
    except FileNotFoundError:
        return {}
    return {key: max(limit, BEGINNING) for key, limit in limits.items()}
