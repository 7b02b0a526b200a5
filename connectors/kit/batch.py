"""Conversion of Load and Store messages into keys and rows: slices of an arena are checked and unpacked."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from operator import gt, itemgetter
from typing import Protocol

from connectors.kit.packed import unpack_columns, unpack_if_all, unpack_joined
from connectors.kit.requests import Binding
from connectors.kit.stored import StoredRows, Value
from derive.errors import ProtocolError
from derive.protocol.stubs import flow_pb2
from derive.protocol.stubs import materialize_pb2 as pb


class _OfBinding(Protocol):
    @property
    def binding(self) -> int: ...


def binding_of(message: _OfBinding, bindings: Sequence[Binding]) -> Binding:
    """Return the binding of a Load or a Store.

    Raises:
        ProtocolError: there is no binding with this index.
    """
    if message.binding >= len(bindings):
        known = f"there are {len(bindings)}, counted from 0"
        raise ProtocolError(f"{type(message).__name__} is of an unknown binding, {message.binding}: {known}")
    return bindings[message.binding]


def keys_of(load: pb.TransactionRequest.Load, binding: Binding) -> list[tuple[Value, ...]]:
    """Return the keys of a Load.

    Raises:
        ProtocolError: the message is not a valid Load of this binding.
    """
    if binding.delta_updates:
        raise ProtocolError(f"Load is of {_name(binding)}, which has delta updates")
    if not load.packed_keys:
        raise ProtocolError("Load has no keys")
    arena = load.arena
    _check_end(load.packed_keys, arena, "key")
    columns = _joined(load.packed_keys, arena, len(binding.keys))
    if columns is None:
        packed = [arena[key.begin : key.end] for key in load.packed_keys]
        columns = _unpack(packed, len(binding.keys), binding)
    return list(zip(*columns, strict=True))


def rows_of(store: pb.TransactionRequest.Store, binding: Binding) -> StoredRows:
    """Return the rows of a Store.

    Raises:
        ProtocolError: the message is not a valid Store of this binding.
    """
    count = len(store.packed_keys)
    if not count:
        raise ProtocolError("Store has no keys")
    lengths = [len(store.packed_values), len(store.docs_json), len(store.exists), len(store.delete) or count]
    if lengths != [count] * 4:
        names = ("values", "documents", "exists", "delete")
        counts = ", ".join(f"{length} {name}" for length, name in zip(lengths, names, strict=True))
        raise ProtocolError(f"the lists of Store are not parallel: {count} keys, {counts}")
    arena = store.arena
    _check_end(store.packed_keys, arena, "key")
    _check_end(store.packed_values, arena, "value")
    columns = _columns(store, arena, binding)
    return StoredRows(
        key_columns=columns[: len(binding.keys)],
        value_columns=columns[len(binding.keys) :],
        documents=_documents(store.docs_json, arena),
        exists=list(store.exists),
        deleted=list(store.delete) if store.delete else [False] * count,
    )


def _columns(store: pb.TransactionRequest.Store, arena: bytes, binding: Binding) -> list[list[Value]]:
    """Return the columns of keys and values; if a row's key and value are adjacent, they are unpacked as one tuple."""
    width = len(binding.keys) + len(binding.values)
    keys, values = store.packed_keys, store.packed_values
    if keys[0].end == values[0].begin and [key.end for key in keys] == [value.begin for value in values]:
        joined = [arena[key.begin : value.end] for key, value in zip(keys, values, strict=True)]
        columns = unpack_if_all(joined, width)
        if columns is not None:
            return columns
    elif binding.values:
        key_columns = _joined(keys, arena, len(binding.keys))
        value_columns = key_columns and _joined(values, arena, len(binding.values))
        if key_columns and value_columns:
            return key_columns + value_columns
    packed = [
        arena[key.begin : key.end] + arena[value.begin : value.end] for key, value in zip(keys, values, strict=True)
    ]
    return _unpack(packed, width, binding)


def _joined(slices: Sequence[flow_pb2.Slice], arena: bytes, width: int) -> list[list[Value]] | None:
    """Return the columns of tuples that fill a part of the arena in order, without slicing each; otherwise None."""
    begins, ends = [one.begin for one in slices], [one.end for one in slices]
    if begins[1:] != ends[:-1]:
        return None  # the bytes in between could look like tuples
    return unpack_joined(arena[begins[0] : ends[-1]], width, len(begins))


def _unpack(packed: list[bytes], width: int, binding: Binding) -> list[list[Value]]:
    try:
        return unpack_columns(packed, width)
    except ProtocolError as error:
        raise ProtocolError(f"of {_name(binding)}, {error.message}") from error


def _documents(slices: Sequence[flow_pb2.Slice], arena: bytes) -> list[bytes]:
    # Unlike a truncated tuple, a truncated document may look valid.
    bounds = [(document.begin, document.end) for document in slices]
    if any(starmap(gt, bounds)) or max(map(itemgetter(1), bounds)) > len(arena):
        raise ProtocolError(f"a slice of a document lies outside its arena of {len(arena)} bytes")
    return [arena[begin:end] for begin, end in bounds]


def _check_end(slices: Sequence[flow_pb2.Slice], arena: bytes, what: str) -> None:
    if slices[-1].end > len(arena):
        raise ProtocolError(f"a slice of a {what} lies outside its arena of {len(arena)} bytes")


def _name(binding: Binding) -> str:
    return f"binding '{'.'.join(binding.resource_path) or binding.collection.name}'"
