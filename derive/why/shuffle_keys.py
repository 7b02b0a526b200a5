"""Keys of source documents: the shuffle key, which determines the state, and the keys of possible publications."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import pyarrow as pa

from derive.document.exact import parse_exact
from derive.document.key import compile_keys, pack, unpack
from derive.document.pointer import JSON, parse_pointer
from derive.lambda_sql.shuffle import ComputedShuffle
from derive.protocol.derive import ExplainableSession, ReadBatch
from derive.protocol.specs import CollectionSpec, DerivationSpec, TransformSpec
from derive.schema.validator import compile_validator
from derive.storage.segments.columns import TypedColumn, typed_columns
from derive.time.positions import offset_of
from derive.why.replay import SourceRow
from derive.why.scan import Match, StoredDocument, column_values


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
