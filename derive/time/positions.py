"""Positions: where the inputs of a task go on, in adjusted time.

An input reads documents by their *adjusted clock*, which is their own clock plus the `readDelay`, plus one tick if it
is a feedback read; `offset_of` says so, and nothing else does. The position of an input is the adjusted clock below
which it has processed everything, and it is kept by the input's `state_key`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from derive.protocol.specs import InputSpec


class Switch(NamedTuple):
    """The way of an input from one relation to another that has its name.

    Attributes:
        relation: the other one.
        end: clock below which the input has processed the former relation, or does on its way; its rows before that are
            retracted.
        at: clock at which they are, and the rows are added that the other relation has then.
    """

    relation: int
    end: int
    at: int


class Place(NamedTuple):
    """What an input's position is a position in, and how its documents came to the state that is kept.

    Attributes:
        source: name of the collection.
        offset: microseconds from its clocks to adjusted ones.
        shuffle: how its documents found their shard, for people; empty if it is not known.
        relation: the relation for which the name stood; 0 if that is not known.
        switch: to the relation for which the name stands now; None if the input is on no way there.
    """

    source: str
    offset: int
    shuffle: str = ""
    relation: int = 0
    switch: Switch | None = None

    @staticmethod
    def of(values: Sequence[Any]) -> Place:
        """Return the place of which a JSON array has the attributes."""
        *before, switch = values if len(values) == len(Place._fields) else (*values, None)
        place = Place(*before)
        return place if switch is None else place._replace(switch=Switch(*switch))

    def to_json(self) -> list[Any]:
        """Return the JSON array of which `of` makes the place again."""
        return [*self[:-1], None if self.switch is None else list(self.switch)]

    @property
    def relations(self) -> tuple[int, ...]:
        """The relations that the input reads, as far as that is known."""
        others = () if self.switch is None else (self.switch.relation,)
        return (self.relation, *others) if self.relation else ()

    def arrived(self, position: int) -> Place:
        """Return the place of an input at an adjusted clock: behind a switch, it is in the other relation."""
        if self.switch is None or position <= self.switch.at + self.offset:
            return self
        return self._replace(relation=self.switch.relation, switch=None)


def offset_of(spec: InputSpec, tick: int) -> int:
    """Microseconds from a source document's clock to its adjusted clock: the read delay and the feedback tick."""
    return spec.read_delay + (tick if spec.feedback else 0)


def current_positions(
    inputs: Sequence[InputSpec],
    tick: int,
    positions: Mapping[str, int],
    places: Mapping[str, Place],
    relations: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Where each input goes on, also if it now has another delay or another source.

    With another delay the same documents are processed at other times, and what was processed stays processed. Another
    source is read from its start, as by an input that is new, or from where the input was when it read that last. How
    far it was in the old one is kept by `former_key`. A source that was only renamed is the same.

    Args:
        inputs: of the task, as they are now.
        tick: length of its ticks, microseconds.
        positions: by `state_key`, where each went on when the task committed last.
        places: by `state_key`, what it was a position in.
        relations: for which names of sources stand; those that are not known are left out.
    """
    current = dict(positions)
    known = relations or {}
    for spec in inputs:
        key, place = spec.state_key, places.get(spec.state_key)
        if place is not None and _has_left(spec, place, known) and key in current:
            current[former_key(key, place.source)] = current.pop(key)
            former = former_key(key, spec.source)
            place = places.get(former)
            if former in current:
                current[key] = current.pop(former)
        if place is not None and key in current:
            current[key] += offset_of(spec, tick) - place.offset
    return current


def current_places(
    inputs: Sequence[InputSpec], places: Mapping[str, Place], relations: Mapping[str, int] | None = None
) -> dict[str, Place]:
    """Return the relations in which `current_positions` are positions, of inputs that had one."""
    left = {
        spec.state_key
        for spec in inputs
        if (place := places.get(spec.state_key)) is not None and _has_left(spec, place, relations or {})
    }
    current = {former_key(key, place.source) if key in left else key: place for key, place in places.items()}
    for spec in inputs:
        former = former_key(spec.state_key, spec.source)
        if spec.state_key in left and former in current:
            current[spec.state_key] = current.pop(former)
    return current


def _has_left(spec: InputSpec, place: Place, relations: Mapping[str, int]) -> bool:
    """Whether an input reads another source than it did, which is not just called otherwise."""
    is_renamed = place.relation != 0 and relations.get(spec.source) == place.relation
    return place.source != spec.source and not is_renamed


def former_key(key: str, source: str) -> str:
    """Return the key of an input's position (by `state_key`) in a source that the input does not read any more."""
    return f"{key} of {source}"
