"""Explanations: replay the source documents that matter for some derived documents, and compare the results.

1. The stored documents of the keys; their timestamps are in the ticks of their causes.
2. The candidates: source documents with an adjusted timestamp in one of these ticks.
3. The histories, if lambdas keep state: all earlier documents of the candidates' shuffle keys. Sources are read as they
   are stored, so a derivation that reads itself needs no recursion.
4. The replay, part by part of the derivation's past, in the order of law L4.
5. The publications are combined per tick and key, like in a transaction, and compared byte for byte.

All functions take sets of keys.

The keys of a source document are the shuffle key, which determines the state, and the keys of possible publications.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from derive.document.clock import format_rfc3339
from derive.document.exact import dump_exact, parse_exact
from derive.document.key import compile_keys, pack, unpack
from derive.document.pointer import JSON, parse_pointer
from derive.errors import LambdaError, SchemaViolation, UsageError
from derive.lambda_sql.shuffle import ComputedShuffle
from derive.protocol.derive import ExplainableSession, ReadBatch
from derive.protocol.entry_points import find_runtime
from derive.protocol.specs import CatalogSpec, CollectionSpec, DerivationSpec, Document, TransformSpec
from derive.reduce.combiner import Combiner
from derive.schema.validator import compile_validator
from derive.shard.tick_combiner import KeyFold
from derive.storage.roles import Readable
from derive.storage.segments.columns import TypedColumn, typed_columns
from derive.time import BEGINNING, END_OF_TIME, tick_end
from derive.time.positions import offset_of
from derive.why.replay import Part, Past, Publication, Replay, SourceRow, past_of
from derive.why.scan import Match, ScanBounds, StoredDocument, Ticks, column_values, scan


class ShuffleKeys:
    """The shuffle keys of the documents that a transform reads.

    Args:
        spec: the derivation.
        transform: one of its transforms.
    """

    def __init__(self, spec: DerivationSpec, transform: TransformSpec) -> None:
        shuffle, source = transform.shuffle, spec.sources[transform.input.source]
        by_key = (shuffle.key, shuffle.key_defaults) == (source.key, source.key_defaults)
        self._transform, self._offset = transform, offset_of(transform.input, spec.tick)
        self._is_own = shuffle.kind == "any" or (shuffle.kind == "key" and by_key)
        self._pack = compile_keys(shuffle.key, shuffle.key_defaults) if shuffle.kind == "key" else None
        self._computed = ComputedShuffle(spec, transform) if shuffle.kind == "lambda" else None
        self._is_valid = compile_validator(source.read_schema, name=source.name).is_valid
        self._columns = {column.pointer: column for column in typed_columns(source)}

    def of(self, rows: Sequence[StoredDocument | SourceRow]) -> list[bytes]:
        """Return the packed shuffle key of each document; for `any`, the key of the document itself."""
        if self._is_own:
            return [row.key for row in rows]
        documents = [parse_exact(row.text.encode()) for row in rows]
        if self._pack is not None:
            return self._pack(documents)
        assert self._computed is not None
        keys = [row.key for row in rows]  # of invalid documents, which are put aside
        valid = [number for number, document in enumerate(documents) if self._is_valid(document)]
        clocks = [rows[number].clock for number in valid]
        batch = ReadBatch(
            transforms=[self._transform.index] * len(valid),
            clocks=[clock + self._offset for clock in clocks],
            published=clocks,
            documents=[documents[number] for number in valid],
        )
        for number, values in zip(valid, self._computed.keys(batch), strict=True):
            keys[number] = pack(values)
        return keys

    def match(self, keys: Collection[bytes]) -> Match | None:
        """Return a filter of rows that may have one of these shuffle keys; None if all rows may."""
        if self._is_own:
            return Match.of_keys(keys)
        shuffle = self._transform.shuffle
        columns = [self._columns.get(pointer) for pointer in shuffle.key]
        if shuffle.kind != "key" or not columns or None in columns:
            return None
        # The keys of transforms that shuffle by other locations have other numbers of values.
        own = [values for values in map(unpack, keys) if len(values) == len(columns)]
        return _match(
            (column, {values[place] for values in own}, default)
            for place, (column, default) in enumerate(zip(columns, shuffle.key_defaults, strict=True))
            if column is not None
        )


def _match(parts: Iterable[tuple[TypedColumn, set[JSON], JSON]]) -> Match:
    """Return the filter of rows by columns, their permitted values, and the value that null stands for."""
    values: dict[TypedColumn, pa.Array] = {}
    nulls = set()
    for column, several, default in parts:
        values[column] = column_values(column, several)
        if None in several or default in several:
            nulls.add(column)
    return Match(values=values, nulls=frozenset(nulls))


def match_publishers(
    session: object, collection: CollectionSpec, source: CollectionSpec, transform: int, keys: Collection[bytes]
) -> Match | None:
    """Return a filter of source documents that may publish one of these keys; None if the lambda does not show this.

    A lambda that converts a value may publish another key than the filter assumes. Then the replay differs from the
    stored documents, and is repeated without the filter.

    Args:
        session: session of the derivation.
        collection: the derived collection.
        source: the collection that the transform reads.
        transform: index of the transform.
        keys: packed keys of the derived collection.
    """
    copied = session.copied(transform) if isinstance(session, ExplainableSession) else None
    if not copied:
        return None
    columns = {column.name: column for column in typed_columns(source)}
    defaults = {item.field: item.default[0] if item.default else None for item in source.projections}
    fields = _shared_fields(collection, copied)
    if not fields or not all(field in columns for field in fields.values()):
        return None
    components = list(zip(*map(unpack, keys), strict=True))
    return _match((columns[field], set(components[place]), defaults[field]) for place, field in fields.items())


def _shared_fields(collection: CollectionSpec, copied: Sequence[Mapping[str, str]]) -> dict[int, str]:
    """Return the fields that become components of the key in every statement, by place of the component."""
    names = {place: tokens[0] for place, tokens in enumerate(map(parse_pointer, collection.key)) if len(tokens) == 1}
    first, *others = copied
    return {
        place: first[name]
        for place, name in names.items()
        if name in first and all(other.get(name) == first[name] for other in others)
    }


MOST_ROWS = 2_000_000
"""Largest number of documents of a transform that one explanation replays."""

_BATCH = 10_000
"""Number of documents whose shuffle keys are computed at once."""


class Made(NamedTuple):
    """A document that a replay made: timestamp, sequence number and JSON text."""

    clock: int
    seq: int
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """Documents to explain.

    Attributes:
        keys: packed keys.
        begin: first timestamp.
        end: exclusive upper bound of the timestamps.
        chosen: pairs of packed key and timestamp; None for all between the two.
    """

    keys: frozenset[bytes]
    begin: int = BEGINNING
    end: int = END_OF_TIME
    chosen: frozenset[tuple[bytes, int]] | None = None

    @staticmethod
    def of(chosen: Collection[tuple[bytes, int]]) -> Question:
        """Return the question for documents by key and timestamp."""
        clocks = [clock for _, clock in chosen]
        return Question(frozenset(key for key, _ in chosen), min(clocks), max(clocks) + 1, frozenset(chosen))


@dataclass(slots=True)
class Explanation:
    """The explanation of some documents of a derived collection.

    Attributes:
        spec: the derivation as the catalog defines it now.
        past: its past.
        since: the collection's `since`, below which its documents are reduced; `BEGINNING` without compaction.
        stored: stored documents in order, by packed key.
        made: documents of the replay in order, by packed key.
        causes: publications of the replay in order, by packed key.
        rows: replayed source documents in order, by number of their part.
        candidates: number of source documents in the ticks of the stored documents.
        is_failed: whether a lambda failed in a replay of some shuffle keys, which ended there.
    """

    spec: DerivationSpec
    past: Past
    since: int
    stored: dict[bytes, list[StoredDocument]]
    made: dict[bytes, list[Made]] = field(default_factory=dict)
    causes: dict[bytes, list[Publication]] = field(default_factory=dict)
    rows: dict[int, list[SourceRow]] = field(default_factory=dict)
    candidates: int = 0
    is_failed: bool = False

    @property
    def replayed(self) -> int:
        """Return the number of replayed documents."""
        return sum(map(len, self.rows.values()))

    def part(self, number: int) -> Part:
        """Return a part of the derivation's past by its number."""
        return next(part for part in self.past.parts if part.number == number)

    def is_equal(self, key: bytes) -> bool:
        """Return whether the replay gives the stored documents; compacted documents are compared in reduced form."""
        if self.is_failed:
            return False
        stored = [Made(row.clock, row.seq, row.text) for row in self.stored[key]]
        made = self.made.get(key, [])
        if [row for row in stored if row.clock >= self.since] != [row for row in made if row.clock >= self.since]:
            return False
        if self.since == BEGINNING:
            return True
        before, after = (self._reduced(row for row in rows if row.clock < self.since) for rows in (stored, made))
        return before is after or dump_exact(before) == dump_exact(after)

    def _reduced(self, rows: Iterable[Made]) -> JSON:
        combiner = Combiner(self.spec.collection.read_schema, name=self.spec.name)
        return combiner.full(parse_exact(row.text.encode()) for row in rows)

    def differences(self) -> list[bytes]:
        """Return the keys for which the replay gives other documents than the stored documents."""
        return [key for key in self.stored if not self.is_equal(key)]


class Explainer:
    """Explains documents of one data folder.

    Args:
        catalog: the catalog of its collections.
        store: the data folder.
        scratch: an empty folder for states of replays.
    """

    def __init__(self, catalog: CatalogSpec, store: Readable, scratch: Path) -> None:
        self.catalog = catalog
        self.store = store
        self._folders = (scratch / str(number) for number in count())

    def open_replay(self, part: Part) -> Replay:
        """Return a replay that begins with a part, over an empty state."""
        return Replay(self.store.root, next(self._folders), part)

    def explain(self, name: str, question: Question, *, replays_all: bool = False) -> Explanation:
        """Explain documents of a derived collection.

        Args:
            name: name of the collection.
            question: the documents.
            replays_all: whether to replay the documents of all shuffle keys, over one state.

        Raises:
            LambdaError: a lambda failed.
            UsageError: too many documents would be replayed, or a former definition cannot be restored.
        """
        explanation = self._explain(name, question, replays_all=replays_all, by_fields=True)
        if explanation.differences():
            return self._explain(name, question, replays_all=replays_all, by_fields=False)
        return explanation

    def _explain(self, name: str, question: Question, *, replays_all: bool, by_fields: bool) -> Explanation:
        spec = self.catalog.derivations[name]
        known, past = self.store.collection(name), past_of(self.store, spec)
        question = replace(question, end=min(question.end, past.parts[-1].upper))
        since = known.since if known is not None and question.begin < known.since else BEGINNING
        explanation = Explanation(spec, past, since, self._stored(spec, question))
        if not any(explanation.stored.values()):
            return explanation
        with closing(self.open_replay(past.parts[0])) as replay:
            _Finder(self.store, explanation, replay).find(replays_all=replays_all, by_fields=by_fields)
        with closing(self.open_replay(past.parts[0])) as replay:
            try:
                _combine(replay, explanation, question)
            except (LambdaError, SchemaViolation):
                # A lambda that uses state of other shuffle keys may fail without this state; `reasons_of` replays all
                # keys.
                if replays_all:
                    raise
                explanation.is_failed = True
        return explanation

    def _stored(self, spec: DerivationSpec, question: Question) -> dict[bytes, list[StoredDocument]]:
        stored: dict[bytes, list[StoredDocument]] = {key: [] for key in sorted(question.keys)}
        clocks = None if question.chosen is None else Ticks(np.unique([clock for _, clock in question.chosen]), 1)
        bounds = ScanBounds(question.begin, question.end, Match.of_keys(question.keys), clocks)
        for row in scan(self.store, spec.collection, bounds):
            if question.chosen is None or (row.key, row.clock) in question.chosen:
                stored[row.key].append(row)
        for rows in stored.values():
            rows.sort()
        return stored


class _Finder:
    """Finds the source documents that an explanation has to replay.

    Args:
        store: the data folder.
        explanation: the explanation, with its stored documents.
        replay: a replay without documents, whose session describes lambdas.
    """

    def __init__(self, store: Readable, explanation: Explanation, replay: Replay) -> None:
        self._store = store
        self._explanation = explanation
        self._replay = replay
        self._shuffles: dict[tuple[int, int], ShuffleKeys] = {}

    def find(self, *, replays_all: bool, by_fields: bool) -> None:
        """Set the rows of the explanation, and its number of candidates."""
        explanation = self._explanation
        clocks = np.array(sorted({row.clock for rows in explanation.stored.values() for row in rows}))
        candidates: dict[int, list[tuple[TransformSpec, list[StoredDocument]]]] = {}
        for part in explanation.past.parts:
            own = clocks[(clocks >= part.clamp) & (clocks < part.upper)]
            # Documents below `since` are reduced to one document, whose timestamp does not show the ticks of the
            # others.
            if len(own) or part.clamp < explanation.since:
                self._replay.enter(part)
                candidates[part.number] = list(self._candidates(part, own, by_fields=by_fields))
        explanation.candidates = sum(len(rows) for several in candidates.values() for _, rows in several)
        last = max(candidates)
        parts = [part for part in explanation.past.parts if part.number <= last]
        if any(find_runtime(part.spec.connector).keeps_state(part.spec) for part in parts):
            keys = None if replays_all else self._shuffle_keys(candidates)
            # `since` is greater than every timestamp that a reduced document stands for.
            bound = max(tick_end(int(clocks[-1]), parts[-1].spec.tick), explanation.since)
            explanation.rows = {part.number: sorted(self._history(part, keys, bound)) for part in parts}
        else:
            by_number = {part.number: part for part in parts}
            explanation.rows = {
                number: sorted(
                    row for transform, rows in several for row in _source_rows(by_number[number], transform, rows)
                )
                for number, several in candidates.items()
            }

    def _shuffle_keys(
        self, candidates: Mapping[int, list[tuple[TransformSpec, list[StoredDocument]]]]
    ) -> frozenset[bytes]:
        return frozenset(
            key
            for number, several in candidates.items()
            for transform, rows in several
            for key in self._shuffle(self._explanation.part(number), transform).of(rows)
        )

    def _shuffle(self, part: Part, transform: TransformSpec) -> ShuffleKeys:
        place = (part.number, transform.index)
        if place not in self._shuffles:
            self._shuffles[place] = ShuffleKeys(part.spec, transform)
        return self._shuffles[place]

    def _candidates(
        self, part: Part, clocks: np.ndarray, *, by_fields: bool
    ) -> Iterator[tuple[TransformSpec, list[StoredDocument]]]:
        """Yield the documents of each transform in a part that may have published one of the explained documents.

        Args:
            part: the part.
            clocks: timestamps of stored documents that it published, ascending.
            by_fields: whether to leave out documents of which the lambdas show that they publish other keys.
        """
        tick, explanation = part.spec.tick, self._explanation
        numbers = np.unique(clocks // tick)
        # Timestamps that were raised to the clamp are in the tick of the clamp.
        is_raised = not part.is_regular and len(clocks) and clocks[0] // tick == part.clamp // tick
        raised = max(part.clamp if is_raised else BEGINNING, explanation.since)
        for transform in part.spec.transforms:
            session = self._replay.session
            if isinstance(session, ExplainableSession) and session.copied(transform.index) == []:
                continue
            source = part.spec.sources[transform.input.source]
            match = None
            if by_fields:
                match = match_publishers(session, part.spec.collection, source, transform.index, explanation.stored)
            offset = offset_of(transform.input, tick)
            begin, end = part.bounds(transform)
            bounds = ScanBounds(max(begin, raised - offset), end, match, Ticks(numbers, tick), offset)
            rows = self._scan(part, transform, bounds)
            if raised > BEGINNING:
                rows += self._scan(part, transform, ScanBounds(begin, min(end, raised - offset), match))
            yield transform, rows

    def _scan(
        self, part: Part, transform: TransformSpec, bounds: ScanBounds, keys: frozenset[bytes] | None = None
    ) -> list[StoredDocument]:
        """Return the documents of a transform within bounds, of some shuffle keys or of all."""
        source = part.spec.sources[transform.input.source]
        retried = self._store.retried(part.spec.name, transform, source, bounds.begin)
        rows = scan(self._store, source, bounds, transform.input.selector, retried.segments)
        shuffle, chosen = self._shuffle(part, transform), list[StoredDocument]()
        while several := list(islice(rows, _BATCH)):
            if keys is not None:
                several = [row for row, key in zip(several, shuffle.of(several), strict=True) if key in keys]
            chosen += several
            if len(chosen) > MOST_ROWS:
                raise UsageError(
                    f"more than {MOST_ROWS:,} documents would be replayed to explain this one of '{part.spec.name}'",
                    hint="explain an earlier time with --as-of, or check the whole collection: flowctl verify --replay",
                )
        return chosen

    def _history(self, part: Part, keys: frozenset[bytes] | None, bound: int) -> Iterator[SourceRow]:
        """Yield the documents of some shuffle keys, or of all, in a part up to an adjusted timestamp."""
        for transform in part.spec.transforms if keys is None or keys else ():
            begin, end = part.bounds(transform, bound)
            match = None if keys is None else self._shuffle(part, transform).match(keys)
            yield from _source_rows(part, transform, self._scan(part, transform, ScanBounds(begin, end, match), keys))


def _source_rows(part: Part, transform: TransformSpec, rows: Iterable[StoredDocument]) -> Iterator[SourceRow]:
    offset = offset_of(transform.input, part.spec.tick)
    for clock, seq, key, text in rows:
        yield SourceRow(part.number, clock + offset, transform.index, clock, seq, key, text)


def _combine(replay: Replay, explanation: Explanation, question: Question) -> None:
    """Run the lambdas over the rows of an explanation, and combine the publications of its keys per tick."""
    for number, rows in sorted(explanation.rows.items()):
        if not rows:  # no rows: a derivation with several priorities has a part per transaction
            continue
        part = explanation.part(number)
        replay.enter(part)
        fold, tick = KeyFold(part.spec), part.spec.tick
        is_explained = _explained_places(explanation, question, tick)
        opened: dict[tuple[bytes, int], tuple[int, list[Document]]] = {}
        for publication in replay.run(replay.with_ends(rows)):
            _, clock, key, document = publication
            if not is_explained(key, clock):
                continue
            explanation.causes.setdefault(key, []).append(publication)
            place = (key, clock // tick)
            if place in opened:
                fold.add(key, opened[place][1], document)
                opened[place] = (clock, opened[place][1])
            else:
                opened[place] = (clock, [document])
        for (key, _), (clock, documents) in opened.items():
            made = [Made(clock, seq, dump_exact(document).decode()) for seq, document in enumerate(documents)]
            explanation.made.setdefault(key, []).extend(made)
    for several in explanation.made.values():
        several.sort()


def _explained_places(explanation: Explanation, question: Question, tick: int) -> Callable[[bytes, int], bool]:
    """Return a function from a key and a timestamp to whether a publication belongs to the explained documents.

    A document has the timestamp of the last publication in its tick. So in the tick in which the question ends, a
    publication before the end may belong to a document that is stored after the end.
    """
    stored = {(key, row.clock // tick) for key, several in explanation.stored.items() for row in several}
    last = (question.end - 1) // tick

    def is_explained(key: bytes, clock: int) -> bool:
        if key not in explanation.stored or clock >= question.end:
            return False
        is_whole = question.chosen is None and clock // tick != last
        return is_whole or clock < explanation.since or (key, clock // tick) in stored

    return is_explained


def reasons_of(explainer: Explainer, name: str, question: Question, explanation: Explanation) -> list[str]:
    """Return the reasons why a replay gives other documents than the stored documents."""
    reasons = past_reasons(explainer.store, explanation.past)
    if not reasons and not explainer.explain(name, question, replays_all=True).differences():
        reasons.append(
            "a lambda uses state of other shuffle keys: with the documents of all keys replayed, the result is equal"
        )
    return reasons or ["no reason is known: a library of a lambda may have changed, or this is a defect of flowctl"]


def past_reasons(store: Readable, past: Past) -> list[str]:
    """Return the reasons why a replay of a derivation's past may not be exact."""
    reasons = []
    if past.unknown > BEGINNING:
        reasons.append(
            f"the definitions in force before {format_rfc3339(past.unknown)} are not recorded: the first recorded one"
            " was assumed"
        )
    if any(part.has_steps for part in past.parts):
        reasons.append(
            "transforms of a derivation on a cycle differ in priority: their order depends on steps inside of a"
            " transaction, which are not recorded"
        )
    for source in dict.fromkeys(item.source for part in past.parts for item in part.spec.inputs):
        known = store.collection(source)
        if known is not None and known.since > BEGINNING:
            reasons.append(
                f"the history of '{source}' before {format_rfc3339(known.since)} was compacted, so documents that were"
                " processed are gone"
            )
    state = store.task(past.parts[-1].spec.name)
    read = {} if state is None else {place.relation: place.source for place in state.places.values() if place.relation}
    reasons += [
        f"{store.describe_fate(source, relation)}, so documents that were processed are gone"
        for relation, source in read.items()
        if store.collection_of(relation) is None
    ]
    return reasons
