"""Checkpoints of a shard: the progress of its bindings, in its endpoint and in the metadata of the data folder.

The checkpoint of the endpoint is authoritative, so a shard continues from it:

- The endpoint is ahead of the data folder if a run ended between the commit of the endpoint and its own commit.
- The endpoint is behind the data folder if the endpoint was restored from a backup.

A checkpoint names the attempt that wrote it. The data folder names, for each shard, the attempt whose commit it has
recorded. If the two names are equal, the recorded progress is also the progress of the endpoint, even for times in
which the shard stored no rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from derive.document.clock import format_rfc3339
from derive.document.pointer import JSON
from derive.errors import ProtocolError, TaskError
from derive.materialize.binding import StoredBinding
from derive.materialize.restarts import ResetMarker, binding_of
from derive.storage.folder_id import FolderIdentity
from derive.storage.metadata.descriptions import ShardData
from derive.time import BEGINNING, END_OF_TIME

FROM_NOTHING = bytes.fromhex("f8ffffff0f01")
"""Checkpoint that a connector returns if its endpoint is empty, or must receive all rows again."""

_FORM = 1


@dataclass(frozen=True, slots=True)
class ShardCheckpoint:
    """The progress of a shard.

    Attributes:
        token: name of the attempt that wrote the checkpoint.
        positions: for each binding (by state key), its source and the timestamp below which all documents are stored.
        largest: for each binding (by state key), the greatest packed key that was ever stored.
        clearing: for each binding (by state key) that starts over, the timestamp below which the documents to delete
            were stored; the position of the binding is the progress of the deletion.
        restart: name of the last reset that the shard has seen.
        folder: identifier of the data folder that wrote the checkpoint; empty if not recorded.
        parts: for each binding (by name) that was later reset alone, the name of this reset.
        contents: for each refilled binding (by state key), the identity of the rows to which its position refers.
    """

    token: str
    positions: Mapping[str, tuple[str, int]]
    largest: Mapping[str, bytes] = field(default_factory=dict)
    clearing: Mapping[str, int] = field(default_factory=dict)
    restart: str = ""
    folder: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)
    contents: Mapping[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the checkpoint as bytes for the endpoint."""
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
                **({"contents": dict(self.contents)} if self.contents else {}),
            }
        )

    @staticmethod
    def from_bytes(text: bytes) -> ShardCheckpoint:
        """Return the checkpoint that `to_bytes` wrote.

        Raises:
            ProtocolError: the bytes are not a checkpoint of this runtime.
        """
        try:
            value: Any = orjson.loads(text)
            assert value["form"] == _FORM
            positions = {key: (str(source), int(clock)) for key, (source, clock) in value["positions"].items()}
            largest = {key: bytes.fromhex(packed) for key, packed in value["largest"].items()}
            clearing = {key: int(clock) for key, clock in value["clearing"].items()}
            restart, folder = str(value["restart"]), str(value.get("folder", ""))
            parts = {str(name): str(reset) for name, reset in value.get("parts", {}).items()}
            contents = {str(key): str(identity) for key, identity in value.get("contents", {}).items()}
            return ShardCheckpoint(str(value["token"]), positions, largest, clearing, restart, folder, parts, contents)
        except (ValueError, KeyError, TypeError, AttributeError, AssertionError):
            raise ProtocolError(
                f"the endpoint has a checkpoint of another program: {text[:200]!r}",
                hint="another program materializes into the endpoint under the same name: rename this materialization",
            ) from None


@dataclass(frozen=True, slots=True)
class Resumed:
    """The point at which a shard resumes.

    Attributes:
        token: name of the attempt whose commit the endpoint recorded last; empty if missing.
        positions: for each binding (by state key), the adjusted timestamp below which all documents are stored.
        is_kept: whether the endpoint stores checkpoints.
        empty: state keys of bindings without documents at the endpoint.
        largest: for each binding (by state key), the greatest key that was ever stored, if known.
        clearing: for each binding (by state key) that starts over, the adjusted timestamp below which the documents to
            delete were stored; its position is the progress of the deletion.
        is_new: whether a binding starts over, and the endpoint has not recorded the reset yet.
        absent: the endpoint's progress of disabled or removed bindings, which the user may enable again.
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
    kept: ShardData,
    bindings: Sequence[StoredBinding],
    positions: Mapping[str, int],
    token: str | None,
    restart: ResetMarker | None = None,
    folder: FolderIdentity | None = None,
    task: str = "",
) -> Resumed:
    """Return the point at which a shard with an opened stream resumes.

    Args:
        opened: the endpoint's checkpoint; empty if the endpoint stores none.
        kept: data that the runtime has stored.
        bindings: bindings of the materialization.
        positions: for each binding (by state key), the data folder's progress.
        token: name of the attempt whose commit the data folder recorded last; None if missing; empty if the endpoint
            has lost its documents, which are read again.
        restart: the last reset; None if there was none.
        folder: identity of this data folder; None to skip its check.
        task: name of the materialization, for hints.

    Raises:
        ProtocolError: the endpoint's checkpoint was not written by this runtime.
        TaskError: the endpoint has documents of another data folder, which this folder does not know.
    """
    restart = restart or ResetMarker()
    known = opened or kept.flow
    if not known or known == FROM_NOTHING:
        return _resume_from_nothing(opened, bindings, positions, token, restart)
    checkpoint = ShardCheckpoint.from_bytes(known)
    going_on = [binding for binding in bindings if _can_resume(binding, checkpoint, restart)]
    if opened:
        unreset = [binding for binding in bindings if not _is_reset(binding.state_key, checkpoint, restart)]
        if token or unreset:
            _require_own(checkpoint, folder, task)
        _require_known(checkpoint, unreset, positions, folder, task, is_same=checkpoint.token == token)
    reached: dict[str, int] = {}
    clearing: dict[str, int] = {}
    empty: frozenset[str] = frozenset()
    for binding in bindings:
        key, is_reset = binding.state_key, binding not in going_on
        if is_reset and binding.contents:  # the data folder has not recorded any of these rows as stored
            reached[key] = positions[key] if token in (None, checkpoint.token) else BEGINNING
            continue
        last = _last_position(binding, checkpoint, restart.ends if is_reset else {})
        reached[key] = BEGINNING if is_reset else _position(binding, checkpoint)
        if key in checkpoint.clearing and not is_reset:
            clearing[key] = checkpoint.clearing[key] + binding.offset
        elif last is not None and not binding.is_delta and (is_reset or key not in checkpoint.positions):
            clearing[key], reached[key] = last + binding.offset, BEGINNING
            continue
        if checkpoint.token == token and not is_reset:  # earlier documents belong to other shards, and were read
            reached[key] = max(reached[key], min(positions[key], clearing.get(key, END_OF_TIME)))
    if opened:
        empty = _empty(checkpoint, [binding for binding in bindings if not binding.contents], restart) | {
            binding.state_key for binding in bindings if binding.contents and binding not in going_on
        }
    largest, is_new = checkpoint.largest if opened else {}, len(going_on) < len(bindings)
    absent = _absent(checkpoint, bindings, restart)
    return Resumed(checkpoint.token, reached, bool(opened), empty, largest, clearing, is_new, absent)


def require_no_newer(
    narrower: Iterable[bytes],
    bindings: Sequence[StoredBinding],
    positions: Mapping[str, int],
    restart: ResetMarker,
    folder: FolderIdentity | None,
    task: str = "",
) -> None:
    """Check that the endpoint has no checkpoint of a narrower range that is ahead of the data folder.

    The number of shards decreases only with a reset. If the shards were not reset, a narrower range has another cause:
    the data folder was restored from a backup that is older than a split.

    Args:
        narrower: the endpoint's checkpoints of these ranges.
        bindings: bindings of the materialization.
        positions: for each binding (by state key), the data folder's progress.
        restart: the last reset.
        folder: identity of this data folder; None to skip its check.
        task: name of the materialization, for hints.

    Raises:
        ProtocolError: a checkpoint was not written by this runtime.
        TaskError: the endpoint has documents that this data folder does not know.
    """
    for text in narrower:
        if text == FROM_NOTHING:
            continue
        checkpoint = ShardCheckpoint.from_bytes(text)
        unreset = [
            binding
            for binding in bindings
            if _can_resume(binding, checkpoint, restart) and not _is_reset(binding.state_key, checkpoint, restart)
        ]
        if unreset:
            _require_own(checkpoint, folder, task)
        _require_not_ahead(checkpoint, unreset, positions, task)


def _resume_from_nothing(
    opened: bytes,
    bindings: Sequence[StoredBinding],
    positions: Mapping[str, int],
    token: str | None,
    restart: ResetMarker,
) -> Resumed:
    """Return the point at which a shard without a checkpoint resumes, for the arguments of `resume`."""
    if not opened and token is None:  # the shard has never stored a document
        return Resumed("", dict(positions), is_kept=False, empty=frozenset(positions))
    if token == "":  # the data folder has recorded that the shard starts over
        return Resumed("", dict(positions), is_kept=bool(opened), empty=frozenset(positions) if opened else frozenset())
    # The key range is unknown to the endpoint, but may be part of a range whose documents were stored before a
    # reset.
    former = {} if token is not None else _ends([binding for binding in bindings if not binding.contents], restart)
    unknown = frozenset(positions.keys() - former.keys())
    reached = dict.fromkeys(positions, BEGINNING)
    if token is None:  # the data folder has not recorded any row of the refill as stored
        reached |= {binding.state_key: positions[binding.state_key] for binding in bindings if binding.contents}
    return Resumed("", reached, is_kept=bool(opened), empty=unknown, clearing=former, is_new=bool(former))


def _empty(checkpoint: ShardCheckpoint, bindings: Sequence[StoredBinding], restart: ResetMarker) -> frozenset[str]:
    """Return the state keys of bindings for which an endpoint with a checkpoint has no documents.

    An endpoint without a checkpoint may be ahead of the known progress.
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


def _is_reset(key: str, checkpoint: ShardCheckpoint, restart: ResetMarker) -> bool:
    """Return whether a binding (by state key) was reset after a checkpoint was written."""
    name = binding_of(key)
    reset = restart.of(name)
    return bool(reset) and reset != checkpoint.parts.get(name, checkpoint.restart)


def _can_resume(binding: StoredBinding, checkpoint: ShardCheckpoint, restart: ResetMarker) -> bool:
    """Return whether a checkpoint's position of a binding belongs to the current rows."""
    if binding.contents:
        return checkpoint.contents.get(binding.state_key) == binding.contents
    return not _is_reset(binding.state_key, checkpoint, restart)


def _require_own(checkpoint: ShardCheckpoint, folder: FolderIdentity | None, task: str) -> None:
    """Check that this data folder, or a folder whose backup was restored into it, wrote a checkpoint.

    A materialization without rows since its last reset may use the endpoint of another data folder.

    Raises:
        TaskError: the endpoint has documents of another data folder.
    """
    stored = checkpoint.folder
    if stored and folder is not None and folder.id and stored not in (folder.id, *folder.former):
        raise TaskError(
            f"the endpoint has rows of a materialization of the same name in another data folder: the identifier of"
            f" that folder is {stored}, and of this folder {folder.id}; nothing was stored",
            hint="rename this materialization, or its resources; or, if the other data folder is gone, replace its"
            f" rows: flowctl reset --task {task}",
        )


def _require_known(
    checkpoint: ShardCheckpoint,
    bindings: Sequence[StoredBinding],
    positions: Mapping[str, int],
    folder: FolderIdentity | None,
    task: str,
    *,
    is_same: bool,
) -> None:
    """Check that a data folder restored from a backup knows all documents that the endpoint has stored.

    Such a folder has the history of its backup, without later commits.

    Raises:
        TaskError: the endpoint has unknown documents.
    """
    if folder is not None and checkpoint.folder in folder.former and not is_same:
        _require_not_ahead(checkpoint, bindings, positions, task)


def _require_not_ahead(
    checkpoint: ShardCheckpoint, bindings: Sequence[StoredBinding], positions: Mapping[str, int], task: str
) -> None:
    """Check that a checkpoint of bindings is not ahead of the data folder's progress.

    Raises:
        TaskError: the endpoint has unknown documents.
    """
    ahead = [binding for binding in bindings if _position(binding, checkpoint) > positions[binding.state_key]]
    if ahead:
        known = positions[ahead[0].state_key] - ahead[0].offset
        at = max(_position(ahead[0], checkpoint) - ahead[0].offset, BEGINNING)
        raise TaskError(
            f"this data folder was restored from a backup, and the endpoint is ahead of the folder: the endpoint has"
            f" the documents of '{ahead[0].name}' before {format_rfc3339(at)}, and the backup only those before"
            f" {format_rfc3339(max(known, BEGINNING))}; nothing was stored",
            hint="restore the endpoint to the time of the backup; or replace its rows by those of this folder:"
            f" flowctl reset --task {task}",
        )


def _ends(bindings: Sequence[StoredBinding], restart: ResetMarker) -> dict[str, int]:
    """Return, by state key, the adjusted timestamp before which the documents to delete were stored."""
    lasts = {
        binding.state_key: (_last_position(binding, ShardCheckpoint("", {}), restart.ends), binding.offset)
        for binding in bindings
        if not binding.is_delta
    }
    return {key: last + offset for key, (last, offset) in lasts.items() if last is not None}


def _absent(checkpoint: ShardCheckpoint, bindings: Sequence[StoredBinding], restart: ResetMarker) -> ShardCheckpoint:
    """Return the progress of absent bindings in a checkpoint; reset bindings start over when they are enabled again.

    During a refill after a raised `backfill`, the visible rows have the former `backfill`, and the user may undo the
    edit.
    """
    ends = {key: end for key, end in restart.ends.items() if _is_reset(key, checkpoint, restart)}
    positions, largest, clearing, identities = {}, {}, {}, {}
    for key, (source, stored) in {**ends, **checkpoint.positions}.items():
        clock = max(stored, ends[key][1]) if key in ends and ends[key][0] == source else stored
        present = [binding for binding in bindings if _is_of(key, binding)]
        if any(binding.state_key == key or not binding.is_refilling for binding in present):
            continue
        is_reset = _is_reset(key, checkpoint, restart)
        positions[key] = (source, BEGINNING if is_reset else clock)
        if key in checkpoint.largest:
            largest[key] = checkpoint.largest[key]
        if key in checkpoint.contents:
            identities[key] = checkpoint.contents[key]
        if is_reset or key in checkpoint.clearing:
            clearing[key] = max(clock, checkpoint.clearing.get(key, BEGINNING))
    return ShardCheckpoint("", positions, largest, clearing, contents=identities)


def _is_of(key: str, binding: StoredBinding) -> bool:
    """Return whether a state key belongs to a binding, for any `backfill`."""
    name, _, backfill = key.rpartition(".v")
    return key == binding.name or (name == binding.name and backfill.isdigit())


def _position(binding: StoredBinding, checkpoint: ShardCheckpoint) -> int:
    """Return the adjusted timestamp below which the endpoint has all documents of a binding."""
    source, clock = checkpoint.positions.get(binding.state_key, ("", BEGINNING))
    return clock + binding.offset if source == binding.collection.name and clock else BEGINNING


def _last_position(
    binding: StoredBinding, checkpoint: ShardCheckpoint, ends: Mapping[str, tuple[str, int]]
) -> int | None:
    """Return the timestamp before which documents of a binding or its predecessor were stored; None without any.

    A binding with a higher `backfill` is another binding of the same name. A checkpoint may be older than a split of
    shards, so `ends` has the progress of bindings (by state key) at the last reset.
    """
    clocks = [
        max(clock, checkpoint.clearing.get(key, BEGINNING))
        for key, (source, clock) in [*checkpoint.positions.items(), *ends.items()]
        if source == binding.collection.name and _is_of(key, binding)
    ]
    return max(clocks, default=None)


def merge_patch(value: JSON, patch: JSON) -> JSON:
    """Return the value that results from a patch of RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for name, change in patch.items():
        if change is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), change)
    return merged
