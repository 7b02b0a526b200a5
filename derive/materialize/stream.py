"""The stream of transactions between a shard and its connector: the order of messages, and requests from columns.

The bytes of a request are a `TransactionRequest` as protobuf writes it, except that the numbers of slices always have
four bytes. Every reader of protobuf accepts this.

A transaction loads keys, reduces documents onto the loaded documents, and stores the results together with the
checkpoint. The loads of a transaction are sent while the endpoint still commits the previous transaction; the stream
keeps the documents of that commit, so it does not load them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import orjson
import pyarrow as pa

from derive.errors import EndpointError, ProtocolError
from derive.failpoint import reach
from derive.materialize.binding import CompiledBinding
from derive.materialize.checkpoint import Resumed, ShardCheckpoint, merge_patch, require_no_newer, resume
from derive.materialize.grouped import Grouped, KeyFilter
from derive.materialize.restarts import ResetMarker
from derive.protocol.stubs import materialize_pb2 as pb
from derive.storage.folder_id import FolderIdentity
from derive.storage.metadata.descriptions import ShardData
from derive.storage.segments.rows import ReadRows
from derive.time import BEGINNING, END_OF_TIME

ARENA_BYTES = 4 << 20
"""Approximate maximum bytes of keys, values and documents in a message; a longer document has its own message."""

MOST_ROWS = 2_500
"""Maximum number of documents of one message."""

_LOAD, _STORE = 2, 4
_ARENA, _KEYS, _VALUES, _DOCUMENTS, _EXISTS, _DELETE = 2, 3, 4, 5, 6, 7
_SLICE_BYTES = 12


def write_loads(binding: int, keys: pa.BinaryArray) -> Iterator[bytes]:
    """Yield `Load` requests of packed keys."""
    for begin, end in _parts([keys]):
        yield _request(_LOAD, binding, [(_KEYS, keys.slice(begin, end - begin))])


def write_stores(
    binding: int,
    keys: pa.BinaryArray,
    values: pa.BinaryArray,
    texts: pa.StringArray,
    exists: np.ndarray,
    deleted: np.ndarray | None = None,
) -> Iterator[bytes]:
    """Yield `Store` requests of documents.

    Args:
        binding: index of the binding.
        keys: packed keys.
        values: packed values.
        texts: the documents.
        exists: for each key, whether the endpoint has a document.
        deleted: for each key, whether the document is to be deleted; None for no deletion.
    """
    for begin, end in _parts([keys, values, texts]):
        columns = [(_KEYS, keys), (_VALUES, values), (_DOCUMENTS, texts)]
        parts = [(number, column.slice(begin, end - begin)) for number, column in columns]
        flags = _field(_EXISTS, exists[begin:end].astype(np.uint8).tobytes())
        if deleted is not None and deleted[begin:end].any():
            flags += _field(_DELETE, deleted[begin:end].astype(np.uint8).tobytes())
        yield _request(_STORE, binding, parts, flags)


def _request(kind: int, binding: int, columns: Sequence[tuple[int, pa.Array]], flags: bytes = b"") -> bytes:
    arenas, slices = [], []
    begin = 0
    for number, column in columns:
        offsets = _offsets(column)
        content = column.buffers()[2]
        arenas.append(b"" if content is None else content[int(offsets[0]) : int(offsets[-1])].to_pybytes())
        slices.append(_slices(number, offsets - offsets[0] + begin))
        begin += len(arenas[-1])
    index = b"\x08" + _varint(binding) if binding else b""
    return _field(kind, b"".join([index, _field(_ARENA, b"".join(arenas)), *slices, flags]))


def _offsets(column: pa.Array) -> np.ndarray:
    """Return the offset of each value in its buffer, and the end of the last value."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    return offsets.astype(np.int64)


def _parts(columns: Sequence[pa.Array]) -> Iterator[tuple[int, int]]:
    """Yield the range of rows of each message."""
    ends = np.sum([_offsets(column)[1:] - _offsets(column)[0] for column in columns], axis=0)
    begin, count = 0, len(columns[0])
    while begin < count:
        before = int(ends[begin - 1]) if begin else 0
        end = int(np.searchsorted(ends, before + ARENA_BYTES, side="right"))
        end = min(max(end, begin + 1), begin + MOST_ROWS)
        yield begin, end
        begin = end


def _slices(number: int, offsets: np.ndarray) -> bytes:
    """Return the encoded protobuf field `number`: the bounds of adjacent slices."""
    cells = np.empty((len(offsets) - 1, _SLICE_BYTES), dtype=np.uint8)
    cells[:, 0] = number << 3 | 2
    cells[:, 1] = _SLICE_BYTES - 2
    for tag, column, numbers in ((0x08, 2, offsets[:-1]), (0x10, 7, offsets[1:])):
        cells[:, column] = tag
        for byte in range(4):
            cells[:, column + 1 + byte] = (numbers >> (7 * byte) & 0x7F) | (0x80 if byte < 3 else 0)
    return cells.tobytes()


def _field(number: int, content: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


class Wire(Protocol):
    """Sends messages to a connector, and receives its answers. Errors are raised as `FlowError`."""

    def send(self, request: bytes) -> None:
        """Send a `TransactionRequest` without waiting."""

    def receive(self) -> pb.TransactionResponse:
        """Wait for the next answer, and return it."""

    def close(self) -> None:
        """End the stream, and cancel running work."""


class ShardStream:
    """An open stream; `open_stream` returns one. After an error, the stream can only be closed.

    Args:
        wire: wire to the connector.
        bindings: bindings of the materialization.
        kept: the data that the runtime stores for the shard.
        resumed: the point from which the shard continues.
        restart: the last reset.

    Attributes:
        kept: the data to store for the shard since the last commit.
        token: name of the attempt that committed last; empty if missing.
        positions: for each binding (by state key), the adjusted timestamp below which all documents are stored.
        clearing: for each binding (by state key) that starts over, the adjusted timestamp below which the documents to
            delete were stored; its position is the progress of the deletion.
        cleared: state keys of bindings whose documents are all deleted, and which start from nothing.
        is_new: whether a binding starts over and the endpoint has not recorded this yet.
        is_broken: whether an error has interrupted an exchange of messages.
    """

    def __init__(
        self,
        wire: Wire,
        bindings: Sequence[CompiledBinding],
        kept: ShardData,
        resumed: Resumed,
        restart: ResetMarker,
        folder: str = "",
    ) -> None:
        self._wire = wire
        self._bindings = bindings
        self.kept = kept
        self._resumed = resumed
        self._restart, self._folder = restart, folder
        self._known = [
            KeyFilter(resumed.largest.get(key, None), is_empty=key in resumed.empty)
            for key in (binding.spec.state_key for binding in bindings)
        ]
        self._uncommitted: Callable[[], None] | None = None  # called after the commit of the last transaction
        self.token = resumed.token
        self.positions = dict(resumed.positions)
        self.clearing = dict(resumed.clearing)
        self.cleared: set[str] = set()
        self.is_new = resumed.is_new
        self.is_broken = False

    def advance(self, positions: Mapping[str, int]) -> None:
        """Record that all documents before these positions (by state key) are stored or cleared."""
        for key, position in self.positions.items():
            self.positions[key] = max(position, min(positions[key], self.clearing.get(key, END_OF_TIME)))

    def transact(self, rows: Mapping[int, ReadRows], positions: Mapping[str, int], token: str) -> dict[int, int]:
        """Store documents; the next call of this method or of `finish` confirms their commit.

        Args:
            rows: rows in order, at least one for each binding, by its index.
            positions: for each advanced binding (by state key), its position after the transaction.
            token: name of the attempt.

        Returns:
            Number of documents stored or deleted, by index of the binding.

        Raises:
            FlowError: storing failed, or the previous transaction failed.
        """
        self.is_broken = True
        groups = {
            index: Grouped(
                self._bindings[index],
                part,
                self._known[index],
                is_clearing=self._bindings[index].spec.state_key in self.clearing,
            )
            for index, part in sorted(rows.items())
        }
        for index, group in groups.items():
            for request in write_loads(index, group.requested):
                self._wire.send(request)
        self._settle()
        self.positions |= positions
        ended = [key for key, limit in self.clearing.items() if self.positions[key] >= limit]
        for key in ended:
            self.positions[key] = BEGINNING
            del self.clearing[key]
        counts = self._store(groups, token)
        self.cleared.update(ended)
        for index, binding in enumerate(self._bindings):
            if binding.spec.state_key in ended:
                self._known[index] = KeyFilter(is_empty=True)
        self.is_new = False
        self.is_broken = False
        return counts

    def _store(self, groups: Mapping[int, Grouped], token: str) -> dict[int, int]:
        checkpoint = self._checkpoint(token, groups)
        request = pb.TransactionRequest(prepare=pb.TransactionRequest.Prepare(flow_checkpoint=checkpoint))
        self._wire.send(request.SerializeToString())
        kept = self._kept_after(self._load(groups), checkpoint)
        counts = dict.fromkeys(groups, 0)
        for index, group in groups.items():
            for part in group.stored():
                counts[index] += len(part.keys)
                for message in write_stores(index, part.keys, part.values, part.texts, part.exists, part.is_deleted):
                    self._wire.send(message)
        reach("materialize.committing")
        self._wire.send(pb.TransactionRequest(commit=pb.TransactionRequest.Commit()).SerializeToString())

        def committed() -> None:
            self.token, self.kept = token, kept

        self._uncommitted = committed
        return counts

    def finish(self) -> None:
        """Wait for the commit of all transactions.

        Raises:
            FlowError: the commit failed, or its outcome is unknown.
        """
        self.is_broken = True
        self._settle()
        self.is_broken = False

    def close(self) -> None:
        """End the stream."""
        self.is_broken = True
        self._wire.close()

    def _settle(self) -> None:
        if self._uncommitted is not None:
            _expect(self._wire.receive(), "committed")
            reach("materialize.committed")
            self._uncommitted()
            self._uncommitted = None

    def _load(self, groups: Mapping[int, Grouped]) -> pb.TransactionResponse.Prepared:
        """Add the documents that the connector loads, and return the connector's answer that it is ready to store."""
        while True:
            response = self._wire.receive()
            if not response.HasField("loaded"):
                return _expect(response, "prepared").prepared
            loaded = response.loaded
            if loaded.binding not in groups:
                raise ProtocolError(
                    f"the connector has loaded documents of binding {loaded.binding} that were not requested"
                )
            arena = loaded.arena
            groups[loaded.binding].load([arena[part.begin : part.end] for part in loaded.docs_json])

    def _checkpoint(self, token: str, groups: Mapping[int, Grouped]) -> bytes:
        """Return the checkpoint after a transaction."""
        absent = self._resumed.absent
        positions, largest = dict(absent.positions), dict(absent.largest)
        for index, binding in enumerate(self._bindings):
            spec = binding.spec
            positions[spec.state_key] = (
                spec.collection.name,
                max(self.positions[spec.state_key] - spec.offset, BEGINNING),
            )
            greatest = self._known[index].largest
            if greatest is not None and index in groups:
                greatest = max(greatest, groups[index].greatest)
            if greatest:
                largest[spec.state_key] = greatest
        offsets = {binding.spec.state_key: binding.spec.offset for binding in self._bindings}
        clearing = {**absent.clearing, **{key: limit - offsets[key] for key, limit in self.clearing.items()}}
        restart = self._restart
        own = {binding.spec.state_key: binding.spec.contents for binding in self._bindings if binding.spec.contents}
        contents = {**absent.contents, **own}
        return ShardCheckpoint(
            token, positions, largest, clearing, restart.name, self._folder, restart.parts, contents
        ).to_bytes()

    def _kept_after(self, prepared: pb.TransactionResponse.Prepared, checkpoint: bytes) -> ShardData:
        """Return the data to store after the commit of the transaction for which the connector is prepared."""
        driver = prepared.driver_checkpoint_json or self.kept.driver
        if prepared.driver_checkpoint_json and prepared.rfc7396_merge_patch:
            before = orjson.loads(self.kept.driver) if self.kept.driver else {}
            driver = orjson.dumps(merge_patch(before, orjson.loads(prepared.driver_checkpoint_json)))
        return ShardData(b"" if self._resumed.is_kept else checkpoint, driver)


def open_stream(
    wire: Wire,
    opening: pb.TransactionRequest.Open,
    bindings: Sequence[CompiledBinding],
    kept: ShardData,
    positions: Mapping[str, int],
    token: str | None,
    restart: ResetMarker | None = None,
    folder: FolderIdentity | None = None,
) -> ShardStream:
    """Open a stream, which fences earlier streams of any of its keys.

    Args:
        wire: wire to the connector.
        opening: message that opens the stream, without the driver checkpoint.
        bindings: bindings of the materialization.
        kept: the data that the runtime stores for the shard.
        positions: for each binding (by state key), the data folder's progress.
        token: name of the attempt whose commit the data folder recorded last; None if there was none.
        restart: the last reset; None if there was none.
        folder: identity of this data folder; None to skip its check.

    Raises:
        FlowError: the stream cannot be opened.
    """
    restart = restart or ResetMarker()
    opening.driver_checkpoint_json = kept.driver
    wire.send(pb.TransactionRequest(open=opening).SerializeToString())
    opened = _expect(wire.receive(), "opened").opened
    specs = [binding.spec for binding in bindings]
    contents = list(opened.contents) or [""] * len(specs)
    if contents != [spec.contents for spec in specs]:
        raise EndpointError("the tables were changed after the materialization was applied", hint="flowctl retries")
    task = opening.materialization.materialization
    require_no_newer(opened.narrower, specs, positions, restart, folder, task)
    resumed = resume(opened.flow_checkpoint, kept, specs, positions, token, restart, folder, task)
    return ShardStream(wire, bindings, kept, resumed, restart, folder.id if folder else "")


def _expect(response: pb.TransactionResponse, kind: str) -> pb.TransactionResponse:
    given = next((field.name for field, _ in response.ListFields()), "nothing")
    if given != kind:
        raise ProtocolError(f"the connector sent '{given}' instead of '{kind}'")
    return response
