"""A connector in memory: tables, a checkpoint for each range of keys, and a fence; it can crash at any message."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

from derive.errors import EndpointGoneError, FencedError
from derive.protocol.stubs import materialize_pb2 as pb

Row = tuple[bytes, bytes]
"""Packed values and document."""


@dataclass
class Checkpoint:
    fence: int
    flow: bytes = b""


@dataclass
class Endpoint:
    """What outlives streams.

    `keeps` says whether it keeps checkpoints, `log` has what was appended in delta updates.
    """

    keeps: bool = True
    tables: dict[int, dict[bytes, Row]] = field(default_factory=dict)
    log: list[tuple[int, bytes, Row]] = field(default_factory=list)
    delta: frozenset[int] = frozenset()
    checkpoints: dict[tuple[int, int], Checkpoint] = field(default_factory=dict)
    loads: int = 0
    commits: int = 0

    def documents(self, binding: int = 0) -> dict[bytes, object]:
        return {key: orjson.loads(text) for key, (_, text) in self.tables.get(binding, {}).items()}


class FakeWire:
    """A stream with the fake connector, which checks the order of messages as it goes.

    Args:
        endpoint: what it stores into.
        fault: asked at every message in either direction; True for a crash of the connection there.
        commits_late: commits when the runtime waits for it, and not when it says so.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        fault: Callable[[], bool] = lambda: False,
        *,
        commits_late: bool = True,
        driver: Callable[[int], tuple[bytes, bool]] = lambda _: (b"", False),
    ) -> None:
        self._endpoint = endpoint
        self._fault = fault
        self._late = commits_late
        self._driver = driver
        self._answers: deque[pb.TransactionResponse] = deque()
        self._loads: list[tuple[int, bytes]] = []
        self._stores: list[pb.TransactionRequest.Store] = []
        self._state = "open"
        self._is_due = False
        self._flow = b""
        self._committing: set[tuple[int, bytes]] = set()
        self._number = 0
        self.is_closed = False
        self.opened_with = b""

    def send(self, request: bytes) -> None:
        if self._fault():
            raise EndpointGoneError("the connection broke as we sent")
        message = pb.TransactionRequest.FromString(request)
        (kind,) = [name.name for name, _ in message.ListFields()]
        getattr(self, f"_on_{kind}")(getattr(message, kind))

    def receive(self) -> pb.TransactionResponse:
        if self._fault():
            raise EndpointGoneError("the connection broke before what came of it was known")
        self._finish()
        if self._fault():
            raise EndpointGoneError("the connection broke as we were told")
        return self._answers.popleft()

    def close(self) -> None:
        self.is_closed = True

    def _on_open(self, opening: pb.TransactionRequest.Open) -> None:
        assert self._state == "open"
        assert opening.version
        self._range = (opening.key_begin, opening.key_end)
        self.opened_with = opening.driver_checkpoint_json
        points, (begin, end) = self._endpoint.checkpoints, self._range
        for (first, last), point in points.items():
            if first <= end and begin <= last:
                point.fence += 1
        if self._range not in points:
            around = [point for (first, last), point in points.items() if first <= begin and end <= last and point.flow]
            points[self._range] = Checkpoint(1, around[0].flow if around else b"")
        self._fence = points[self._range].fence
        self._state = "load"
        flow = points[self._range].flow if self._endpoint.keeps else b""
        self._answers.append(pb.TransactionResponse(opened=pb.TransactionResponse.Opened(flow_checkpoint=flow)))

    def _on_load(self, load: pb.TransactionRequest.Load) -> None:
        assert self._state == "load"
        keys = [(load.binding, load.arena[part.begin : part.end]) for part in load.packed_keys]
        assert keys
        assert load.binding not in self._endpoint.delta
        assert not self._committing & set(keys), "a key is loaded that is being committed"
        assert not set(self._loads) & set(keys), "a key is loaded twice"
        self._endpoint.loads += len(keys)
        self._loads += keys

    def _on_prepare(self, prepare: pb.TransactionRequest.Prepare) -> None:
        assert self._state == "load"
        assert not self._is_due, "Prepare before the Committed of the transaction before"
        assert prepare.flow_checkpoint
        self._flow = prepare.flow_checkpoint
        tables = self._endpoint.tables
        for binding, key in self._loads:
            row = tables.get(binding, {}).get(key)
            if row is not None:
                loaded = pb.TransactionResponse.Loaded(binding=binding, arena=b"  " + row[1])
                loaded.docs_json.add(begin=2, end=2 + len(row[1]))
                self._answers.append(pb.TransactionResponse(loaded=loaded))
        self._number += 1
        text, is_patch = self._driver(self._number)
        prepared = pb.TransactionResponse.Prepared(driver_checkpoint_json=text, rfc7396_merge_patch=is_patch)
        self._answers.append(pb.TransactionResponse(prepared=prepared))
        self._loads, self._state = [], "store"

    def _on_store(self, store: pb.TransactionRequest.Store) -> None:
        assert self._state == "store"
        assert len(store.packed_keys) == len(store.packed_values) == len(store.docs_json) == len(store.exists) > 0
        self._stores.append(store)

    def _on_commit(self, _: pb.TransactionRequest.Commit) -> None:
        assert self._state == "store"
        self._committing = {
            (store.binding, store.arena[part.begin : part.end]) for store in self._stores for part in store.packed_keys
        }
        self._state, self._is_due = "load", True
        if not self._late:
            self._finish()

    def _apply_all(self) -> None:
        stores, self._stores = self._stores, []
        endpoint = self._endpoint
        point = endpoint.checkpoints[self._range]
        if point.fence != self._fence:
            raise FencedError("another stream of this materialization was opened")
        for store in stores:
            self._apply(store)
        point.flow = self._flow
        endpoint.commits += 1

    def _apply(self, store: pb.TransactionRequest.Store) -> None:
        arena, endpoint = store.arena, self._endpoint
        table = endpoint.tables.setdefault(store.binding, {})
        slices = zip(store.packed_keys, store.packed_values, store.docs_json, strict=True)
        for number, (key_slice, value_slice, text_slice) in enumerate(slices):
            key = arena[key_slice.begin : key_slice.end]
            row = arena[value_slice.begin : value_slice.end], arena[text_slice.begin : text_slice.end]
            if store.binding in endpoint.delta:
                endpoint.log.append((store.binding, key, row))
                continue
            assert store.exists[number] == (key in table), f"exists is {store.exists[number]} of {key!r}"
            if store.delete and store.delete[number]:
                del table[key]
            else:
                table[key] = row

    def _finish(self) -> None:
        if self._is_due:
            self._is_due = False
            self._committing = set()
            self._apply_all()
            self._answers.append(pb.TransactionResponse(committed=pb.TransactionResponse.Committed()))
