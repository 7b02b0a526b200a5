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

from derive.document.pointer import JSON
from derive.errors import ProtocolError
from derive.materialize.binding import StoredBinding
from derive.time.frontier import BEGINNING

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
    """

    token: str
    positions: Mapping[str, tuple[str, int]]
    largest: Mapping[str, bytes] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """As the endpoint keeps it."""
        return orjson.dumps(
            {
                "form": _FORM,
                "token": self.token,
                "positions": {key: list(place) for key, place in self.positions.items()},
                "largest": {key: packed.hex() for key, packed in self.largest.items()},
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
            return ShardCheckpoint(str(value["token"]), positions, largest)
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
        largest: for each binding (by state key), the greatest key ever stored, where that is known.
        empty: state keys of bindings of which the endpoint has nothing.
        is_kept: the endpoint keeps checkpoints.
    """

    token: str
    positions: Mapping[str, int]
    largest: Mapping[str, bytes]
    empty: frozenset[str]
    is_kept: bool


def resume(
    opened: bytes,
    kept: Kept,
    bindings: Sequence[StoredBinding],
    positions: Mapping[str, int],
    token: str | None,
) -> Resumed:
    """Where a shard goes on whose stream was opened.

    Args:
        opened: the checkpoint that the endpoint has; empty if it keeps none.
        kept: what the runtime has kept.
        bindings: of the materialization.
        positions: for each binding (by state key), how far the data folder knows it to be.
        token: name of the attempt that the data folder knows to have committed last; None if none ever has.

    Raises:
        ProtocolError: the endpoint's checkpoint is not ours.
    """
    known = opened or kept.flow
    if not known and token is None:  # it never had anything to store
        return Resumed("", dict(positions), {}, frozenset(positions), is_kept=False)
    if not known or known == FROM_NOTHING:
        return Resumed("", dict.fromkeys(positions, BEGINNING), {}, frozenset(positions), is_kept=bool(opened))
    checkpoint = ShardCheckpoint.from_bytes(known)
    reached = {}
    for binding in bindings:
        key = binding.state_key
        source, clock = checkpoint.positions.get(key, (binding.collection.name, BEGINNING))
        position = clock + binding.offset if source == binding.collection.name and clock else BEGINNING
        reached[key] = max(position, positions[key]) if checkpoint.token == token else position
    # Without a checkpoint of its own an endpoint may be ahead of what is known of it.
    new = {binding.state_key for binding in bindings if binding.state_key == binding.name}
    empty = frozenset(key for key in new if key not in checkpoint.positions) if opened else frozenset()
    return Resumed(checkpoint.token, reached, checkpoint.largest if opened else {}, empty, is_kept=bool(opened))


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
