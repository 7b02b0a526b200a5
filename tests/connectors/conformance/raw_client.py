"""A client of `materialize.Driver` that knows nothing but the protocol: it packs, cuts and sends messages by itself."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import fdb.tuple
import grpc
import pytest
from patience import PATIENCE_SECONDS

from derive.protocol.stubs import flow_pb2, protocol_pb2
from derive.protocol.stubs import materialize_pb2 as pb

Key: TypeAlias = tuple[Any, ...]
Document: TypeAlias = dict[str, Any]


KEYS = ("id", "name")
VALUES = ("amount", "flag", "nested", "note")
DOCUMENT = "flow_document"
"""Fields of the collection of these tests: a key of an integer and a string, and a value of each kind."""


def to_pack(value: Any) -> Any:
    """A value as it goes into a tuple: objects and arrays are their JSON."""
    return json.dumps(value).encode() if isinstance(value, dict | list) else value


def key_of(document: Document) -> Key:
    return tuple(document[name] for name in KEYS)


def pack_key(key: Key) -> bytes:
    packed: bytes = fdb.tuple.pack(key)
    return packed


def pack_values(document: Document, names: Sequence[str] = VALUES) -> bytes:
    packed: bytes = fdb.tuple.pack(tuple(to_pack(document.get(name)) for name in names))
    return packed


def dump(document: Document) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def thing(identity: int, name: str = "a", **values: Any) -> Document:
    """A document of the collection."""
    return {"id": identity, "name": name, **values}


def collection(name: str = "test/things") -> flow_pb2.CollectionSpec:
    """The collection of these tests, as a catalog would describe it."""
    types = {
        "id": ["integer"],
        "name": ["string"],
        "amount": ["number"],
        "flag": ["boolean"],
        "nested": ["array", "object"],
        "note": ["null", "string"],
    }
    spec = flow_pb2.CollectionSpec(
        collection=name,
        schema_uri=f"flow://{name}",
        key_ptrs=[f"/{key}" for key in KEYS],
        uuid_ptr="/_meta/uuid",
        ack_json_template='{"_meta":{"uuid":"00000000-0000-0000-0000-000000000000","ack":true}}',
        schema_json=json.dumps(
            {
                "type": "object",
                "required": [*KEYS],
                "properties": {
                    field: {"type": kinds if len(kinds) > 1 else kinds[0]} for field, kinds in types.items()
                },
            }
        ),
    )
    for field, kinds in types.items():
        projection = spec.projections.add(ptr=f"/{field}", field=field, is_primary_key=field in KEYS)
        projection.inference.types.extend(kinds)
        projection.inference.must_exist = field in KEYS
        if "string" in kinds:
            projection.inference.string.SetInParent()
    root = spec.projections.add(ptr="", field=DOCUMENT, user_provided=False)
    root.inference.types.append("object")
    root.inference.must_exist = True
    return spec


def shuffle(source: str) -> flow_pb2.Shuffle:
    selector = protocol_pb2.LabelSelector()
    selector.include.labels.add(name="estuary.dev/collection", value=source)
    return flow_pb2.Shuffle(
        group_name=f"materialize/{source}",
        source_collection=source,
        source_partitions=selector,
        source_uuid_ptr="/_meta/uuid",
        shuffle_key_ptr=[f"/{key}" for key in KEYS],
        uses_source_key=True,
        source_schema_uri=f"flow://{source}",
        uses_source_schema=True,
    )


def layout(parts: Sequence[Sequence[bytes]], how: str) -> tuple[bytes, list[list[flow_pb2.Slice]]]:
    """An arena of parallel lists of parts, and slices of it for each list.

    Args:
        parts: lists of byte strings.
        how: `rows` (those of a row behind one another), `lists` (list by list), `backwards`, or `gaps` (with garbage
            before, between and behind).
    """
    arena = bytearray(b"\xff\x00garbage" if how == "gaps" else b"")
    slices: list[list[flow_pb2.Slice]] = [[flow_pb2.Slice()] * len(some) for some in parts]
    cells = [(index, row) for row in range(len(parts[0])) for index in range(len(parts))]
    if how == "lists":
        cells.sort()
    if how == "backwards":
        cells.reverse()
    for index, row in cells:
        begin = len(arena)
        arena += parts[index][row]
        slices[index][row] = flow_pb2.Slice(begin=begin, end=len(arena))
        arena += b"\x00\x02\xfe" if how == "gaps" else b""
    return bytes(arena), slices


def load(binding: int, keys: Sequence[Key], how: str = "rows") -> pb.TransactionRequest:
    arena, (packed,) = layout([list(map(pack_key, keys))], how)
    return pb.TransactionRequest(load=pb.TransactionRequest.Load(binding=binding, arena=arena, packed_keys=packed))


def store(
    binding: int,
    documents: Sequence[Document],
    exists: Sequence[bool] | None = None,
    delete: Sequence[bool] = (),
    how: str = "rows",
    values: Sequence[str] = VALUES,
) -> pb.TransactionRequest:
    parts = [
        [pack_key(key_of(document)) for document in documents],
        [pack_values(document, values) for document in documents],
        list(map(dump, documents)),
    ]
    arena, (keys, packed, docs) = layout(parts, how)
    return pb.TransactionRequest(
        store=pb.TransactionRequest.Store(
            binding=binding,
            arena=arena,
            packed_keys=keys,
            packed_values=packed,
            docs_json=docs,
            exists=exists if exists is not None else [False] * len(documents),
            delete=delete,
        )
    )


def prepare(checkpoint: bytes) -> pb.TransactionRequest:
    return pb.TransactionRequest(prepare=pb.TransactionRequest.Prepare(flow_checkpoint=checkpoint))


COMMIT = pb.TransactionRequest(commit=pb.TransactionRequest.Commit())


class Stream:
    """One stream of transactions."""

    def __init__(self, transactions: Callable[..., Any], first: pb.TransactionRequest, values: Sequence[str]) -> None:
        self._values = values
        self._requests: queue.SimpleQueue[pb.TransactionRequest | None] = queue.SimpleQueue()
        self._requests.put(first)
        self.call = transactions(iter(self._requests.get, None), timeout=PATIENCE_SECONDS)

    def send(self, *requests: pb.TransactionRequest) -> None:
        for request in requests:
            self._requests.put(request)

    def receive(self) -> tuple[str, Any]:
        """The next message's name, and what it holds."""
        response = next(self.call)
        ((field, value),) = response.ListFields()
        return field.name, value

    def expect(self, name: str) -> Any:
        """The next message, which must have this name."""
        received, value = self.receive()
        assert received == name
        return value

    def store(
        self,
        documents: Sequence[Document],
        exists: Sequence[bool] | None = None,
        *,
        binding: int = 0,
        delete: Sequence[bool] = (),
        how: str = "rows",
    ) -> pb.TransactionRequest:
        """A Store of documents, with the fields of this stream's materialization."""
        return store(binding, documents, exists, delete, how, self._values)

    def documents(self) -> list[tuple[int, Document]]:
        """All that is loaded up to Prepared."""
        documents: list[tuple[int, Document]] = []
        while True:
            name, message = self.receive()
            if name == "prepared":
                return documents
            assert name == "loaded"
            assert message.docs_json, "a Loaded is not empty"
            documents += [
                (message.binding, json.loads(message.arena[doc.begin : doc.end])) for doc in message.docs_json
            ]

    def transact(
        self, checkpoint: bytes, *stores: pb.TransactionRequest, loads: Sequence[pb.TransactionRequest] = ()
    ) -> list[tuple[int, Document]]:
        """A whole transaction, one step after the other; what was loaded."""
        self.send(*loads, prepare(checkpoint))
        documents = self.documents()
        self.send(*stores, COMMIT)
        self.expect("committed")
        return documents

    def failure(self) -> tuple[grpc.StatusCode, str]:
        """Code and text with which the stream ends; what comes before is passed over."""
        with pytest.raises(grpc.RpcError) as caught:
            for _ in self.call:
                pass
        self._requests.put(None)  # or a thread of gRPC waits for it for ever
        assert isinstance(caught.value, grpc.Call)
        return caught.value.code(), caught.value.details() or ""

    def end(self) -> None:
        """Say that there are no more requests, and see the stream end without an error."""
        self._requests.put(None)
        assert list(self.call) == []

    def leave(self) -> None:
        """Say that there are no more requests."""
        self._requests.put(None)

    def cancel(self) -> None:
        self.call.cancel()
        self._requests.put(None)


def eventually(is_true: Callable[[], bool]) -> bool:
    """Whether it becomes true within the deadline."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        if is_true():
            return True
        time.sleep(0.01)
    return False


def chunks(documents: Sequence[Document], size: int) -> Iterator[Sequence[Document]]:
    for begin in range(0, len(documents), size):
        yield documents[begin : begin + size]
