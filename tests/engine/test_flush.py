"""A module that publishes at the end of ticks, or keeps state, derives the same bytes however it is run (law L1)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from conftest import LATER, World, examples, write_catalog
from hypothesis import given, settings
from hypothesis import strategies as st

from derive.catalog import load
from derive.document.clock import format_rfc3339, parse_rfc3339
from derive.engine.reset import split
from derive.engine.run import Run
from derive.protocol.derive import DividesState
from derive.protocol.entry_points import find_runtime

pytestmark = pytest.mark.deno

BASE = 1_700_000_000_000_000
SECOND = 1_000_000

CATALOG = """
collections:
  t/source:
    schema:
      type: object
      required: [id, k, v, at]
      properties: {id: {type: integer}, k: {type: string}, v: {type: number}, at: {type: string}}
    key: [/id]
  t/out:
    schema:
      type: object
      required: [k]
      reduce: {strategy: merge}
      properties: {k: {type: string}, v: {type: number, reduce: {strategy: sum}}, last: {type: string}, total: {type: number}}
    key: [/k]
    derive:
      using: {typescript: {module: out.ts}}
      transforms:
        - {name: add, source: t/source, shuffle: {key: [/k]}}
        - {name: late, source: t/source, shuffle: {key: [/k]}, readDelay: 3s}
"""

# Each key's total is state; at the end of a tick each key it touched publishes, and keys of one first letter meet.
MODULE = """
import { Document, IDerivation, SourceAdd, SourceLate } from 'flow/t/out.ts';

type Totals = Record<string, number>;

export class Derivation extends IDerivation {
    totals: Totals;
    changed = new Map<string, number>();
    dirty: Totals = {};

    constructor(open: { state: { totals?: Totals } }) {
        super(open);
        this.totals = open.state.totals ?? {};
    }

    add({ doc }: { doc: SourceAdd }): Document[] {
        this.totals[doc.k] = (this.totals[doc.k] ?? 0) + doc.v;
        this.dirty[doc.k] = this.totals[doc.k];
        this.changed.set(doc.k, (this.changed.get(doc.k) ?? 0) + doc.v);
        return [{ k: doc.k, total: this.totals[doc.k] }];
    }

    async late({ doc }: { doc: SourceLate }): Promise<Document[]> {
        await new Promise((resolve) => setTimeout(resolve, 1_000_000));
        return [{ k: doc.k.slice(0, 1), v: this.totals[doc.k] / 3, last: `late ${Math.random()}` }];
    }

    async flush(): Promise<Document[]> {
        const changed = [...this.changed];
        this.changed.clear();
        return changed.map(([k, v]) => ({ k: k.slice(0, 1), v: v / 7, last: `${k} ${new Date().toISOString()}` }));
    }

    reset(): void {}

    startCommit() {
        const updated = { totals: this.dirty };
        this.dirty = {};
        return { state: { updated, mergePatch: true } };
    }
}
"""


@st.composite
def inputs(draw: st.DrawFn) -> list[dict[str, Any]]:
    clock = BASE
    documents = []
    for number in range(draw(st.integers(1, 25))):
        clock += draw(st.sampled_from([1, 1000, 400_000, SECOND, 5 * SECOND]))
        key = draw(st.sampled_from(["a", "ab", "ac", "b", "bc", "ü"]))
        value = draw(st.sampled_from([1, 2, 0.1, 7.75, -40]))
        documents.append({"id": number, "k": key, "v": value, "at": format_rfc3339(clock)})
    return documents


def world_of(folder: str, name: str, text: str = CATALOG, module: str = MODULE) -> World:
    path = Path(folder)
    return World(path / name, load(write_catalog(path, text, out__ts=module)))


def run_in_parts(world: World, documents: list[dict[str, Any]], shards: int, data: st.DataObject) -> None:
    """Ingest and process documents in parts, with splits of the derivation's shards between the parts."""
    begin = 0
    runtime = find_runtime(world.catalog.derivations["t/out"].connector)
    connector = runtime if isinstance(runtime, DividesState) else None
    while begin < len(documents):
        end = data.draw(st.integers(begin + 1, len(documents)))
        world.ingest("t/source", documents[begin:end])
        following = parse_rfc3339(documents[end]["at"]) if end < len(documents) else LATER
        world.wall = min(following, world.store.upper("t/source") + data.draw(st.sampled_from([0, SECOND])))
        world.step(shards=shards)
        begin = end
        state = world.store.task("t/out")
        if data.draw(st.booleans()) and state is not None and state.shards < 8:
            split(world.store, "t/out", connector=connector)
    world.wall = LATER
    world.step()


@settings(max_examples=examples(16, 3))
@given(inputs(), st.data())
def test_l1_shards_batching_and_splits_give_the_same_bytes(
    documents: list[dict[str, Any]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = world_of(folder, "one")
        whole.ingest("t/source", documents)
        whole.step(shards=1)
        three = world_of(folder, "three")
        three.ingest("t/source", documents)
        three.step(shards=3)
        assert three.digest() == whole.digest()

        live = world_of(folder, "live")
        run_in_parts(live, documents, 2, data)
        assert live.digest() == whole.digest()
        for each in (whole, three, live):
            each.store.close()


# The same without a shard to belong to: slices of time, each of whole ticks.
SLICED = """
import { Document, IDerivation, SourceAdd, SourceLate } from 'flow/t/out.ts';

export class Derivation extends IDerivation {
    held: Document[] = [];
    add({ doc }: { doc: SourceAdd }): Document[] {
        this.held.push({ k: doc.k, v: doc.v / 3 });
        return [];
    }
    late({ doc }: { doc: SourceLate }): Document[] {
        this.held.push({ k: 'late', v: doc.v / 7 });
        return [{ k: doc.k, total: doc.v }];
    }
    flush(): Document[] {
        const held = this.held;
        this.held = [];
        return held;
    }
}
"""
# What is published comes back a tick later, half as much, and is flushed again.
LOOP = """
import { Document, IDerivation, SourceAdd, SourceLate } from 'flow/t/out.ts';

export class Derivation extends IDerivation {
    held = new Map<string, number>();
    hold(k: string, v: number): Document[] {
        this.held.set(k, (this.held.get(k) ?? 0) + v);
        return [];
    }
    add({ doc }: { doc: SourceAdd }): Document[] {
        return this.hold(doc.k, doc.v);
    }
    late({ doc }: { doc: SourceLate }): Document[] {
        return Math.abs(doc.v ?? 0) > 3 ? this.hold(doc.k, (doc.v ?? 0) / 2) : [];
    }
    flush(): Document[] {
        const held = [...this.held];
        this.held.clear();
        return held.map(([k, v]) => ({ k: k === 'ü' ? 'b' : 'ü', v }));
    }
}
"""
BACK = """
  t/back:
    schema: {type: object, required: [k], properties: {k: {type: string}, v: {type: number}}}
    key: [/k]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE seen (k TEXT PRIMARY KEY, n INTEGER NOT NULL);"]}}
      transforms:
        - name: back
          source: t/out
          shuffle: {key: [/k]}
          lambda: |
            INSERT INTO seen VALUES ($k, 1) ON CONFLICT DO UPDATE SET n = n + 1;
            SELECT $k, $v + n AS v FROM seen WHERE k = $k AND abs($v) > 3 AND n < 9;
"""
WAYS = [
    (CATALOG.replace("shuffle: {key: [/k]}", "shuffle: any"), SLICED),
    (
        CATALOG.replace("{name: late, source: t/source", "{name: late, source: t/out").replace(", readDelay: 3s", ""),
        LOOP,
    ),
    # The same by way of a derivation in SQL.
    (CATALOG.replace("{name: late, source: t/source", "{name: late, source: t/back") + BACK, LOOP),
]


@pytest.mark.parametrize(("text", "module"), WAYS)
@settings(max_examples=examples(8, 2))
@given(documents=inputs(), cut=st.integers(1, 24))
def test_l1_holds_for_flush_with_slices_and_feedback(
    text: str, module: str, documents: list[dict[str, Any]], cut: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        digests = []
        for shards in (1, 3):
            world = world_of(folder, f"{shards}", text, module)
            for part in (documents[:cut], documents[cut:]):
                if part:
                    world.ingest("t/source", part)
                    world.wall = parse_rfc3339(part[-1]["at"]) + 1
                    world.step(shards=shards)
            world.wall = LATER
            world.step(shards=shards)
            digests.append(world.digest())
            assert world.rows("t/out") != []
            world.store.close()
        whole = world_of(folder, "whole", text, module)
        whole.ingest("t/source", documents)
        whole.step(shards=1)
        expected = whole.digest()
        assert digests == [expected] * 2
        whole.store.close()
        one_by_one = world_of(folder, "one-by-one", text, module)
        one_by_one.ingest("t/source", documents)
        Run(one_by_one.catalog, one_by_one.store, one_by_one.run().tasks).step()
        assert one_by_one.digest() == expected
        one_by_one.store.close()


def test_flush_publishes_at_the_last_microsecond_of_a_tick(tmp_path: Path) -> None:
    world = world_of(str(tmp_path), "data")
    documents = [
        {"id": 1, "k": "a", "v": 7, "at": "2023-11-14T22:13:20.250000Z"},
        {"id": 2, "k": "b", "v": 14, "at": "2023-11-14T22:13:20.500000Z"},
        {"id": 3, "k": "a", "v": 21, "at": "2023-11-14T22:13:22Z"},
    ]
    world.ingest("t/source", documents[:2])
    world.ingest("t/source", documents[2:])
    world.step(shards=1)
    late = parse_rfc3339("2023-11-14T22:13:23Z")
    found = [(format_rfc3339(row[0]), row[3]) for row in world.rows("t/out") if row[0] < late]
    assert found == [
        ("2023-11-14T22:13:20.999999Z", '{"k":"a","total":7,"v":1,"last":"a 2023-11-14T22:13:20.999Z"}'),
        ("2023-11-14T22:13:20.999999Z", '{"k":"b","total":14,"v":2,"last":"b 2023-11-14T22:13:20.999Z"}'),
        ("2023-11-14T22:13:22.999999Z", '{"k":"a","total":28,"v":3,"last":"a 2023-11-14T22:13:22.999Z"}'),
    ]


OTHERS = """
collections:
  t/source: {schema: {type: object, required: [id, at], properties: {id: {type: integer}, at: {type: string}}}, key: [/id]}
  t/good: &good
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    key: [/id]
    derive: {using: {typescript: {module: good.ts}}, transforms: [{name: fromSource, source: t/source, shuffle: any}]}
  t/out:
    <<: *good
    derive: {using: {typescript: {module: out.ts}}, transforms: [{name: fromSource, source: t/source, shuffle: any}]}
"""


def test_failing_module_stops_only_its_task(tmp_path: Path) -> None:
    """Limits of time and of memory are those of test_quarantine.py and test_derive_typescript_hostile.py."""
    good, bad = (
        f"export class Derivation {{ fromSource({{ doc }}: any): any {{ return [{{ id: {each} }}]; }} }}"
        for each in ("doc.id", "'no number'")
    )
    world = World(tmp_path / "data", load(write_catalog(tmp_path, OTHERS, good__ts=good, out__ts=bad)))
    world.ingest("t/source", [{"id": number, "at": format_rfc3339(BASE + number)} for number in range(1, 4)])
    run = world.run()
    run.step()
    run.close()
    error = run.tasks["t/out"].error
    assert error is not None
    assert "published an invalid document" in error.message
    assert run.tasks["t/good"].error is None
    assert [row[3] for row in world.rows("t/good")] == ['{"id":1}', '{"id":2}', '{"id":3}']
    assert world.rows("t/out") == []
