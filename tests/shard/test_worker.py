"""What runs on a worker: files and prepared state of one part of a transaction, or what stopped it."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import World, write_catalog
from hypothesis import example, given, settings
from hypothesis import strategies as st

from connectors.derive_typescript.runtime.process import frame_of
from derive.catalog import load
from derive.document.exact import parse_exact
from derive.document.key import pack
from derive.engine.executor import InProcessExecutor
from derive.errors import OutdatedError
from derive.materialize.stages import AnyPlan
from derive.protocol.derive import ReadBatch
from derive.protocol.specs import DerivationSpec
from derive.shard.fields import UnparsedDocuments
from derive.shard.owners import CONTENT, DELIVERED, OWNER, RANK, owners_of_keys
from derive.shard.plan import Plan, Shape
from derive.shard.progress import Counter, Message, Progress, Reached, progress_folder
from derive.shard.shuffled_ticks import are_shared, gather_ticks
from derive.shard.stages import MESSAGE, Stages, carry_out, stages_of
from derive.shard.state import publish_epoch
from derive.shard.worker import run_alone, run_single, run_slice
from derive.storage.segments.reader import read_sorted
from derive.storage.segments.rows import KeyRows, ReadRows, WrittenRows
from derive.storage.segments.texts import write_texts
from derive.storage.segments.writer import SegmentWriter
from derive.time.source_read import Segment, SourceRead

CATALOG = """
collections:
  w/in:
    key: [/id]
    schema: {type: object, required: [id, k], properties: {id: {type: integer}, k: {type: integer}}}
  w/out:
    key: [/k]
    schema:
      type: object
      required: [k]
      reduce: {strategy: merge}
      properties: {k: {type: integer}, n: {type: integer, reduce: {strategy: sum}}}
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE seen (id INTEGER PRIMARY KEY);"]}}
      transforms:
        - {name: add, source: w/in, shuffle: {key: [/id]}, lambda: "INSERT INTO seen VALUES ($id); SELECT $k, 1 AS n;"}
"""
SECOND = 1_000_000
MakePlan = Callable[..., Plan]


@pytest.fixture
def plan_of(tmp_path: Path) -> MakePlan:
    """A function from keys, of documents a quarter of a second apart, to a transaction over them."""
    spec = derivation(tmp_path)
    return lambda keys, shape="single": plan(spec, tmp_path, keys, shape, 1)


def derivation(root: Path) -> DerivationSpec:
    with publish_epoch(root, "w/out", 1):
        return load(write_catalog(root, CATALOG)).derivations["w/out"]


def plan(spec: DerivationSpec, root: Path, keys: list[int], shape: Shape, shards: int) -> Plan:
    writer = SegmentWriter(root, spec.sources["w/in"], "in")
    if keys:
        clocks = [index * SECOND // 4 for index in range(len(keys))]
        documents = [{"id": index, "k": key} for index, key in enumerate(keys)]
        packed = [pack([index]) for index in range(len(keys))]
        writer.write(WrittenRows.sorted_of(clocks, [0] * len(keys), packed, documents, ["[]"] * len(keys)))
    end = 100 * SECOND
    reads = (SourceRead(0, 0, 0, end, tuple(writer.close())),)
    return Plan(spec, root, "token", 1, 1, shape, shards, {}, 0, end, reads, slices=(0, SECOND, end))


def published(plan: Plan, segments: tuple[Segment, ...]) -> list[tuple[int, int, bytes, str]]:
    """Clock, seq, key and JSON text of each row."""
    return [row for rows in read_sorted(plan.root, [SourceRead(0, 0, 0, plan.end, segments)]) for row in rows.tuples()]


def test_a_single_shard_writes_what_is_combined_and_prepares_its_state(plan_of: MakePlan) -> None:
    plan = plan_of([7, 8, 7, 7, 7])

    message = run_single(plan, 5)

    assert published(plan, message.segments) == [
        (250_000, 0, pack([8]), '{"k":8,"n":1}'),
        (750_000, 0, pack([7]), '{"k":7,"n":3}'),
        (1_000_000, 0, pack([7]), '{"k":7,"n":1}'),
    ]
    assert [segment.path for segment in message.segments] == ["collections/w/out@/token-5-single-0.parquet"]
    assert (dict(message.shards), message.documents_in, message.documents_out) == ({0: "token-5"}, 5, 3)
    assert message.error is None


def test_a_slice_reads_its_span_and_keeps_no_state(plan_of: MakePlan) -> None:
    plan = plan_of([7, 8, 7, 7, 7], "slices")

    first, second = (run_slice(plan, number, 1) for number in (0, 1))

    assert published(plan, second.segments) == [(1_000_000, 0, pack([7]), '{"k":7,"n":1}')]
    assert (first.documents_in, first.documents_out, first.shards) == (4, 2, {})
    assert (second.documents_in, second.documents_out, second.shards) == (1, 1, {})
    assert not list((plan.root / "state" / "w" / "out@").glob("*-*"))


def test_what_fails_says_so_and_leaves_no_file(plan_of: MakePlan) -> None:
    plan = plan_of([7, 8])
    broken = replace(plan, spec=replace(plan.spec, tick=SECOND), reads=plan.reads * 2)  # each document comes twice

    message = run_single(broken, 1)

    assert message.error is not None
    assert "UNIQUE constraint failed: seen.id" in message.error["message"]
    assert (message.segments, message.shards) == ((), {})
    assert not list((plan.root / "collections" / "w" / "out@").glob("*"))


def test_an_attempt_that_is_outdated_says_nothing(plan_of: MakePlan) -> None:
    plan = plan_of([7, 8])
    later = run_single(plan, 2)

    with pytest.raises(OutdatedError):
        run_single(plan, 1)
    assert published(plan, later.segments) != []


def test_a_run_that_was_superseded_is_told(plan_of: MakePlan) -> None:
    plan = plan_of([7, 8])
    with publish_epoch(plan.root, "w/out", 2):
        pass

    message = run_single(plan, 1)

    assert message.error is not None
    assert "another flowctl has taken over" in message.error["message"]


@settings(max_examples=20)
@given(st.lists(st.integers(0, 3), max_size=12), st.integers(2, 4))
def test_several_shards_write_what_a_single_one_does(keys: list[int], shards: int) -> None:
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        alone = plan(derivation(Path(first)), Path(first), keys, "single", 1)
        shared = plan(derivation(Path(second)), Path(second), keys, "sharded", shards)

        (single,) = run_alone(alone, 0, 1)
        messages = run_alone(shared, 0, 1)

        assert single.error is None
        assert [message.error for message in messages] == [None] * len(messages)
        segments = tuple(segment for message in messages for segment in message.segments)
        assert published(shared, segments) == published(alone, single.segments)
    assert sum(message.documents_in for message in messages) == single.documents_in == len(keys)
    assert sum(message.documents_out for message in messages) == single.documents_out


def test_a_message_is_json() -> None:
    segment = Segment("w/out", "collections/w/out@/x-0.parquet", ("a", None), 1, 2, 3, 400, checksum="5e")
    reached = Reached("w/out", {0: 50}, 60)
    message = Message((segment,), {2: "token-1"}, 7, 3, {"code": "E1", "message": "no"}, 4, reached, {"b": 5}, True)

    assert message.to_json() == (
        '[[["w/out","collections/w/out@/x-0.parquet",["a",null],1,2,3,400,"5e"]],[[2,"token-1"]],7,3,'
        '{"code":"E1","message":"no"},4,["w/out",[[0,50]],60],{"b":5},true,[]]'
    )
    assert Message.from_json(message.to_json()) == message


def test_progress_is_written_about_every_ten_thousand_documents(plan_of: MakePlan) -> None:
    plan = plan_of([])
    folder = progress_folder(plan.root, "w/out") / "token"
    folder.mkdir(parents=True)
    counter = Counter(plan, "shard-0")

    counter.add(9_999)
    assert list(folder.iterdir()) == []
    counter.add(2)
    counter.add(5_000)

    assert int.from_bytes((folder / "shard-0").read_bytes(), "little") == 10_001
    assert counter.total == 15_001


# Shards that combine what is their own and compare only keys: the same comes out as of a single shard.


APART = """
collections:
  w/in:
    key: [/id]
    schema: {type: object, required: [id, k], properties: {id: {type: integer}, k: {type: integer}}}
  w/out:
    key: [/k]
    schema:
      type: object
      required: [k]
      reduce: {strategy: merge}
      properties: {k: {type: integer}, ids: {type: array, reduce: {strategy: append}}}
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE seen (id INTEGER PRIMARY KEY);"]}}
      transforms:
        - name: add
          source: w/in
          shuffle: {key: [/id]}
          lambda: "INSERT INTO seen VALUES ($id); SELECT $k, json_array($id) AS ids;"
"""
END = 100 * SECOND
WALL = 1_767_225_660 * SECOND  # a minute past midnight of 2026-01-01
Row = tuple[int, int, bytes, str]


def plan_apart(root: Path, keys: Sequence[int], shards: int) -> Plan:
    """A transaction over documents a quarter of a second apart, of which each is published under one of these keys."""
    spec = derivation(root)
    writer = SegmentWriter(root, spec.sources["w/in"], "in")
    numbers = range(len(keys))
    if keys:
        documents = [{"id": index, "k": key} for index, key in enumerate(keys)]
        clocks, packed = [index * SECOND // 4 for index in numbers], [pack([index]) for index in numbers]
        writer.write(WrittenRows.sorted_of(clocks, [0] * len(keys), packed, documents, ["[]"] * len(keys)))
    reads = (SourceRead(0, 0, 0, END, tuple(writer.close())),)
    shape: Shape = "single" if shards == 1 else "sharded"
    return Plan(
        spec, root, "token", 1, 1, shape, shards, {}, 0, END, reads, slices=(0, SECOND, END), is_conflict_free=True
    )


class Shuffle:
    """Runs stages in this process; what is sent from one to the next arrives in order of rank.

    Attributes:
        runs: what was run.
    """

    def __init__(self) -> None:
        self._attempts = itertools.count(1)
        self.runs: list[Stages] = []

    def __call__(self, work: Stages) -> list[Message]:
        self.runs.append(work)
        sent: list[dict[str, object]] = []
        for index, stage in enumerate(work.stages):
            received, sent = sent, []
            for number in range(work.owners if index else work.tasks):
                own = sorted((row for row in received if row[OWNER] == number), key=lambda row: int(str(row[RANK])))
                for batch in stage(number, delivered(own), next(self._attempts)):
                    sent += batch.to_pylist()
        return [Message.from_json(str(row[MESSAGE])) for row in sent]


def delivered(packets: Sequence[dict[str, object]]) -> Iterator[pa.RecordBatch]:
    """Packets as an owner is sent them, each in a batch of its own."""
    schema = pa.schema([(RANK, pa.int64()), (CONTENT, pa.binary())])
    return (pa.RecordBatch.from_pylist([{name: row[name] for name in DELIVERED}], schema=schema) for row in packets)


def published_apart(plan: Plan, segments: tuple[Segment, ...]) -> list[Row]:
    """Clock, seq, key and JSON text of each row."""
    return [row for rows in read_sorted(plan.root, [SourceRead(0, 0, 0, plan.end, segments)]) for row in rows.tuples()]


def segments_of(messages: Sequence[Message]) -> tuple[Segment, ...]:
    return tuple(segment for message in messages for segment in message.segments)


def is_published_twice(keys: Sequence[int], shards: int) -> bool:
    """Whether two shards publish a document of one key in one second."""
    owners = owners_of_keys([pack([index]) for index in range(len(keys))], shards).tolist()
    told = {(index // 4, key, owner) for index, (key, owner) in enumerate(zip(keys, owners, strict=True))}
    return len({(second, key) for second, key, _ in told}) < len(told)


@settings(max_examples=40)
@given(st.lists(st.integers(0, 9), max_size=16), st.integers(2, 4))
@example([1, 2, 3, 4, 1, 2, 3, 4], 2)  # keys come again in another second
@example([1, 1, 1, 1, 1, 1, 1, 1], 3)
def test_the_same_comes_out_as_of_a_single_shard(keys: list[int], shards: int) -> None:
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        alone, plan = plan_apart(Path(first), keys, 1), plan_apart(Path(second), keys, shards)
        shuffle = Shuffle()

        (single,) = run_alone(alone, 0, 1)
        messages = carry_out(plan.root, stages_of(plan), shuffle)

        assert (single.error, [message.error for message in messages]) == (None, [None] * len(messages))
        segments = segments_of(messages)
        assert published_apart(plan, segments) == published_apart(alone, single.segments)
        files = sorted(path.name for path in (plan.root / "collections" / "w" / "out@").glob("*"))
        assert files == sorted(Path(segment.path).name for segment in segments)
    is_shared = is_published_twice(keys, shards)
    assert any(message.is_shared for message in messages) == is_shared
    assert len(shuffle.runs) == 1 + is_shared
    assert sum(message.documents_in for message in messages) == len(keys)
    assert sum(message.documents_out for message in messages) == single.documents_out
    owners = owners_of_keys([pack([index]) for index in range(len(keys))], shards).tolist()
    assert {number for message in messages for number in message.shards} == set(owners)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 9), max_size=16), st.integers(2, 4))
def test_one_process_tells_as_well_whether_keys_are_shared(keys: list[int], shards: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        messages = run_alone(plan_apart(Path(folder), keys, shards), 0, 1)

    assert any(message.is_shared for message in messages) == is_published_twice(keys, shards)


def test_a_tick_with_too_many_keys_to_compare_is_combined(tmp_path: Path) -> None:
    plan = replace(plan_apart(tmp_path, list(range(12)), 2), memory=4)
    shuffle = Shuffle()

    messages = carry_out(plan.root, stages_of(plan), shuffle)

    assert [message.is_shared for message in messages if message.is_shared] == [True]
    assert [work.otherwise is None for work in shuffle.runs] == [False, True]
    ids = [text for _, _, _, text in published_apart(plan, segments_of(messages))]
    assert ids == [f'{{"k":{number},"ids":[{number}]}}' for number in range(12)]


def test_what_fails_in_one_shard_is_told_and_leaves_no_file_of_it(tmp_path: Path) -> None:
    plan = plan_apart(tmp_path, [1, 2, 3], 2)
    broken = replace(plan, reads=plan.reads * 2)  # each document comes twice

    messages = carry_out(tmp_path, stages_of(broken), Shuffle())

    errors = [message.error["message"] for message in messages if message.error]
    assert errors
    assert all("UNIQUE constraint failed: seen.id" in error for error in errors)
    assert segments_of(messages) == ()
    assert list((tmp_path / "collections" / "w" / "out@").glob("*")) == []


def test_rows_of_one_key_are_compared_once_and_only_within_their_tick() -> None:
    one, other = ([(5, pack([1])), (15, pack([2]))], [(7, pack([2])), (15, pack([1]))])

    assert not shared([one, other], tick=10)
    assert shared([one, other], tick=20)


def shared(shards: Sequence[Sequence[tuple[int, bytes]]], tick: int) -> bool:
    """Whether shards that have published these clocks and keys have any in common."""
    packets = [(rows[0][0], KeyRows.from_columns(*zip(*rows, strict=True))) for rows in shards]
    return are_shared(gather_ticks(iter(packets), tick, most_bytes=1 << 20), tick)


def test_documents_that_stay_apart_count_as_one_of_their_key() -> None:
    clocks, seqs, keys = [5, 5, 6], [0, 1, 0], [pack([1]), pack([1]), pack([2])]
    rows = WrittenRows.of(clocks, seqs, keys, pa.array(["{}"] * 3), ["[]"] * 3)

    assert rows.published_keys().batch.to_pydict() == {"clock": [5, 6], "key": [pack([1]), pack([2])]}


class Records(InProcessExecutor):
    """Notes whether plans count on keys that no two shards have in common."""

    def __init__(self) -> None:
        self.disjoint: list[bool] = []

    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        assert isinstance(plan, Plan)
        self.disjoint.append(plan.is_conflict_free)
        return super().execute(plan, progress)


@pytest.mark.parametrize(("keys", "after"), [([1, 2, 3, 4], True), ([1, 1, 1, 1], False)])
def test_a_run_counts_on_it_until_it_was_wrong(keys: list[int], after: bool, tmp_path: Path) -> None:
    timed = """
collections:
  w/in:
    key: [/id]
    schema:
      type: object
      required: [id, k, at]
      properties: {id: {type: integer}, k: {type: integer}, at: {type: string, format: date-time}}
"""
    catalog = load(write_catalog(tmp_path, timed + APART[APART.index("  w/out:") :]))
    world, executor = World(tmp_path / "data", catalog), Records()
    run = world.run(executor, shards=3)
    for hour in (0, 1):
        at, world.wall = f"2026-01-01T0{hour}:00:00Z", WALL + hour * 3600 * SECOND
        world.ingest("w/in", [{"id": 10 * hour + index, "k": key, "at": at} for index, key in enumerate(keys)])
        run.until_idle()
        assert run.tasks["w/out"].error is None
    run.close()

    assert executor.disjoint[0] is True
    assert executor.disjoint[-1] is after


# Source documents that lambdas take as text are parsed when somebody asks for one, and not before.


VALUES = st.one_of(
    st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(st.characters(exclude_categories=["Cs"]))
)
DOCUMENTS = st.lists(st.dictionaries(st.sampled_from(["k", "a", "b"]), VALUES), min_size=1, max_size=8)


@given(DOCUMENTS, st.integers(0, 8), st.integers(1, 8))
def test_a_frame_of_texts_is_a_frame_of_documents(documents: list[dict[str, Any]], begin: int, count: int) -> None:
    size, clocks = len(documents), list(range(len(documents)))
    columns = ([0, *clocks], [0] * (size + 1), [0] * (size + 1), [b""] * (size + 1))
    rows = ReadRows.of(*columns, write_texts([{"k": "another"}, *documents]))
    unparsed = UnparsedDocuments(rows.slice(1))
    part = slice(begin, begin + count)

    of_texts = frame_of(ReadBatch([0] * size, clocks, clocks, unparsed, None, unparsed.written), part, as_columns=True)

    assert of_texts == frame_of(ReadBatch([0] * size, clocks, clocks, documents), part, as_columns=True)
    assert parse_exact(of_texts)["documents"] == json.loads(json.dumps(documents[part]))
    assert list(unparsed) == documents
    assert unparsed[part] == documents[part]
