"""Restarts: the last reset of a materialization, and refills of bindings that start over.

The progress of the endpoint is authoritative, but an endpoint does not know of resets. So a reset stores a name in the
task's folder. A shard whose endpoint has another name starts over. A connector that can refill stores the new rows
beside the old rows, and then replaces the old rows. With other connectors, the shard deletes the stored documents, key
by key, and then stores all documents again; rows of keys that the sources no longer have stay.

The metadata commit of a reset decides whether the reset happened. `announce` stores the name before the commit, and
`confirm` makes it valid after the commit; if the reset was killed, the next run calls `settle`. If the task then has no
progress, the commit happened; otherwise it did not.

No process waits for another. An announcement is a file of its own, whose name has the epoch of the task. The commit is
refused if the task has another epoch by then. So an announcement of an earlier epoch can be settled for ever, and an
announcement of the present epoch is left to its reset. A process that was stopped, and acts late, finds no file.

If a reset concerns only some bindings, because the sources of the other bindings were not reset, each reset binding
has a name of its own.

After shards were split and merged again, an endpoint may return an old checkpoint. So a reset also stores the progress
of the bindings.

A refill is complete when its progress reaches the progress of the rows that it replaces, so that readers never see
fewer documents than before. Refills of one swap replace their rows together, so that readers see one version. The time
of the replacement does not change the resulting rows, because checkpoints contain the identity of their rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from derive.durable import make_folders, sync
from derive.errors import TaskError
from derive.protocol.collection import InputSpec
from derive.protocol.materialization import FIRST
from derive.shard.state import task_folder
from derive.storage.metadata.descriptions import TaskState
from derive.storage.roles import View
from derive.storage.segments.partition import own_path
from derive.time import BEGINNING

_NAME, _ANNOUNCED = "restart", "restart.announced"

_UNFINISHED = ".new"
"""Suffix of an announcement that was not written completely."""

_SWAP = "swap-"
"""Prefix of the name of a reset by a swap of derivations."""

KEPT = _NAME
"""Beginning of the names of the files in a materialization's folder that a reset does not delete."""


@dataclass(frozen=True, slots=True)
class ResetMarker:
    """A reset.

    Attributes:
        name: name of the reset; empty if there was none.
        ends: for each binding (by state key), its source and the timestamp below which all documents were stored.
        parts: for each binding (by name, with any `backfill`) that was later reset alone, the name of this reset.
        keys: state keys of the reset bindings; empty for all.
    """

    name: str = ""
    ends: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()

    def of(self, binding: str) -> str:
        """Return the name of the last reset of a binding; empty if missing."""
        return self.parts.get(binding, self.name)


def require_own_materialization(store: View, task: str) -> None:
    """Raise an error if a materialization has begun with the data folder of another machine.

    Machines may have folders of their own if segments are objects. The resets and the data of shards are in one folder.

    Args:
        store: the data folder.
        task: name of the materialization.

    Raises:
        TaskError: this folder lacks the files of the materialization.
    """
    if isinstance(store.location, Path) or task_folder(store.root, task).exists():
        return
    state = store.task(task)
    if state is not None and state.positions:
        raise TaskError(
            f"'{task}' has run with the data folder of another machine, which has its checkpoints",
            hint=f"run it there: flowctl run --task {task}; or move its {own_path('state', task)} into this folder",
        )


def clocks_of(state: TaskState) -> dict[str, tuple[str, int]]:
    """Return, for each binding (by state key), its source and the timestamp below which all documents are stored."""
    return {
        key: (place.source, max(state.positions[key] - place.offset, BEGINNING))
        for key, place in state.places.items()
        if key in state.positions
    }


def next_reset(
    root: Path,
    task: str,
    state: TaskState | None,
    keys: Collection[str] = (),
    uppers: Mapping[str, int] | None = None,
    *,
    is_swap: bool = False,
) -> ResetMarker:
    """Return the marker for a reset of a materialization.

    Args:
        root: the data folder.
        task: name of the materialization.
        state: its progress; None if it has never run.
        keys: state keys of the bindings to reset; empty for all.
        uppers: for each source (by name) that may be another relation now, the timestamp below which the new relation
            has documents with keys that were stored from the former relation.
        is_swap: whether the reset is a swap of derivations, so that its refills replace their rows together.
    """
    last = last_reset(root, task)
    ends = dict(last.ends)  # the materialization may not have run after the previous reset
    for key, (source, stored) in (clocks_of(state) if state else {}).items():
        if keys and key not in keys:
            continue
        clock = max(stored, (uppers or {}).get(source, BEGINNING))
        former, before = ends.get(key, (source, clock))
        ends[key] = (source, max(clock, before) if former == source else clock)
    name = f"{_SWAP if is_swap else ''}{uuid.uuid4()}"
    if not keys:
        return ResetMarker(name, ends)
    parts = {**last.parts, **{binding_of(key): name for key in keys}}
    return ResetMarker(last.name, ends, parts, tuple(sorted(keys)))


def binding_of(key: str) -> str:
    """Return the binding of a state key, without its `backfill`."""
    name, _, backfill = key.rpartition(".v")
    return name if name and backfill.isdigit() else key


def generation_of(key: str, restart: ResetMarker) -> str:
    """Return the generation of the rows of a binding (by state key).

    A reset and a higher `backfill` each begin another generation.
    """
    name = binding_of(key)
    backfill, reset = key[len(name) :], restart.of(name)
    return f"{backfill.removeprefix('.')}/{reset}" if backfill or reset else FIRST


def announce(root: Path, task: str, restart: ResetMarker, epoch: int) -> Path:
    """Store the marker of a reset durably, before the reset; return the file, for `confirm` or `withdraw`.

    Args:
        root: the data folder.
        task: name of the materialization.
        restart: the marker.
        epoch: epoch of the task, which the commit of the reset requires.
    """
    folder = task_folder(root, task)
    make_folders(folder)
    announced = folder / f"{_ANNOUNCED}-{epoch}-{uuid.uuid4()}"
    temporary = announced.with_suffix(_UNFINISHED)
    parts = {"parts": dict(restart.parts), "keys": restart.keys}
    temporary.write_bytes(orjson.dumps({"name": restart.name, "ends": dict(restart.ends), **parts}))
    sync(temporary)
    temporary.replace(announced)
    sync(folder)
    return announced


def confirm(announced: Path) -> None:
    """Make an announced marker valid, durably, after the commit of its reset.

    Announcements of the same epoch, whose resets were refused or killed, are removed.
    """
    with suppress(FileNotFoundError):  # a run has settled it meanwhile
        announced.replace(announced.with_name(_NAME))
    own = int(announced.name.split("-")[1])
    for other, epoch in _announcements(announced.parent):
        if epoch <= own:
            withdraw(other)
    sync(announced.parent)


def withdraw(announced: Path) -> None:
    """Remove an announcement whose reset was refused."""
    announced.unlink(missing_ok=True)


def _announcements(folder: Path) -> list[tuple[Path, int]]:
    """Return the announcements in the folder of a task, with their epochs; 0 for those of an older version."""
    files = sorted(folder.glob(f"{_ANNOUNCED}*"))
    return [(file, int(file.name.split("-")[1]) if "-" in file.name else 0) for file in files]


def settle(root: Path, task: str, state: TaskState | None, epoch: int) -> None:
    """Make the announced markers of earlier epochs valid, durably, if the task was reset; otherwise delete them.

    Args:
        root: the data folder.
        task: name of the materialization.
        state: its progress; None if it has never run.
        epoch: epoch of the task, as read before the progress: no reset of an earlier epoch can commit any more.
    """
    folder = task_folder(root, task)
    settled = [announced for announced, begun in _announcements(folder) if begun < epoch]
    kept = state.positions if state is not None else {}
    committed: list[tuple[bool, int, Path]] = []
    for announced in settled:
        with suppress(FileNotFoundError):  # another process has settled it meanwhile
            keys = _read(announced).keys if announced.suffix != _UNFINISHED else None
            if keys is not None and kept.keys().isdisjoint(keys or kept):
                committed.append((not keys, len(keys), announced))
            else:
                withdraw(announced)
    for *_, announced in sorted(committed):  # at most one was committed: the reset of the most bindings counts
        with suppress(FileNotFoundError):
            announced.replace(folder / _NAME)
    if settled:
        sync(folder)


def last_reset(root: Path, task: str) -> ResetMarker:
    """Return the last reset of a materialization."""
    try:
        return _read(task_folder(root, task) / _NAME)
    except FileNotFoundError:
        return ResetMarker()


def _read(path: Path) -> ResetMarker:
    text = path.read_bytes()
    if not text.startswith(b"{"):  # the first format of the file
        return ResetMarker(text.decode())
    value = orjson.loads(text)
    ends = {key: (source, clock) for key, (source, clock) in value["ends"].items()}
    return ResetMarker(value["name"], ends, value.get("parts", {}), tuple(value.get("keys", ())))


_REFILL_NAME = "refills"


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


def complete_refills(limits: Mapping[str, int], positions: Mapping[str, int], restart: ResetMarker) -> list[str]:
    """Return the state keys of the refills that can replace their rows now.

    A refill of a swap waits for the other refills of this swap. A refill after a later, higher `backfill` has another
    state key than the swap, and waits for no other refill.

    Args:
        limits: for each refill (by state key), the timestamp up to which it must be stored.
        positions: the timestamp up to which each refill is stored.
        restart: the last reset of the materialization.
    """
    resets = {key: restart.of(binding_of(key)) for key in limits if key in restart.ends}
    swaps = {key: reset for key, reset in resets.items() if reset.startswith(_SWAP)}
    behind = {key for key, limit in limits.items() if positions.get(key, BEGINNING) < limit}
    waiting = {swaps[key] for key in behind if key in swaps}
    return [key for key in limits if key not in behind and swaps.get(key) not in waiting]


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
    temporary = folder / f"{_REFILL_NAME}.new"
    temporary.write_bytes(orjson.dumps(dict(limits)))
    temporary.replace(folder / _REFILL_NAME)


def read_refills(root: Path, task: str) -> dict[str, int]:
    """Return the record of `note_refills`: timestamps up to which bindings must be stored, by state key.

    After a crash, the record may be outdated until the materialization runs again.
    """
    try:
        limits: dict[str, int] = orjson.loads((task_folder(root, task) / _REFILL_NAME).read_bytes())
    except FileNotFoundError:
        return {}
    return {key: max(limit, BEGINNING) for key, limit in limits.items()}
