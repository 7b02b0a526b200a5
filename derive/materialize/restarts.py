"""Restarts: the last reset of a materialization, and refills of bindings that start over.

The progress of the endpoint is authoritative, but an endpoint does not know of resets. So a reset records a name in the
metadata database, in the commit that deletes the progress. A shard whose endpoint has another name starts over. A
connector that can refill stores the new rows beside the old rows, and then replaces the old rows. With other
connectors, the shard deletes the stored documents, key by key, and then stores all documents again; rows of keys that
the sources no longer have stay.

If a reset concerns only some bindings, because the sources of the other bindings were not reset, each reset binding
has a name of its own.

After shards were split and merged again, an endpoint may return an old checkpoint. So a reset also records the progress
of the bindings.

A refill is complete when its progress reaches the progress of the rows that it replaces, so that readers never see
fewer documents than before. Refills of one swap replace their rows together, so that readers see one version. The time
of the replacement does not change the resulting rows, because checkpoints contain the identity of their rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from derive.errors import TaskError
from derive.protocol.collection import InputSpec
from derive.protocol.materialization import FIRST
from derive.shard.state import task_folder
from derive.storage.metadata.descriptions import TaskState
from derive.storage.roles import View
from derive.time import BEGINNING

_SWAP = "swap-"
"""Prefix of the name of a reset by a swap of derivations."""


@dataclass(frozen=True, slots=True)
class ResetMarker:
    """A reset.

    Attributes:
        name: name of the reset; empty if there was none.
        ends: for each binding (by state key), its source and the timestamp below which all documents were stored.
        parts: for each binding (by name, with any `backfill`) that was later reset alone, the name of this reset.
    """

    name: str = ""
    ends: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def from_text(text: str) -> ResetMarker:
        """Return the reset that `to_text` described; of an empty text, no reset."""
        if not text.startswith("{"):  # the first format had only the name
            return ResetMarker(text)
        value = orjson.loads(text)
        ends = {key: (source, clock) for key, (source, clock) in value["ends"].items()}
        return ResetMarker(value["name"], ends, value.get("parts", {}))

    def to_text(self) -> str:
        """Return the reset as JSON."""
        return orjson.dumps({"name": self.name, "ends": dict(self.ends), "parts": dict(self.parts)}).decode()

    def of(self, binding: str) -> str:
        """Return the name of the last reset of a binding; empty if missing."""
        return self.parts.get(binding, self.name)


def require_known_facts(store: View, task: str) -> None:
    """Raise an error if the facts about a materialization are in files of another machine.

    Machines may have folders of their own if segments are objects. An earlier release has written the files.

    Args:
        store: the data folder.
        task: name of the materialization.

    Raises:
        TaskError: neither the metadata nor this folder has the facts.
    """
    if isinstance(store.location, Path) or task_folder(store.root, task).exists():
        return
    state = store.task(task)
    if state is not None and state.positions and not store.materialization(task).is_stored:
        raise TaskError(
            f"'{task}' has run with an earlier release on another machine, whose folder has its checkpoints",
            hint=f"run it there once with this release: flowctl run --task {task}",
        )


def clocks_of(state: TaskState) -> dict[str, tuple[str, int]]:
    """Return, for each binding (by state key), its source and the timestamp below which all documents are stored."""
    return {
        key: (place.source, max(state.positions[key] - place.offset, BEGINNING))
        for key, place in state.places.items()
        if key in state.positions
    }


def last_reset(store: View, task: str) -> ResetMarker:
    """Return the last reset of a materialization."""
    return ResetMarker.from_text(store.materialization(task).restart)


def next_reset(
    last: ResetMarker,
    state: TaskState | None,
    keys: Collection[str] = (),
    uppers: Mapping[str, int] | None = None,
    *,
    is_swap: bool = False,
) -> ResetMarker:
    """Return the marker for a reset of a materialization.

    Args:
        last: its last reset.
        state: its progress; None if it has never run.
        keys: state keys of the bindings to reset; empty for all.
        uppers: for each source (by name) that may be another relation now, the timestamp below which the new relation
            has documents with keys that were stored from the former relation.
        is_swap: whether the reset is a swap of derivations, so that its refills replace their rows together.
    """
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
    return ResetMarker(last.name, ends, parts)


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


def read_refills(store: View, task: str) -> dict[str, int]:
    """Return the timestamps up to which the bindings that are being refilled must be stored, by state key.

    After a crash, the record may be outdated until the materialization runs again.
    """
    return {key: max(limit, BEGINNING) for key, limit in store.materialization(task).refills.items()}
