"""Positions: where the inputs of a task go on, in adjusted time.

An input reads documents by their *adjusted clock*, which is their own clock plus the `readDelay`, plus one tick if it
is a feedback read; `offset_of` says so, and nothing else does. The position of an input is the adjusted clock below
which it has processed everything, and it is kept by the input's `state_key`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from derive.protocol.specs import InputSpec


class Place(NamedTuple):
    """What an input's position is a position in, and how its documents came to the state that is kept.

    Attributes:
        source: the collection.
        offset: microseconds from its clocks to adjusted ones.
        shuffle: how its documents found their shard, for people; empty if it is not known.
    """

    source: str
    offset: int
    shuffle: str = ""


def offset_of(spec: InputSpec, tick: int) -> int:
    """Microseconds from a source document's clock to its adjusted clock: the read delay and the feedback tick."""
    return spec.read_delay + (tick if spec.feedback else 0)


def current_positions(
    inputs: Sequence[InputSpec], tick: int, positions: Mapping[str, int], places: Mapping[str, Place]
) -> dict[str, int]:
    """Where each input goes on, also if it now has another delay or another source.

    With another delay the same documents are processed at other times, and what was processed stays processed. Another
    source is read from its start, as by an input that is new, or from where the input was when it read that last. How
    far it was in the old one is kept by `former_key`.

    Args:
        inputs: of the task, as they are now.
        tick: length of its ticks, microseconds.
        positions: by `state_key`, where each went on when the task committed last.
        places: by `state_key`, what it was a position in.
    """
    current = dict(positions)
    for spec in inputs:
        key, place = spec.state_key, places.get(spec.state_key)
        if place is not None and place.source != spec.source and key in current:
            current[former_key(key, place.source)] = current.pop(key)
            former = former_key(key, spec.source)
            place = places.get(former)
            if former in current:
                current[key] = current.pop(former)
        if place is not None and key in current:
            current[key] += offset_of(spec, tick) - place.offset
    return current


def current_places(inputs: Sequence[InputSpec], places: Mapping[str, Place]) -> dict[str, Place]:
    """What the positions of `current_positions` are positions in, of inputs that had one."""
    sources = {spec.state_key: spec.source for spec in inputs}
    return {
        former_key(key, place.source) if sources.get(key, place.source) != place.source else key: place
        for key, place in places.items()
    }


def former_key(key: str, source: str) -> str:
    """By what the position of an input (by `state_key`) is kept in a source that it does not read any more."""
    return f"{key} of {source}"
