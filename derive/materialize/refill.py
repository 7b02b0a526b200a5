"""Refills: the progress that completes the refill of a binding, and the record of running refills.

A connector that refills returns the bindings of a materialization that it stores beside their rows. A refill is
complete when its progress reaches that of the rows it replaces, so that readers never see less than before. The moment
of the replacement does not change the resulting rows, because checkpoints contain the identity of their rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import orjson

from derive.durable import make_folders
from derive.materialize.reset_marker import ResetMarker, binding_of, clocks_of
from derive.protocol.collection import InputSpec
from derive.shard.state import task_folder
from derive.storage.metadata.descriptions import TaskState
from derive.time.frontier import BEGINNING

_NAME = "refills"


def refill_limit(spec: InputSpec, restart: ResetMarker, state: TaskState | None, present: int) -> int:
    """Return the timestamp up to which a binding must be stored before its refill is complete.

    Args:
        spec: input of the binding.
        restart: the last reset.
        state: progress of the materialization; None if it has never run.
        present: timestamp that the binding's source is known to reach, for rows whose progress is unknown.
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
    """Record for other processes the bindings that are being refilled.

    Args:
        root: the data folder.
        task: name of the materialization.
        limits: for each binding (by state key), the timestamp up to which it must be stored.
    """
    folder = task_folder(root, task)
    if limits == read_refills(root, task):
        return
    make_folders(folder)
    temporary = folder / f"{_NAME}.new"
    temporary.write_bytes(orjson.dumps(dict(limits)))
    temporary.replace(folder / _NAME)


def read_refills(root: Path, task: str) -> dict[str, int]:
    """Return the record of `note_refills`: timestamps up to which bindings must be stored, by state key.

    After a crash it may be outdated until the materialization runs again.
    """
    try:
        limits: dict[str, int] = orjson.loads((task_folder(root, task) / _NAME).read_bytes())
    except FileNotFoundError:
        return {}
    return {key: max(limit, BEGINNING) for key, limit in limits.items()}
