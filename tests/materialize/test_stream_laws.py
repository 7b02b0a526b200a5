"""L6: random documents and reductions through random cuts and crashes give the table that one fold gives."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

from conftest import examples
from fake_connector import Checkpoint, Endpoint, FakeWire
from hypothesis import event, given, settings
from hypothesis import strategies as st
from stored_documents import binding, collection, compiled, expected, rows_of

from derive.errors import FlowError
from derive.materialize.plan import Extent, store_rows
from derive.materialize.restarts import ResetMarker
from derive.materialize.stream import ShardStream, open_stream
from derive.protocol.stubs import materialize_pb2 as pb
from derive.storage.metadata.descriptions import ShardData

_INTEGER = {"type": "integer"}
_VALUE: dict[str, Any] = {
    "type": "object",
    "required": ["k"],
    "properties": {
        "k": _INTEGER,
        "n": {"type": "number", "reduce": {"strategy": "sum"}},
        "low": {"type": "integer", "reduce": {"strategy": "minimize"}},
        "text": {"type": ["string", "null"]},
        "yes": {"type": "boolean"},
        "list": {"type": "array", "items": {"type": "integer"}, "reduce": {"strategy": "append"}},
        "first": {"type": "string", "reduce": {"strategy": "firstWriteWins"}},
        "gone": {"const": True},
    },
}
MERGED = {**_VALUE, "reduce": {"strategy": "merge"}}
DELETED = {
    **_VALUE,
    "if": {"required": ["gone"]},
    "then": {"reduce": {"strategy": "lastWriteWins", "delete": True}},
    "else": {"reduce": {"strategy": "merge"}},
}
SCHEMAS = {"last": _VALUE, "merged": MERGED, "deleted": DELETED}

DOCUMENTS = st.fixed_dictionaries(
    {"k": st.integers(0, 5)},
    optional={
        "n": st.integers(-3, 3) | st.sampled_from([0.5, 2**70]),
        "low": st.integers(-300, 300),
        "text": st.none() | st.text(max_size=3),
        "yes": st.booleans(),
        "list": st.lists(st.integers(0, 3), max_size=2),
        "first": st.text(max_size=2),
        "gone": st.just(True),
    },
)


class World:
    """A data folder and a run over it, as far as they concern one shard."""

    def __init__(self, schemas: list[str], documents: list[tuple[int, int, Any]], endpoint: Endpoint) -> None:
        collections = [collection(f"c/{number}", SCHEMAS[name]) for number, name in enumerate(schemas)]
        self.bindings = [binding(source, f"b{number}") for number, source in enumerate(collections)]
        self.documents = sorted(
            ((clock, index % len(schemas), document) for clock, index, document in documents), key=lambda it: it[:2]
        )
        self.endpoint = endpoint
        self.kept = ShardData()
        self.positions = {spec.state_key: 0 for spec in self.bindings}
        self.token: str | None = None
        self.restart = ResetMarker()
        self.stream: ShardStream | None = None
        self.snapshots: list[Any] = []
        self._names = (f"attempt-{number}" for number in itertools.count())

    def reset(self) -> None:
        self.positions, self.token, self.stream = dict.fromkeys(self.positions, 0), None, None
        self.restart = ResetMarker(next(self._names))

    def restore(self, number: int) -> None:
        """The endpoint is as it was before, which nobody is told; not as it was when it had no checkpoint yet."""
        committed = [snapshot for snapshot in self.snapshots if any(point.flow for point in snapshot[1].values())]
        if not committed:
            return
        tables, checkpoints = copy.deepcopy(committed[number % len(committed)])
        fences = {key: point.fence for key, point in self.endpoint.checkpoints.items()}
        self.endpoint.tables, self.endpoint.checkpoints = tables, checkpoints
        for key, fence in fences.items():  # whoever is connected has lost the connection
            checkpoints.setdefault(key, Checkpoint(fence)).fence = fence + 1
        self.stream = None

    def step(self, end: int, most: int, faults: Iterator[bool], *, is_late: bool, loses: bool) -> None:
        """One transaction of the task, up to a time; it may crash anywhere."""
        begin = min(self.positions.values())
        part = [row for row in self.documents if begin <= row[0] < end and row[0] >= self.positions[f"b{row[1]}"]]
        token = next(self._names)
        try:
            if self.stream is None or self.stream.is_broken or (self.stream.token or None) != self.token:
                wire = FakeWire(self.endpoint, lambda: next(faults, False), commits_late=is_late)
                opening = pb.TransactionRequest.Open(version="1", key_begin=0, key_end=0xFFFFFFFF)
                bindings = compiled(self.bindings)
                self.stream = open_stream(wire, opening, bindings, self.kept, self.positions, self.token, self.restart)
            else:
                self.stream.advance(self.positions)
            if any(self.stream.positions[key] < at for key, at in self.positions.items()):
                event("stepped back")
                self.positions = {key: min(at, self.stream.positions[key]) for key, at in self.positions.items()}
                return
            rows = [rows_of(self.bindings, part[at : at + 3]) for at in range(0, len(part), 3)]
            store_rows(
                self.stream, self.bindings, iter(rows), Extent(frozenset(self.positions), end, documents=most), token
            )
        except FlowError:
            event("crashed")
            self.kept, self.stream = self.stream.kept if self.stream else self.kept, None
            return
        if loses:  # the process ends before it has committed
            event("lost")
            self.stream = None
            return
        reached = {key: max(at, end) for key, at in self.positions.items()}
        self.positions = self.positions | dict.fromkeys(self.stream.cleared, 0) if self.stream.cleared else reached
        self.stream.cleared.clear()
        self.token, self.kept = self.stream.token or None, self.stream.kept
        self.snapshots.append(copy.deepcopy((self.endpoint.tables, self.endpoint.checkpoints)))

    def finish(self) -> None:
        for _ in range(8):
            self.step(101, 1000, iter(()), is_late=False, loses=False)

    def check(self) -> None:
        for index, spec in enumerate(self.bindings):
            contents = [document for _, number, document in self.documents if number == index]
            assert self.endpoint.tables.get(index, {}) == expected(spec, contents)


STEPS = st.lists(
    st.tuples(st.integers(1, 101), st.integers(1, 8), st.integers(0, 30), st.booleans(), st.booleans()), max_size=8
)


@given(
    st.lists(st.sampled_from(sorted(SCHEMAS)), min_size=1, max_size=2),
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 1), DOCUMENTS), max_size=25),
    STEPS,
)
@settings(max_examples=examples(150), deadline=None)
def test_stream_with_any_cuts_and_crashes_equals_one_fold(
    schemas: list[str], documents: list[tuple[int, int, Any]], steps: list[tuple[int, int, int, bool, bool]]
) -> None:
    world = World(schemas, documents, Endpoint())
    for end, most, crash, is_late, loses in steps:
        faults = iter([*[False] * crash, True])
        world.step(end, most, faults if crash else iter(()), is_late=is_late, loses=loses)
    world.finish()
    world.check()


@given(
    st.lists(st.sampled_from(sorted(SCHEMAS)), min_size=1, max_size=2),
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 1), DOCUMENTS), max_size=25),
    STEPS,
    st.lists(st.sampled_from(["", "", "reset", "restore"]), min_size=8, max_size=8),
)
@settings(max_examples=examples(150), deadline=None)
def test_stream_laws_hold_with_resets_and_restored_endpoints(
    schemas: list[str],
    documents: list[tuple[int, int, Any]],
    steps: list[tuple[int, int, int, bool, bool]],
    others: list[str],
) -> None:
    world = World(schemas, documents, Endpoint())
    for (end, most, crash, is_late, loses), other in zip(steps, others, strict=False):
        if other == "reset":
            world.reset()
        elif other == "restore":
            world.restore(most)
        faults = iter([*[False] * crash, True])
        world.step(end, most, faults if crash else iter(()), is_late=is_late, loses=loses)
    world.finish()
    world.check()
