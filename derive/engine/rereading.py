"""Rereadings: edits by which a derivation reads history again into a collection that already has its results.

A new transform reads its source from the start. If the same history was read before, sums would double:

- A transform replaces a removed transform of another name. An empty `formerly` says that it does not.
- A transform is new, and another transform of the source was edited at the same time. The new transform may be the
  former one under a new name, which the other transform has now.
- The `backfill` of a transform was lowered to a number that the transform had before.
- A transform reads another source, while the results of the old source stay.

A raised `backfill` is not such an edit: with it, the user asks for the second reading.

The positions of removed transforms are kept, and show the history that was read. A transform with a fingerprint and the
same source has run before, so it continues without a question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from derive.document.clock import format_rfc3339
from derive.engine.edits import SHARED, Unaccepted, fingerprints_of, hash_of, name_of, shared_parts, source_of
from derive.plural import counted
from derive.protocol.specs import DerivationSpec, TransformSpec
from derive.storage.metadata.descriptions import Renamed, TaskState
from derive.storage.roles import View
from derive.storage.segments.clocks import count_documents, first_clock
from derive.time import BEGINNING, END_OF_TIME
from derive.time.positions import Place, current_positions, offset_of, read_input


@dataclass(frozen=True, slots=True)
class _Span:
    """A part of a source that a transform would read again.

    Attributes:
        begin: source timestamp at which the part begins.
        end: source timestamp before which the part was read.
        why: description of the edit.
        ways: alternatives.
        former: name of the removed transform, if there is one.
    """

    begin: int
    end: int
    why: str
    ways: str
    former: str | None = None


def renaming_of(spec: DerivationSpec, state: TaskState) -> Renamed | None:
    """Return the state keys that `formerly` renames, each with its new key; None if there are none."""
    keys = {*state.positions, *state.fingerprints}
    names = {name_of(key) for key in keys}
    renamed: dict[str, str] = {}
    for transform in spec.transforms:
        former = transform.formerly
        if former is not None and transform.name not in names and former in names:
            olds = [key for key in keys if name_of(key) == former]
            renamed |= {old: f"{transform.name}{old.removeprefix(former)}" for old in olds}
    return Renamed(renamed) if renamed else None


def carried_over(state: TaskState, renamed: Renamed) -> TaskState:
    """Return the state of a task under the new names of its parts."""
    keys = renamed.keys
    return replace(
        state,
        positions={keys.get(key, key): position for key, position in state.positions.items()},
        places={keys.get(key, key): place for key, place in state.places.items()},
        fingerprints={keys.get(key, key): text for key, text in state.fingerprints.items()},
        edits=tuple(replace(edit, part=keys.get(edit.part, edit.part)) for edit in state.edits),
    )


def find_rereadings(store: View, spec: DerivationSpec, state: TaskState) -> tuple[Unaccepted, ...]:
    """Return the edits of a derivation by which it would read history again.

    Args:
        store: the data folder.
        spec: the derivation as it is now.
        state: recorded state of the task, after `carried_over`.

    Raises:
        SegmentError: a source's file cannot be read.
    """
    if not state.transactions or not state.fingerprints:
        return ()
    edits: list[Unaccepted] = []
    relations = {name: known.relation for name in spec.sources if (known := store.collection(name))}
    for transform in spec.transforms:
        spans = [*_spans(spec, transform, state, relations)]
        if transform.formerly != "":
            spans += _replaced(store, spec, transform, state, relations)
        span = max(spans, key=lambda span: (span.end, span.former is None), default=None)
        if span is not None:
            edits += _unaccepted(store, spec, transform, span)
    return tuple(edits)


def _is_as_before(transform: TransformSpec, state: TaskState, relations: Mapping[str, int]) -> bool:
    """Return whether a transform ran in the last run with the same relation, even if the relation was renamed."""
    before, place = state.fingerprints.get(transform.input.state_key), state.places.get(transform.input.state_key)
    source = transform.input.source
    return before is not None and (
        source_of(before) == source or (place is not None and _is_in(place, source, relations))
    )


def _is_in(place: Place, source: str, relations: Mapping[str, int]) -> bool:
    """Return whether a position refers to the present relation of a source; an unknown relation is compared by name."""
    relation = relations.get(source, 0)
    return place.relation == relation if place.relation and relation else place.source == source


def _spans(
    spec: DerivationSpec, transform: TransformSpec, state: TaskState, relations: Mapping[str, int]
) -> Iterator[_Span]:
    """Yield the parts of the source that a transform would read again."""
    if _is_as_before(transform, state, relations):
        return
    key, source = transform.input.state_key, transform.input.source
    known = {*state.positions, *state.fingerprints}
    own = [other for other in known if name_of(other) == transform.name]
    if own and transform.input.backfill > max(map(_backfill_of, own)):
        return
    positions = current_positions(spec.inputs, spec.tick, state.positions, state.places, relations)
    begin = positions[key] - offset_of(transform.input, spec.tick) if key in positions else BEGINNING
    others = [source_of(state.fingerprints[other]) for other in own if other in state.fingerprints]
    if key not in positions and any(other != source for other in others):
        why = f"'{transform.name}' reads '{source}' in place of '{others[0]}', whose results stay"
        yield _Span(begin, END_OF_TIME, why, f"to undo the edit: let '{transform.name}' read '{others[0]}' again")
    for other, end in _ends(own, source, state, relations).items():
        if end > begin:
            why = f"the 'backfill' of '{transform.name}' was {_backfill_of(other)} before the edit"
            yield _Span(
                begin, end, why, f"to read '{source}' again: raise 'backfill' above {max(map(_backfill_of, own))}"
            )
    if transform.formerly != "":
        likely = [
            *_renamed(spec, transform, state, relations, begin),
            *_exchanged(spec, transform, state, relations, begin),
        ]
        yield from likely
        if not own:
            end = max((span.end for span in likely), default=BEGINNING)
            possible = _possibly_renamed(spec, transform, state, relations)
            yield from (span for span in possible if span.end > end)


def _gone(spec: DerivationSpec, state: TaskState, relations: Mapping[str, int]) -> list[str]:
    """Return the recorded keys of inputs whose transforms were removed."""
    present = {(other.name, other.input.source) for other in spec.transforms}
    related = {(other.name, relations.get(other.input.source, 0)) for other in spec.transforms}
    known = sorted(key for key in {*state.positions, *state.fingerprints} if not key.startswith("/"))
    return [
        key
        for key in known
        if (name_of(key), _source_of(key, state)) not in present
        and not (
            key in state.places and state.places[key].relation and (name_of(key), state.places[key].relation) in related
        )
    ]


def _ways(former: str, transform: TransformSpec) -> str:
    return (
        f"to continue where '{former}' stopped: write 'formerly: {former}' at '{transform.name}';"
        f" to undo the edit: rename '{transform.name}' to '{former}'"
    )


def _replaced(
    store: View, spec: DerivationSpec, transform: TransformSpec, state: TaskState, relations: Mapping[str, int]
) -> Iterator[_Span]:
    """Yield the part of a relation that a transform would read and a removed transform has read before."""
    if _is_as_before(transform, state, relations):
        return
    source = transform.input.source
    for key in _gone(spec, state, relations):
        place, former = state.places.get(key), name_of(key)
        if place is None or place.source != source or _is_in(place, source, relations) or key not in state.positions:
            continue
        if not store.replaces_nothing(source, place.relation):
            why = (
                f"transform '{former}' was removed, and '{transform.name}' reads the source of '{former}', '{source}',"
                f" which is another relation now: {store.describe_fate(source, place.relation)}"
            )
            yield _Span(BEGINNING, END_OF_TIME, why, _ways(former, transform), former)


def _renamed(
    spec: DerivationSpec, transform: TransformSpec, state: TaskState, relations: Mapping[str, int], begin: int
) -> Iterator[_Span]:
    """Yield the part of a source that a transform would read and the removed transform that it replaces has read."""
    source = transform.input.source
    gone = _gone(spec, state, relations)
    ends = _ends(gone, source, state, relations)
    for key in gone:
        former = name_of(key)
        ways = _ways(former, transform)
        if ends.get(key, BEGINNING) > begin:
            why = f"transform '{former}' was removed, and '{transform.name}' reads its source '{source}'"
            yield _Span(begin, ends[key], why, ways, former)
        text = state.fingerprints.get(key)
        if text is not None and source_of(text) != source and text.endswith(hash_of(transform)):
            why = (
                f"transform '{former}' was removed, and '{transform.name}' has the same lambda and reads '{source}'"
                f" in place of '{source_of(text)}'"
            )
            yield _Span(begin, END_OF_TIME, why, f"to undo the edit: rename '{transform.name}' to '{former}'", former)


def _exchanged(
    spec: DerivationSpec, transform: TransformSpec, state: TaskState, relations: Mapping[str, int], begin: int
) -> Iterator[_Span]:
    """Yield the part of a source that a transform would read, and that another one has read with the same lambda."""
    source = transform.input.source
    for other in spec.transforms:
        key = other.input.state_key
        text = state.fingerprints.get(key)
        if other.script is None or text is None or text.endswith(hash_of(other)):
            continue
        if text.endswith(hash_of(transform)):
            end = _ends([key], source, state, relations).get(key, END_OF_TIME)
            why = f"'{transform.name}' has the former lambda of '{other.name}', whose results stay"
            ways = (
                f"to continue where '{other.name}' stopped: give '{transform.name}' the name '{other.name}', and the"
                f" present '{other.name}' another name"
            )
            yield _Span(begin, end, why, ways)


def _possibly_renamed(
    spec: DerivationSpec, transform: TransformSpec, state: TaskState, relations: Mapping[str, int]
) -> Iterator[_Span]:
    """Yield the part of a source that a new transform would read, and that it may have read under another name.

    The other name is an unknown `formerly`, or the name of a transform whose lambda or module was edited. The module
    must change for each new transform, so it does not show which methods were renamed.
    """
    source, former = transform.input.source, transform.formerly
    new = f"to add '{transform.name}' as a new transform: write \"formerly: ''\" at '{transform.name}'"
    now, before = fingerprints_of(spec), state.fingerprints
    shared = [key.removeprefix(SHARED) for key in shared_parts(now) if key in before and before[key] != now[key]]
    for key, end in _ends([*before], source, state, relations).items():
        other = name_of(key)
        if former is not None:
            why = (
                f"'{transform.name}' has the former name '{former}', which this data folder does not know, and"
                f" '{other}' reads the same source '{source}'"
            )
            yield _Span(BEGINNING, end, why, f"{new}; to continue a former transform: write its name")
        elif key in now and (shared or before[key].partition(" ")[2] != now[key].partition(" ")[2]):
            edited = f"the {shared[0]}" if shared else f"the lambda of '{other}'"
            why = (
                f"{edited} was edited, and '{transform.name}' reads the source of '{other}', '{source}': it may be the"
                f" former '{other}'"
            )
            ways = (
                f"{new}; to continue where '{other}' stopped: give '{transform.name}' the name '{other}', and the"
                f" present '{other}' another name"
            )
            yield _Span(BEGINNING, end, why, ways)


def _ends(keys: list[str], source: str, state: TaskState, relations: Mapping[str, int]) -> Mapping[str, int]:
    """Return the source timestamps that inputs (by state key) have reached, for the inputs that have read a source."""
    return {
        key: state.positions[key] - state.places[key].offset
        for key in keys
        if key in state.positions and key in state.places and _is_in(state.places[key], source, relations)
    }


def _source_of(key: str, state: TaskState) -> str:
    """Return the source of an input's position, or of its fingerprint if it has no position."""
    place = state.places.get(key)
    return source_of(state.fingerprints[key]) if place is None else place.source


def _unaccepted(store: View, spec: DerivationSpec, transform: TransformSpec, span: _Span) -> Iterator[Unaccepted]:
    """Yield the edit of a span, unless the span certainly has no documents."""
    name = transform.input.source
    if span.end == END_OF_TIME:  # the task that derives the source may still publish
        what = f"all documents of '{name}'"
        again = "from the start"
    else:
        offset = offset_of(transform.input, spec.tick)
        begin = max(span.begin, BEGINNING)
        segments = store.segments(spec.sources[name], transform.input.selector, begin)
        read = read_input(transform.input, spec.tick, segments, begin + offset, span.end + offset)
        documents, first = count_documents(store.location, read), first_clock(store.location, read)
        if first is None:
            return
        what = f"{counted(documents, 'document')} of '{name}' (from {format_rfc3339(first)} on)"
        again = "again"
    why = f"{span.why}: '{transform.name}'"
    yield Unaccepted(
        part=transform.input.state_key,
        message=f"{why} would read {what} {again} and add the results to those published before",
        hint=span.ways,
        position=transform.position,
        accepted=f"{why} has read {what} {again}, as was accepted",
        former=span.former,
    )


def _backfill_of(key: str) -> int:
    _, _, backfill = key.partition(" ")[0].removeprefix(name_of(key)).rpartition(".v")
    return int(backfill) if backfill else 0
