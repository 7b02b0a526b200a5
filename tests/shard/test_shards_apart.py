"""Shards that combine what is their own and compare only keys: the same comes out as of a single shard."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import World, examples, write_catalog
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_worker import CATALOG as WORKER_CATALOG
from test_worker import derivation, plan, published

from derive.catalog import load
from derive.document.key import pack
from derive.engine.executor import InProcessExecutor
from derive.materialize.stages import AnyPlan
from derive.shard.owners import DELIVERED, OWNER, PACKETS, RANK, owners_of_keys
from derive.shard.plan import Plan
from derive.shard.progress import Message, Progress
from derive.shard.tick_combiner import are_shared, gather_ticks
from derive.shard.worker import MESSAGE, Stage, Stages, carry_out, run_alone, stages_of
from derive.spark.detached import SCRATCH, detached, relay, relaying
from derive.storage.location import ObjectFolder, blobs_of
from derive.storage.metadata.chain import paths_of
from derive.storage.segments.rows import KeyRows, WrittenRows
from derive.storage.task_log import TaskLog, recent_entries
from derive.time.positions import Segment

CATALOG = WORKER_CATALOG.replace(
    "n: {type: integer, reduce: {strategy: sum}}", "ids: {type: array, reduce: {strategy: append}}"
).replace("SELECT $k, 1 AS n;", "SELECT $k, json_array($id) AS ids;")
SECOND = 1_000_000
WALL = 1_767_225_660 * SECOND  # a minute past midnight of 2026-01-01


def plan_of(root: Path, keys: Sequence[int], shards: int) -> Plan:
    """A transaction over documents a quarter of a second apart, of which each is published under one of these keys."""
    spec = derivation(root, CATALOG)
    return replace(plan(spec, root, keys, "single" if shards == 1 else "sharded", shards), is_conflict_free=True)


class Shuffle:
    """Runs stages in this process; what is sent from one to the next arrives in order of owner and rank.

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
                own = [row for row in received if int(str(row[OWNER])) % work.owners == number]
                own.sort(key=lambda row: (int(str(row[OWNER])), int(str(row[RANK]))))
                for batch in stage(number, delivered(own), next(self._attempts)):
                    sent += batch.to_pylist()
        return [Message.from_json(str(row[MESSAGE])) for row in sent]


def delivered(packets: Sequence[dict[str, object]]) -> Iterator[pa.RecordBatch]:
    """Packets as a task is sent them, two in a batch."""
    schema = pa.schema([PACKETS.field(name) for name in DELIVERED])
    rows = [{name: row[name] for name in DELIVERED} for row in packets]
    return (pa.RecordBatch.from_pylist(rows[begin : begin + 2], schema=schema) for begin in range(0, len(rows), 2))


def segments_of(messages: Sequence[Message]) -> tuple[Segment, ...]:
    return tuple(segment for message in messages for segment in message.segments)


def is_published_twice(keys: Sequence[int], shards: int) -> bool:
    """Whether two shards publish a document of one key in one second."""
    owners = owners_of_keys([pack([index]) for index in range(len(keys))], shards).tolist()
    reported = {(index // 4, key, owner) for index, (key, owner) in enumerate(zip(keys, owners, strict=True))}
    return len({(second, key) for second, key, _ in reported}) < len(reported)


@settings(max_examples=examples(60, 10))
@given(st.lists(st.integers(0, 9), max_size=16), st.integers(2, 4))
@example([1, 2, 3, 4, 1, 2, 3, 4], 2)  # keys come again in another second
@example([1, 1, 1, 1, 1, 1, 1, 1], 3)
def test_conflict_free_shards_publish_the_same_as_one(keys: list[int], shards: int) -> None:
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        alone, plan = plan_of(Path(first), keys, 1), plan_of(Path(second), keys, shards)
        shuffle = Shuffle()

        (single,) = run_alone(alone, 0, 1)
        messages = carry_out(plan.root, stages_of(plan), shuffle)

        assert (single.error, [message.error for message in messages]) == (None, [None] * len(messages))
        segments = segments_of(messages)
        assert published(plan, segments) == published(alone, single.segments)
        files = sorted(path.name for path in (plan.root / "collections" / "w" / "out@").glob("*"))
        assert files == sorted(Path(segment.path).name for segment in segments)
    is_shared = is_published_twice(keys, shards)
    assert any(message.is_shared for message in messages) == is_shared
    assert len(shuffle.runs) == 1 + is_shared
    assert sum(message.documents_in for message in messages) == len(keys)
    assert sum(message.documents_out for message in messages) == single.documents_out
    owners = owners_of_keys([pack([index]) for index in range(len(keys))], shards).tolist()
    assert {number for message in messages for number in message.shards} == set(owners)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("is_conflict_free", [True, False])
@pytest.mark.parametrize("cores", [None, 1, 2, 8])
def test_shards_with_travelling_states_publish_the_same(
    is_conflict_free: bool, cores: int | None, tmp_path: Path
) -> None:
    """Each task stores the states of its shards as one object, so no more objects are stored than tasks run."""
    keys = [1, 2, 3, 4, 1, 2, 3, 4, 1, 1]
    for name in ("one", "several"):
        (tmp_path / name).mkdir()
    alone, travelling = plan_of(tmp_path / "one", keys, 1), plan_of(tmp_path / "several", keys, 3)
    travelling = replace(travelling, cache=tmp_path / "cache", is_conflict_free=is_conflict_free)

    (single,) = run_alone(alone, 0, 1)
    shuffle = Shuffle()
    messages = carry_out(travelling.root, stages_of(travelling, cores), shuffle)

    assert [message.error for message in messages] == [None] * len(messages)
    assert published(travelling, segments_of(messages)) == published(alone, single.segments)
    links = {number: chain for message in messages for number, chain in message.links.items()}
    assert links.keys() == {number for message in messages for number in message.shards}
    assert len(links) == 3
    objects = blobs_of(travelling.root).list("chains/w/out@", "*")
    assert paths_of(links.values()) <= set(objects)
    assert len(objects) == len(shuffle.runs) * min(3, cores or 3)


def logging(stage: Stage, number: int, packets: Iterator[pa.RecordBatch], attempt: int) -> Iterator[pa.RecordBatch]:
    """A stage that also writes an entry to the log of the task."""
    TaskLog(SCRATCH, "w/out").relay("info", f"task {number}")
    yield from stage(number, packets, attempt)


@pytest.mark.parametrize("is_conflict_free", [True, False])
def test_workers_without_the_data_folder_publish_the_same(
    is_conflict_free: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [1, 2, 3, 4, 1, 2, 3, 4, 1, 1]
    for name in ("one", "objects", "driver", "worker"):
        (tmp_path / name).mkdir()
    alone, plan = plan_of(tmp_path / "one", keys, 1), plan_of(tmp_path / "objects", keys, 3)
    plan = replace(plan, location=ObjectFolder(f"file://{tmp_path}/objects"), is_conflict_free=is_conflict_free)
    assert plan.needs_folder
    plan = replace(plan, root=tmp_path / "driver", cache=tmp_path / "cache")
    assert not plan.needs_folder
    monkeypatch.chdir(tmp_path / "worker")
    shuffle = Shuffle()

    def run(work: Stages) -> list[Message]:
        last = len(work.stages) - 1
        stages = [
            partial(relaying, partial(logging, stage), is_last=index == last) for index, stage in enumerate(work.stages)
        ]
        return relay(plan.root, shuffle(replace(work, stages=tuple(stages))))

    (single,) = run_alone(alone, 0, 1)
    messages = carry_out(plan.location, stages_of(detached(plan)), run)

    assert [message.error for message in messages] == [None] * len(messages)
    stored = replace(plan, root=tmp_path / "objects")
    assert published(stored, segments_of(messages)) == published(alone, single.segments)
    tasks = len(shuffle.runs) * (len(plan.slices) - 1 + 2 * plan.shards)
    assert len(recent_entries(plan.root, "w/out")) == tasks
    assert list((tmp_path / "worker").iterdir()) == []
    assert replace(plan, tokens={0: "a state in the folder"}).needs_folder


@settings(max_examples=examples(40, 6))
@given(st.lists(st.integers(0, 9), max_size=16), st.integers(2, 4))
def test_single_process_reports_shared_keys(keys: list[int], shards: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        messages = run_alone(plan_of(Path(folder), keys, shards), 0, 1)

    assert any(message.is_shared for message in messages) == is_published_twice(keys, shards)


def test_a_tick_with_too_many_keys_to_compare_is_combined(tmp_path: Path) -> None:
    plan = replace(plan_of(tmp_path, list(range(12)), 2), memory=4)
    shuffle = Shuffle()

    messages = carry_out(plan.root, stages_of(plan), shuffle)

    assert [message.is_shared for message in messages if message.is_shared] == [True]
    assert [work.otherwise is None for work in shuffle.runs] == [False, True]
    ids = [text for _, _, _, text in published(plan, segments_of(messages))]
    assert ids == [f'{{"k":{number},"ids":[{number}]}}' for number in range(12)]


def test_shard_failure_is_reported_and_leaves_no_file(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, [1, 2, 3], 2)
    broken = replace(plan, reads=plan.reads * 2)  # each document comes twice

    messages = carry_out(tmp_path, stages_of(broken), Shuffle())

    errors = [message.error["message"] for message in messages if message.error]
    assert errors
    assert all("UNIQUE constraint failed: seen.id" in error for error in errors)
    assert segments_of(messages) == ()
    assert list((tmp_path / "collections" / "w" / "out@").glob("*")) == []


def test_shared_keys_are_found_only_within_a_tick() -> None:
    one, other = ([(5, pack([1])), (15, pack([2]))], [(7, pack([2])), (15, pack([1]))])

    assert not shared([one, other], tick=10)
    assert shared([one, other], tick=20)


def shared(shards: Sequence[Sequence[tuple[int, bytes]]], tick: int) -> bool:
    """Whether shards that have published these clocks and keys have any in common."""
    packets = [(rows[0][0], KeyRows.from_columns(*zip(*rows, strict=True))) for rows in shards]
    return are_shared(gather_ticks(iter(packets), tick, most_bytes=1 << 20), tick)


def test_separate_documents_of_a_key_are_one_shared_key() -> None:
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
def test_run_assumes_conflict_freedom_until_a_conflict(keys: list[int], after: bool, tmp_path: Path) -> None:
    timed = """
collections:
  w/in:
    key: [/id]
    schema:
      type: object
      required: [id, k, at]
      properties: {id: {type: integer}, k: {type: integer}, at: {type: string, format: date-time}}
"""
    catalog = load(write_catalog(tmp_path, timed + CATALOG[CATALOG.index("  w/out:") :]))
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
