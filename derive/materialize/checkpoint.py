"""Checkpoints of a shard: how far it has stored its bindings, as an endpoint keeps it together with what it has stored.

The endpoint is authoritative. It may be ahead of the data folder, where a run ended between the endpoint's commit and
its own, or behind it, where the endpoint was restored from a backup. What it has, it has: the shard goes on from there.
A checkpoint names the attempt that wrote it, and the data folder names the attempt of each shard that it has seen
commit. Where these are the same, all that the data folder knows to be done is done, also of times in which the shard
had nothing to store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from derive.document.clock import format_rfc3339
from derive.document.pointer import JSON
from derive.errors import ProtocolError, TaskError
from derive.materialize.binding import StoredBinding
from derive.materialize.reset_marker import Restart, binding_of
from derive.storage.folder_id import FolderIdentity
from derive.time.frontier import BEGINNING, END_OF_TIME

FROM_NOTHING = bytes.fromhex("f8ffffff0f01")
"""What a connector says whose endpoint has nothing any more, or is to have everything again."""

_FORM = 1


@dataclass(frozen=True, slots=True)
class ShardCheckpoint:
    """How far a shard has come.

    Attributes:
        token: name of the attempt that wrote it.
        positions: for each binding (by state key), its source and the clock below which everything is stored.
        largest: for each binding (by state key), the greatest packed key ever stored.
        clearing: for each binding (by state key) that starts over, the clock before which the documents were stored
            that have to go first; its position says how far that is.
        restart: names the last reset that the shard has seen.
        folder: identifies the data folder from which it was stored; empty where that was not recorded yet.
        parts: of bindings that have been reset alone since, by name, the name of that reset.
    """

    token: str
    positions: Mapping[str, tuple[str, int]]
    largest: Mapping[str, bytes] = field(default_factory=dict)
    clearing: Mapping[str, int] = field(default_factory=dict)
    restart: str = ""
    folder: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """As the endpoint keeps it."""
        return orjson.dumps(
            {
                "form": _FORM,
                "token": self.token,
                "positions": {key: list(place) for key, place in self.positions.items()},
                "largest": {key: packed.hex() for key, packed in self.largest.items()},
                "clearing": dict(self.clearing),
                "restart": self.restart,
                "folder": self.folder,
                **({"parts": dict(self.parts)} if self.parts else {}),
            }
        )

    @staticmethod
    def from_bytes(text: bytes) -> ShardCheckpoint:
        """The checkpoint that `to_bytes` wrote.

        Raises:
            ProtocolError: it is none.
        """
        try:
            value: Any = orjson.loads(text)
            assert value["form"] == _FORM
            positions = {key: (str(source), int(clock)) for key, (source, clock) in value["positions"].items()}
            largest = {key: bytes.fromhex(packed) for key, packed in value["largest"].items()}
            clearing = {key: int(clock) for key, clock in value["clearing"].items()}
            restart, folder = str(value["restart"]), str(value.get("folder", ""))
            parts = {str(name): str(reset) for name, reset in value.get("parts", {}).items()}
            return ShardCheckpoint(str(value["token"]), positions, largest, clearing, restart, folder, parts)
        except (ValueError, KeyError, TypeError, AttributeError, AssertionError):
            raise ProtocolError(
                f"the endpoint has a checkpoint that is not ours: {text[:200]!r}",
                hint="something else materializes into it by the same name",
            ) from None


@dataclass(frozen=True, slots=True)
class Kept:
    """What the runtime keeps for a shard beside what its endpoint does.

    Attributes:
        flow: the checkpoint, for an endpoint that keeps none; empty if there is none.
        driver: what the connector wants to be given when it is opened; empty if there is nothing.
    """

    flow: bytes = b""
    driver: bytes = b""


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where a shard goes on.

    Attributes:
        token: name of the attempt that its endpoint has seen commit last; empty if there was none.
        positions: for each binding (by state key), the adjusted clock below which everything is stored.
        is_kept: the endpoint keeps checkpoints.
        empty: state keys of bindings of which the endpoint has nothing.
        largest: for each binding (by state key), the greatest key ever stored, where that is known.
        clearing: for each binding (by state key) that starts over, the adjusted clock before which its documents were
            stored that have to go first; its position says how far that is.
        is_new: the endpoint does not know yet that something starts over.
        absent: what the endpoint knows of bindings that are disabled or removed, and may come back.
    """

    token: str
    positions: Mapping[str, int]
    is_kept: bool
    empty: frozenset[str]
    largest: Mapping[str, bytes] = field(default_factory=dict)
    clearing: Mapping[str, int] = field(default_factory=dict)
    is_new: bool = False
    absent: ShardCheckpoint = ShardCheckpoint("", {})


def resume(
    opened: bytes,
    kept: Kept,
    bindings: Sequence[StoredBinding],
    positions: Mapping[str, int],
    token: str | None,
    restart: Restart | None = None,
    folder: FolderIdentity | None = None,
) -> Resumed:
    """Where a shard goes on whose stream was opened.

    Args:
        opened: the checkpoint that the endpoint has; empty if it keeps none.
        kept: what the runtime has kept.
        bindings: of the materialization.
        positions: for each binding (by state key), how far the data folder knows it to be.
        token: name of the attempt that the data folder knows to have committed last; None if none ever has, and empty
            if what the endpoint had is lost, which has been read again since.
        restart: the last reset; None if there was none.
        folder: which data folder this is; None if that does not matter.

    Raises:
        ProtocolError: the endpoint's checkpoint is not ours.
        TaskError: the endpoint has what another data folder has stored, of which this one does not know.
    """
    restart = restart or Restart()
    known = opened or kept.flow
    if not known and token is None:  # it never had anything to store
        return Resumed("", dict(positions), is_kept=False, empty=frozenset(positions))
    if token == "" and (not known or known == FROM_NOTHING):  # it has begun from nothing, as the data folder knows
        return Resumed("", dict(positions), is_kept=bool(opened), empty=frozenset(positions) if opened else frozenset())
    if not known or known == FROM_NOTHING:
        beginning = dict.fromkeys(positions, BEGINNING)
        # A range that the endpoint does not know may be part of one with rows, which those before a reset had.
        former = {} if token is not None else _ends(bindings, restart)
        unknown = frozenset(positions.keys() - former.keys())
        return Resumed("", beginning, is_kept=bool(opened), empty=unknown, clearing=former, is_new=bool(former))
    checkpoint = ShardCheckpoint.from_bytes(known)
    going_on = [binding for binding in bindings if not _is_reset(binding.state_key, checkpoint, restart)]
    if opened and going_on:
        _require_known(checkpoint, going_on, positions, folder, is_same=checkpoint.token == token)
    reached: dict[str, int] = {}
    clearing: dict[str, int] = {}
    for binding in bindings:
        key, is_reset = binding.state_key, binding not in going_on
        last = _last_position(binding, checkpoint, restart.ends if is_reset else {})
        reached[key] = BEGINNING if is_reset else _position(binding, checkpoint)
        if key in checkpoint.clearing and not is_reset:
            clearing[key] = checkpoint.clearing[key] + binding.offset
        elif last is not None and not binding.is_delta and (is_reset or key not in checkpoint.positions):
            clearing[key], reached[key] = last + binding.offset, BEGINNING
            continue
        if checkpoint.token == token and not is_reset:  # what is below has been read, and was of other shards
            reached[key] = max(reached[key], min(positions[key], clearing.get(key, END_OF_TIME)))
    empty = _empty(checkpoint, bindings, restart) if opened else frozenset()
    largest, is_new = checkpoint.largest if opened else {}, len(going_on) < len(bindings)
    absent = _absent(checkpoint, bindings, restart)
    return Resumed(checkpoint.token, reached, bool(opened), empty, largest, clearing, is_new, absent)


def _empty(checkpoint: ShardCheckpoint, bindings: Sequence[StoredBinding], restart: Restart) -> frozenset[str]:
    """State keys of bindings of which an endpoint with a checkpoint has nothing.

    Without a checkpoint of its own an endpoint may be ahead of what is known.
    """
    return frozenset(
        binding.state_key
        for binding in bindings
        if binding.state_key not in checkpoint.clearing or _is_reset(binding.state_key, checkpoint, restart)
        if _last_position(
            binding, checkpoint, restart.ends if _is_reset(binding.state_key, checkpoint, restart) else {}
        )
        is None
    )


def _is_reset(key: str, checkpoint: ShardCheckpoint, restart: Restart) -> bool:
    """Whether a binding (by state key) was reset since a checkpoint was written."""
    name = binding_of(key)
    reset = restart.of(name)
    return bool(reset) and reset != checkpoint.parts.get(name, checkpoint.restart)


def _require_known(
    checkpoint: ShardCheckpoint,
    bindings: Sequence[StoredBinding],
    positions: Mapping[str, int],
    folder: FolderIdentity | None,
    *,
    is_same: bool,
) -> None:
    """Require that this data folder knows all that the endpoint has.

    A data folder that was restored has the history of the one that was backed up, and not what came later.

    Raises:
        TaskError: it does not.
    """
    stored = checkpoint.folder
    if not stored or folder is None or not folder.id or stored == folder.id:
        return
    if stored not in folder.former:
        raise TaskError(
            f"the endpoint has what was materialized by the same name from another data folder, whose identifier is"
            f" {stored}; this one is {folder.id}, and nothing was stored",
            hint="rename this materialization, or its resources; or, if the other data folder is gone, remove what the"
            " endpoint has and start over: flowctl reset --task NAME",
        )
    ahead = [binding for binding in bindings if _position(binding, checkpoint) > positions[binding.state_key]]
    if ahead and not is_same:
        known = positions[ahead[0].state_key] - ahead[0].offset
        at = max(_position(ahead[0], checkpoint) - ahead[0].offset, BEGINNING)
        raise TaskError(
            f"this data folder was restored from a backup, and the endpoint is ahead of it: of '{ahead[0].name}' it has"
            f" what came before {format_rfc3339(at)}, and the backup what came before"
            f" {format_rfc3339(max(known, BEGINNING))}; nothing was stored",
            hint="put the endpoint back as it was at the backup; or remove what it has, and start over: flowctl reset"
            " --task NAME",
        )


def _ends(bindings: Sequence[StoredBinding], restart: Restart) -> dict[str, int]:
    """For each binding (by state key) with rows that have to go, the adjusted clock before which they were stored."""
    lasts = {
        binding.state_key: (_last_position(binding, ShardCheckpoint("", {}), restart.ends), binding.offset)
        for binding in bindings
        if not binding.is_delta
    }
    return {key: last + offset for key, (last, offset) in lasts.items() if last is not None}


def _absent(checkpoint: ShardCheckpoint, bindings: Sequence[StoredBinding], restart: Restart) -> ShardCheckpoint:
    """What a checkpoint knows of bindings that are not there now; after a reset they start over when they come back."""
    ends = {key: end for key, end in restart.ends.items() if _is_reset(key, checkpoint, restart)}
    positions, largest, clearing = {}, {}, {}
    for key, (source, stored) in {**ends, **checkpoint.positions}.items():
        clock = max(stored, ends[key][1]) if key in ends and ends[key][0] == source else stored
        if any(_is_of(key, binding) for binding in bindings):
            continue
        is_reset = _is_reset(key, checkpoint, restart)
        positions[key] = (source, BEGINNING if is_reset else clock)
        if key in checkpoint.largest:
            largest[key] = checkpoint.largest[key]
        if is_reset or key in checkpoint.clearing:
            clearing[key] = max(clock, checkpoint.clearing.get(key, BEGINNING))
    return ShardCheckpoint("", positions, largest, clearing)


def _is_of(key: str, binding: StoredBinding) -> bool:
    """Whether a state key is of a binding, whatever its `backfill`."""
    name, _, backfill = key.rpartition(".v")
    return key == binding.name or (name == binding.name and backfill.isdigit())


def _position(binding: StoredBinding, checkpoint: ShardCheckpoint) -> int:
    """The adjusted clock below which the endpoint has all of a binding."""
    source, clock = checkpoint.positions.get(binding.state_key, ("", BEGINNING))
    return clock + binding.offset if source == binding.collection.name and clock else BEGINNING


def _last_position(
    binding: StoredBinding, checkpoint: ShardCheckpoint, ends: Mapping[str, tuple[str, int]]
) -> int | None:
    """The clock before which documents of a binding, or of one that it takes the place of, were stored; None if none.

    Raising `backfill` makes another binding of the same name. A checkpoint may be from before a split; `ends` says how
    far bindings (by state key) were at a reset since.
    """
    clocks = [
        max(clock, checkpoint.clearing.get(key, BEGINNING))
        for key, (source, clock) in [*checkpoint.positions.items(), *ends.items()]
        if source == binding.collection.name and _is_of(key, binding)
    ]
    return max(clocks, default=None)


def merge_patch(value: JSON, patch: JSON) -> JSON:
    """A value as RFC 7396 changes it by a patch."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for name, change in patch.items():
        if change is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), change)
    return merged
