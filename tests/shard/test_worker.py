"""What runs on a worker: files and prepared state of one part of a transaction, or what stopped it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import write_catalog
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.module_kit.process import frame_of
from derive.catalog import load
from derive.document.exact import parse_exact
from derive.document.key import pack
from derive.errors import OutdatedError
from derive.protocol.derive import ReadBatch
from derive.protocol.specs import DerivationSpec
from derive.shard.fields import UnparsedDocuments
from derive.shard.plan import Plan, Shape
from derive.shard.progress import Counter, Message, PartBegin, Reached, progress_folder
from derive.shard.state import publish_epoch
from derive.shard.worker import run_alone, run_single, run_slice
from derive.storage.metadata.chain import Link
from derive.storage.metadata.descriptions import ShardData, Work
from derive.storage.segments.reader import read_sorted
from derive.storage.segments.rows import ReadRows, WrittenRows
from derive.storage.segments.texts import write_texts
from derive.storage.segments.writer import SegmentWriter
from derive.time.positions import Segment, SourceRead

CATALOG = """
collections:
  w/in: {key: [/id], schema: {type: object, required: [id, k], properties: {id: {type: integer}, k: {type: integer}}}}
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


def derivation(root: Path, catalog: str = CATALOG) -> DerivationSpec:
    publish_epoch(root, "w/out", 1)
    return load(write_catalog(root, catalog)).derivations["w/out"]


def plan(spec: DerivationSpec, root: Path, keys: Sequence[int], shape: Shape, shards: int) -> Plan:
    writer = SegmentWriter(root, spec.sources["w/in"], "in")
    if keys:
        clocks = [index * SECOND // 4 for index in range(len(keys))]
        documents = [{"id": index, "k": key} for index, key in enumerate(keys)]
        packed = [pack([index]) for index in range(len(keys))]
        writer.write(WrittenRows.sorted_of(clocks, [0] * len(keys), packed, documents, ["[]"] * len(keys)))
    end = 100 * SECOND
    reads = (SourceRead(0, 0, 0, end, tuple(writer.close())),)
    return Plan(spec, root, root, "token", 1, 1, shape, shards, {}, 0, end, reads, slices=(0, SECOND, end))


def published(plan: Plan, segments: tuple[Segment, ...]) -> list[tuple[int, int, bytes, str]]:
    """Clock, seq, key and JSON text of each row."""
    return [row for rows in read_sorted(plan.root, [SourceRead(0, 0, 0, plan.end, segments)]) for row in rows.tuples()]


def test_single_shard_writes_combined_documents_and_prepares_state(plan_of: MakePlan) -> None:
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


def test_slice_reads_its_interval_without_state(plan_of: MakePlan) -> None:
    plan = plan_of([7, 8, 7, 7, 7], "slices")

    first, second = (run_slice(plan, number, 1) for number in (0, 1))

    assert published(plan, second.segments) == [(1_000_000, 0, pack([7]), '{"k":7,"n":1}')]
    assert (first.documents_in, first.documents_out, first.shards) == (4, 2, {})
    assert (second.documents_in, second.documents_out, second.shards) == (1, 1, {})
    assert not list((plan.root / "state" / "w" / "out@").glob("*-*"))


def test_worker_failure_is_reported_and_leaves_no_file(plan_of: MakePlan) -> None:
    plan = plan_of([7, 8])
    broken = replace(plan, spec=replace(plan.spec, tick=SECOND), reads=plan.reads * 2)  # each document comes twice

    message = run_single(broken, 1)

    assert message.error is not None
    assert "UNIQUE constraint failed: seen.id" in message.error["message"]
    assert (message.segments, message.shards) == ((), {})
    assert not list((plan.root / "collections" / "w" / "out@").glob("*"))


def test_outdated_attempt_reports_nothing(plan_of: MakePlan) -> None:
    plan = plan_of([7, 8])
    later = run_single(plan, 2)

    with pytest.raises(OutdatedError):
        run_single(plan, 1)
    assert published(plan, later.segments) != []


def test_fenced_run_is_reported(plan_of: MakePlan) -> None:
    plan = plan_of([7, 8])
    publish_epoch(plan.root, "w/out", 2)

    message = run_single(plan, 1)

    assert message.error is not None
    assert "another flowctl runs" in message.error["message"]


@settings(max_examples=20)
@given(st.lists(st.integers(0, 3), max_size=12), st.integers(2, 4))
def test_several_shards_write_the_same_as_one(keys: list[int], shards: int) -> None:
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


def test_message_survives_json() -> None:
    segment = Segment("w/out", "collections/w/out@/x-0.parquet", ("a", None), 1, 2, 3, 400, checksum="5e")
    reached = Reached("w/out", {0: 50}, 60, (PartBegin({0: 40}, 55),))
    message = Message((segment,), {2: "token-1"}, 7, 3, {"code": "E1", "message": "no"}, 4, reached, {"b": 5}, True)
    links = {2: (Link("chains/w/out@/1-a.0", 4, 5, "6f"),)}
    message = replace(message, work=(Work(7, 3, 12),), links=links, log=("{}",), kept={2: ShardData(b"8", b"{}")})

    assert message.to_json() == (
        '[[["w/out","collections/w/out@/x-0.parquet",["a",null],1,2,3,400,"5e"]],[[2,"token-1"]],7,3,'
        '{"code":"E1","message":"no"},4,["w/out",[[0,50]],60,[[[[0,40]],55]]],{"b":5},true,[],[],[[7,3,12]],'
        '[[2,[["chains/w/out@/1-a.0",4,5,"6f",false]]]],["{}"],[[2,"8","{}"]]]'
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


# Source documents that lambdas take as text are parsed when somebody asks for one, and not before.


VALUES = st.one_of(
    st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(st.characters(exclude_categories=["Cs"]))
)
DOCUMENTS = st.lists(st.dictionaries(st.sampled_from(["k", "a", "b"]), VALUES), min_size=1, max_size=8)


@given(DOCUMENTS, st.integers(0, 8), st.integers(1, 8))
def test_frame_of_texts_equals_a_frame_of_documents(documents: list[dict[str, Any]], begin: int, count: int) -> None:
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
