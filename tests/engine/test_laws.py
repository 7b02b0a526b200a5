"""The laws of the design, over random catalogs and random histories."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import LATER, World, write_catalog
from crash_client import CRASHES, CrashServer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_catalogs import BASE, SECOND, SOURCE, catalogs, histories
from reduction_oracle import contents_in_memory

from derive.catalog import load
from derive.contents.reads import ReadOptions, read_rows
from derive.document.clock import format_duration, format_rfc3339, parse_rfc3339
from derive.engine.executor import InProcessExecutor
from derive.engine.reset import split
from derive.engine.task_reconciler import open_run
from derive.protocol.specs import Document, IngestStep, TestStep, VerifyStep
from derive.spark.executor import SparkExecutor
from derive.storage.compaction import compact
from derive.testing import run_tests
from derive.time.extent import Limits

Documents = list[dict[str, Any]]

EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "6"))
"""How many catalogs each law is tried on; more than a few dozen are for a night."""

SHUFFLED = Limits(small_documents=-1)
"""Limits with which Spark shuffles every transaction; by default, one task has a small one."""

SLOW = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


def world_of(folder: str | Path, name: str, text: str) -> World:
    path = Path(folder)
    return World(path / name, load(write_catalog(path, text)))


def one_go(
    folder: str, name: str, text: str, documents: Documents, shards: int, limits: Limits | None = None
) -> dict[str, str]:
    world = world_of(folder, name, text)
    world.ingest(SOURCE, documents)
    world.step(shards=shards, limits=limits)
    found = world.digest()
    world.store.close()
    return found


def pieces(documents: Documents, data: st.DataObject) -> list[tuple[Documents, int]]:
    """A schedule: which documents arrive together, and what time it is when the tasks run after that."""
    found = []
    begin = 0
    while begin < len(documents):
        end = data.draw(st.integers(begin + 1, len(documents)))
        while end < len(documents) and documents[end]["at"] == documents[end - 1]["at"]:
            end += 1
        now = parse_rfc3339(documents[end - 1]["at"]) + 1 + data.draw(st.sampled_from([0, SECOND]))
        if end < len(documents):
            now = min(now, parse_rfc3339(documents[end]["at"]))
        found.append((documents[begin:end], now))
        begin = end
    return [*found, ([], LATER)]


def run_tasks(world: World, tasks: set[str] | None, shards: int, limits: Limits | None = None) -> None:
    names = sorted(tasks) if tasks else None
    run = open_run(world.catalog, world.store, InProcessExecutor(), tasks=names, shards=shards, limits=limits)
    run.step()
    run.close()
    assert [task.error for task in run.tasks.values() if task.error] == []


class Watched:
    """A world whose frontiers and contents are looked at after every step (law L3)."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.seen: dict[str, tuple[int, list[tuple[int, int, bytes, str]]]] = {}
        self.look()

    def look(self) -> None:
        for name in self.world.catalog.collections:
            known = self.world.store.collection(name)
            if known is None:
                continue
            upper, rows = self.seen.get(name, (0, []))
            found = self.world.rows(name)
            assert known.upper >= upper
            assert found[: len(rows)] == rows
            assert all(upper <= row[0] < known.upper for row in found[len(rows) :])
            self.seen[name] = (known.upper, found)


@SLOW
@given(catalogs(), histories(), st.data())
def test_l1_and_l3_any_shards_and_any_batching_give_the_same_bytes(
    text: str, documents: Documents, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = one_go(folder, "whole", text, documents, 1)
        limits = data.draw(st.sampled_from([Limits(documents=2), Limits(segments=2), Limits(bytes=2000), Limits()]))
        assert one_go(folder, "three", text, documents, 3, limits) == whole
        assert one_go(folder, "one", text, documents, 1, limits) == whole

        # Live: documents arrive piece by piece, time passes between them, shards are split and segments merged.
        live = world_of(folder, "live", text)
        watched = Watched(live)
        for part, now in pieces(documents, data):
            if part:
                live.ingest(SOURCE, part)
            live.wall = now
            # Tasks may be run one without the others.
            tasks = data.draw(st.none() | st.sets(st.sampled_from(sorted(live.catalog.derivations)), min_size=1))
            run_tasks(live, tasks, data.draw(st.sampled_from([1, 2])), limits)
            watched.look()
            for name in data.draw(st.sets(st.sampled_from(sorted(live.catalog.derivations)), max_size=1)):
                state = live.store.task(name)
                if state and state.shards < 8:
                    split(live.store, name)
            for name in data.draw(st.sets(st.sampled_from(sorted(live.catalog.collections)), max_size=1)):
                compact(live.store, live.catalog.collections[name], grace=0)
            watched.look()
        run_tasks(live, None, 1)
        watched.look()
        assert live.digest() == whole
        live.store.close()


@settings(SLOW, max_examples=EXAMPLES // 3)
@given(text=catalogs(), documents=histories(), data=st.data())
def test_l1_and_l2_any_schedule_of_crashes_gives_the_same_bytes(
    server: CrashServer, text: str, documents: Documents, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = one_go(folder, "whole", text, documents, 1)
        order = {"source": f"{folder}/flow.yaml", "data": f"{folder}/crashed"}
        begin = 0
        for part, now in pieces(documents, data):
            ingest = {"do": "ingest", "arguments": [SOURCE, begin, part], "wall": now}
            server.order(order | ingest, data.draw(CRASHES))
            server.order(order | {"do": "run", "arguments": [3, 2_000_000], "wall": now}, data.draw(CRASHES))
            begin += len(part)
        crashed = world_of(folder, "crashed", text)
        assert crashed.digest() == whole
        crashed.store.close()


@SLOW
@given(catalogs(priorities=True), histories(), st.data())
def test_l1_priorities_depend_only_on_the_times_of_runs(text: str, documents: Documents, data: st.DataObject) -> None:
    schedule = pieces(documents, data)
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for shards in (1, 3):
            world = world_of(folder, f"shards-{shards}", text)
            watched = Watched(world)
            for part, now in schedule:
                if part:
                    world.ingest(SOURCE, part)
                world.wall = now
                world.step(shards=shards)
                watched.look()
            found.append(world.digest())
            world.store.close()
        assert found[0] == found[1]


ORDERED = """
collections:
  t/source:
    schema: {type: object, required: [id, k, at], properties: {id: {type: integer}, k: {type: string}, at: {type: string}}}
    key: [/id]
  t/order:
    schema: {type: object, required: [k, seen], properties: {k: {type: string}, seen: {type: string}}}
    key: [/k]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE seen (k TEXT PRIMARY KEY, ids TEXT NOT NULL);"]}}
      transforms:
"""


@SLOW
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 2])), min_size=1, max_size=3),
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0, 1, 700_000, SECOND])), min_size=1, max_size=12),
    st.sampled_from([1, 3]),
)
def test_l4_order_of_a_key_is_priority_clock_transform_source(
    transforms: list[tuple[int, int]], arrivals: list[tuple[str, int]], shards: int
) -> None:
    text = ORDERED
    for index, (delay, priority) in enumerate(transforms):
        text += f"""
        - name: t{index}
          source: t/source
          shuffle: {{key: [/k]}}
          readDelay: {delay}s
          priority: {priority}
          lambda: |
            INSERT INTO seen VALUES ($k, '{index}:' || $id)
              ON CONFLICT DO UPDATE SET ids = ids || ' {index}:' || $id RETURNING k, ids AS seen;
"""
    clock = BASE
    documents: Documents = []
    order: dict[str, list[tuple[Any, ...]]] = {}
    for number, (k, gap) in enumerate(arrivals):
        clock += gap
        place = 100 - number  # whatever the key, what was ingested first comes first
        documents.append({"id": place, "k": k, "at": format_rfc3339(clock)})
        for index, (delay, priority) in enumerate(transforms):
            order.setdefault(k, []).append((-priority, clock + delay * SECOND, index, number, f"{index}:{place}"))

    with tempfile.TemporaryDirectory() as folder:
        world = world_of(folder, "data", text)
        world.ingest(SOURCE, documents)
        world.step(shards=shards)
        last = {row["k"]: row["seen"] for row in (json.loads(each[3]) for each in world.rows("t/order"))}
        world.store.close()
    assert last == {k: " ".join(each[-1] for each in sorted(entries)) for k, entries in order.items()}


@pytest.mark.spark
@settings(SLOW, max_examples=EXAMPLES // 3)
@given(text=catalogs(), documents=histories(), shards=st.sampled_from([1, 2]))
def test_l1_spark_gives_the_bytes_of_the_in_process_executor(
    spark: SparkExecutor, text: str, documents: Documents, shards: int
) -> None:
    # Each tick of a cycle is a transaction, and so a Spark job: the sample has only the first documents.
    with tempfile.TemporaryDirectory() as folder:
        expected = one_go(folder, "oracle", text, documents[:6], 1)
        for limits in (SHUFFLED, Limits()):
            world = world_of(folder, f"spark-{limits.small_documents}", text)
            world.ingest(SOURCE, documents[:6])
            world.step(spark, shards=shards, limits=limits)
            assert world.digest() == expected
            world.store.close()


TYPESCRIPT = """
collections:
  t/source:
    schema:
      type: object
      required: [id, k, v, at]
      properties: {id: {type: integer}, k: {type: string}, v: {type: number}, at: {type: string}}
    key: [/id]
  t/ts:
    schema:
      type: object
      required: [k, v]
      reduce: {strategy: merge}
      properties: {k: {type: string}, v: {type: number, reduce: {strategy: sum}}, w: {type: string}}
    key: [/k]
    derive:
      using: {typescript: {module: out.ts}}
      transforms:
        - {name: split, source: t/source, shuffle: {key: [/k]}}
        - {name: later, source: t/source, shuffle: {key: [/k]}, readDelay: 2s}
        - {name: again, source: t/ts, shuffle: {key: [/k]}}
  t/after:
    schema: {type: object, required: [k, v], properties: {k: {type: string}, v: {type: number}}}
    key: [/k]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE seen (k TEXT PRIMARY KEY, n REAL NOT NULL);"]}}
      transforms:
        - name: add
          source: t/ts
          shuffle: {key: [/k]}
          lambda: INSERT INTO seen VALUES ($k, $v) ON CONFLICT DO UPDATE SET n = n + $v RETURNING k, n AS v;
"""
MODULE = """
import { Document, IDerivation, SourceAgain, SourceLater, SourceSplit } from 'flow/t/ts.ts';

export class Derivation extends IDerivation {
  split(read: { doc: SourceSplit }): Document[] {
    const chance = `${new Date().toISOString()} ${Math.random()}`;
    return [{ k: read.doc.k, v: read.doc.v, w: chance }, { k: 'all', v: Math.random() }];
  }
  later(read: { doc: SourceLater }): Document[] {
    return [{ k: 'all', v: -1 }];
  }
  again(read: { doc: SourceAgain }): Document[] {
    return read.doc.v > 8 ? [{ k: read.doc.k + 'x', v: read.doc.v - 8, w: read.doc.w }] : [];
  }
}
"""


@pytest.mark.deno
@pytest.mark.spark
def test_l1_holds_for_typescript_and_sql_with_randomness_delay_and_feedback(
    spark: SparkExecutor, tmp_path: Path
) -> None:
    write_catalog(tmp_path, TYPESCRIPT, out__ts=MODULE)
    documents: Documents = [
        {"id": n, "k": "abü"[n % 3], "v": 3 * n, "at": format_rfc3339(BASE + n * 400_000)} for n in range(9)
    ]
    expected = one_go(str(tmp_path), "one", TYPESCRIPT, documents, 1)
    assert one_go(str(tmp_path), "three", TYPESCRIPT, documents, 3) == expected
    live, on_spark = world_of(tmp_path, "live", TYPESCRIPT), world_of(tmp_path, "spark", TYPESCRIPT)
    for begin in range(0, 9, 3):
        live.ingest(SOURCE, documents[begin : begin + 3])
        live.wall = BASE + (begin + 3) * 400_000
        live.step(shards=2)
    live.wall = LATER
    live.step()
    on_spark.ingest(SOURCE, documents)
    on_spark.step(spark, shards=2, limits=SHUFFLED)

    assert len({row[3] for row in live.rows("t/ts")}) > 12
    assert live.digest() == expected
    assert on_spark.digest() == expected


# The law of tests that tell time, over random catalogs and random steps: a verify step shows what a real run has
# published whose wall clock has come to the end of the tick, whatever was verified or ingested on the way.


TICKS = {"500ms": SECOND // 2, "1s": SECOND, "2s": 2 * SECOND}
PASSING = [1, SECOND - 1, SECOND // 2, SECOND, 3 * SECOND, 5 * SECOND, 61 * SECOND]


class Steps:
    """Steps of a test being drawn, and what time it is meanwhile."""

    def __init__(self, collections: Any) -> None:
        self.collections = collections
        self.steps: list[Any] = []
        self.present = self.wall = BASE
        self.free = 0
        self.walls: list[int] = []

    def ingest(self, documents: Sequence[Document], passed: int | None, *, as_offset: bool) -> None:
        """At a time of its own, if one is told that much later than the earliest possible."""
        step = {"collection": SOURCE, "documents": documents}
        self.present = self.wall = self.wall + (passed or 0)
        if passed is not None:
            offset = f"+{format_duration(self.present - BASE)}"
            step["at"] = offset if as_offset else format_rfc3339(self.present)
        self.free = max(self.wall, self.free) + len(documents)
        self._add({"ingest": step})

    def advance(self, passed: int) -> None:
        self.present += passed
        self.wall = max(self.wall, self.present)
        self._add({"advance": format_duration(passed)})

    def verify(self, name: str) -> None:
        tick = self._tick(name, set())
        if tick and self.free:
            self.wall = max(self.wall, (max(self.present, self.free - 1) // tick + 1) * tick)
        self._add({"verify": {"collection": name, "documents": []}})

    def _add(self, step: Any) -> None:
        self.steps.append(step)
        self.walls.append(self.wall)

    def _tick(self, name: str, seen: set[str]) -> int:
        """The longest tick upstream, of which all shorter ones are parts."""
        derive = self.collections[name].get("derive")
        if derive is None or name in seen:
            return 0
        seen.add(name)
        sources = [self._tick(each["source"]["name"], seen) for each in derive["transforms"]]
        return max([TICKS[derive["shards"]["maxTxnDuration"]], *sources])


@st.composite
def timed_tests(draw: st.DrawFn) -> tuple[str, list[int]]:
    """A catalog with one test, and where the wall clock has come to with each of its steps."""
    catalog = json.loads(draw(catalogs()))
    steps = Steps(catalog["collections"])
    names = sorted(set(catalog["collections"]) - {SOURCE})
    ahead = draw(histories())
    begin = draw(st.integers(0, len(ahead)))
    steps.ingest(ahead[:begin], 0, as_offset=False)
    ahead = ahead[begin:]
    for what in draw(st.lists(st.sampled_from(["ingest", "ingest", "advance", "verify"]), max_size=8)):
        if what == "ingest":
            count = draw(st.integers(0, len(ahead)))
            steps.ingest(ahead[:count], draw(st.none() | st.sampled_from([0, *PASSING])), as_offset=draw(st.booleans()))
            ahead = ahead[count:]
        elif what == "advance":
            steps.advance(draw(st.sampled_from(PASSING)))
        else:
            steps.verify(draw(st.sampled_from([*names, SOURCE])))
    for name in names:
        steps.verify(name)
    return json.dumps(catalog | {"tests": {"t/test": steps.steps}}), steps.walls


def published(world: World, steps: Sequence[TestStep], walls: Sequence[int], step: VerifyStep) -> tuple[Document, ...]:
    """Return the documents of one transaction of a run that starts at the wall time of a verify step."""
    for each, wall in zip(steps, walls, strict=True):
        world.wall = wall
        if isinstance(each, IngestStep):
            world.ingest(each.collection, each.documents, clock=None)
    world.step(shards=1)
    spec = world.catalog.collections[step.collection]
    rows = read_rows(world.store, spec, ReadOptions())
    found = tuple(document for _, document in contents_in_memory(spec, rows))
    world.store.close()
    return found


@SLOW
@given(drawn=timed_tests())
def test_timed_catalog_test_equals_a_run_at_that_time(drawn: tuple[str, list[int]]) -> None:
    text, walls = drawn
    with tempfile.TemporaryDirectory() as folder:
        catalog = load(write_catalog(Path(folder), text))
        test = catalog.tests["t/test"]
        assert [each.time and each.time.wall for each in test.steps] == walls
        steps = list(test.steps)
        for place, step in enumerate(test.steps):
            if isinstance(step, VerifyStep):
                world = World(Path(folder) / f"at{place}", catalog)
                reported = published(world, test.steps[: place + 1], walls[: place + 1], step)
                steps[place] = replace(step, documents=reported)

        told_catalog = replace(catalog, tests={"t/test": replace(test, steps=tuple(steps))})
        [result] = run_tests(told_catalog, strict=True)

    assert result.failure is None, result.failure
