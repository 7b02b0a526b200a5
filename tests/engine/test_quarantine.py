"""A source document is processed or put aside, once; what is put aside leaves no trace in state or publications."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import orjson
import pytest
from conftest import LATER, World, examples, write_catalog
from hypothesis import given, settings
from hypothesis import strategies as st

from derive.catalog import load
from derive.contents.reads import ReadOptions, read_rows
from derive.document.clock import format_rfc3339, parse_rfc3339
from derive.protocol.quarantine import quarantine_spec
from derive.time.extent import Limits

BASE = 1_700_000_000_000_000
SECOND = 1_000_000

SOURCE = """
collections:
  t/source:
    key: [/id]
    writeSchema: &any
      type: object
      required: [id, k, v, at]
      properties: { id: { type: integer }, k: { type: string }, v: { type: number }, at: { type: string } }
    readSchema:
      type: object
      required: [id, k, v, at]
      properties: { id: { type: integer }, k: { type: string }, v: { type: number, minimum: 0 }, at: { type: string } }
"""
OUT = """
  t/out:
    key: [/k]
    schema:
      type: object
      required: [k]
      reduce: { strategy: merge }
      properties:
        k: { type: string }
        v: { type: number, maximum: 100, reduce: { strategy: sum } }
        n: { type: integer }
        last: { type: string }
"""
SQL = f"""{SOURCE}{OUT}
    derive:
      using:
        sqlite:
          migrations: ["CREATE TABLE counts (k TEXT PRIMARY KEY, n INTEGER NOT NULL, v REAL CHECK (v < 1000));"]
      transforms:
        - name: add
          source: t/source
          shuffle: {{ key: [/k] }}
          onViolation: quarantine
          lambda: |
            INSERT INTO counts VALUES ($k, 1, $v) ON CONFLICT DO UPDATE SET n = n + 1, v = v + $v;
            SELECT $k, n, $v, json_extract(iif($v = 13, '{{', '"x"'), '$') AS last FROM counts WHERE k = $k;
        - name: late
          source: t/source
          shuffle: {{ key: [/k] }}
          readDelay: 3s
          onViolation: quarantine
          lambda: |
            UPDATE counts SET n = n + 100 WHERE k = $k;
            SELECT iif($v = 7, NULL, substr($k, 1, 1)) AS k, coalesce((SELECT n FROM counts WHERE k = $k), 0) AS n, $v AS v;
"""
TYPESCRIPT = f"""{SOURCE}{OUT}
    derive:
      using: {{ typescript: {{ module: out.ts }} }}
      transforms:
        - {{ name: add, source: t/source, shuffle: {{ key: [/k] }}, onViolation: quarantine }}
        - {{ name: late, source: t/source, shuffle: {{ key: [/k] }}, readDelay: 3s, onViolation: quarantine }}
"""
MODULE = """
import { Document, IDerivation, SourceAdd, SourceLate } from 'flow/t/out.ts';

export class Derivation extends IDerivation {
    counts: Record<string, number>;
    held = new Map<string, number>();

    constructor(open: { state: { counts?: Record<string, number> } }) {
        super(open);
        this.counts = open.state.counts ?? {};
    }

    add({ doc }: { doc: SourceAdd }): Document[] {
        this.counts[doc.k] = (this.counts[doc.k] ?? 0) + 1;
        this.held.set(doc.k, (this.held.get(doc.k) ?? 0) + 1);
        if (doc.v === 13) {
            throw new Error(`unlucky ${doc.k}`);
        }
        return [{ k: doc.k, n: this.counts[doc.k] }, { k: doc.k, v: doc.v }];
    }

    late({ doc }: { doc: SourceLate }): Document[] {
        this.counts[doc.k] = (this.counts[doc.k] ?? 0) + 100;
        return [{ k: doc.v === 7 ? (null as unknown as string) : doc.k.slice(0, 1), n: this.counts[doc.k] }];
    }
FLUSH
    startCommit() {
        return { state: { updated: { counts: this.counts }, mergePatch: false } };
    }
}
"""
FLUSH = """
    flush(): Document[] {
        const held = [...this.held];
        this.held.clear();
        return held.map(([k, n]) => ({ k: k.slice(0, 1), v: n / 7, last: `${k} ${n}` }));
    }
"""
CATALOGS = {
    "sql": (SQL, ""),
    "typescript": (TYPESCRIPT, MODULE.replace("FLUSH", "")),
    "flush": (TYPESCRIPT, MODULE.replace("FLUSH", FLUSH)),
}


def world_of(folder: Path, kind: str, name: str) -> World:
    text, module = CATALOGS[kind]
    return World(folder / name, load(write_catalog(folder, text, out__ts=module)))


def quarantined(world: World, task: str = "t/out") -> list[tuple[int, int, bytes, str]]:
    """Return the rows of a quarantine."""
    parts = read_rows(world.store, quarantine_spec(task), ReadOptions())
    return [row for rows in parts for row in rows.tuples()]


def entries(world: World, task: str = "t/out") -> list[dict[str, Any]]:
    return [orjson.loads(text) for *_, text in quarantined(world, task)]


@st.composite
def inputs(draw: st.DrawFn, most: int = 25) -> list[dict[str, Any]]:
    clock = BASE
    documents = []
    for number in range(draw(st.integers(1, most))):
        clock += draw(st.sampled_from([1, 1000, 400_000, SECOND, 5 * SECOND]))
        key = draw(st.sampled_from(["a", "ab", "ac", "b", "bc", "ü"]))
        value = draw(st.sampled_from([1, 2, 2.5, 1, 2, 7, 13, -1, 200, 2000]))
        documents.append({"id": number, "k": key, "v": value, "at": format_rfc3339(clock)})
    return documents


def bad_values(kind: str) -> dict[str, set[float]]:
    """Return the values that make each transform fail."""
    return {"add": {13, -1, 200, 2000}, "late": {7, -1, 200, 2000} if kind == "sql" else {7, -1}}


def check_entries(world: World, documents: list[dict[str, Any]], kind: str) -> None:
    """Check that exactly the bad documents of each transform are put aside, each once."""
    bad = sorted(
        (name, doc["id"]) for name, values in bad_values(kind).items() for doc in documents if doc["v"] in values
    )
    assert sorted((entry["transform"], *entry["key"]) for entry in entries(world)) == bad
    by_id = {doc["id"]: doc for doc in documents}
    assert all(entry["document"] == by_id[entry["key"][0]] for entry in entries(world))


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.deno if kind != "sql" else ()) for kind in CATALOGS]
)
@settings(max_examples=examples(20, 3))
@given(st.data())
def test_l1_the_same_documents_are_put_aside_however_they_are_run(kind: str, data: st.DataObject) -> None:
    """Shards, batches and live runs change neither the quarantine nor the derived documents."""
    documents = data.draw(inputs())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = world_of(folder, kind, "one")
        whole.ingest("t/source", documents)
        whole.step(shards=1)
        check_entries(whole, documents, kind)
        three = world_of(folder, kind, "three")
        three.ingest("t/source", documents)
        three.step(shards=3, limits=Limits(documents=3))
        live = world_of(folder, kind, "live")
        begin = 0
        while begin < len(documents):
            end = data.draw(st.integers(begin + 1, len(documents)))
            live.ingest("t/source", documents[begin:end])
            live.wall = parse_rfc3339(documents[end]["at"]) if end < len(documents) else LATER
            live.step(shards=2)
            begin = end
        live.wall = LATER
        live.step()
        for other in (three, live):
            assert (other.digest(), quarantined(other)) == (whole.digest(), quarantined(whole))
        for world in (whole, three, live):
            world.store.close()


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.deno if kind != "sql" else ()) for kind in CATALOGS]
)
@settings(max_examples=examples(20, 3))
@given(inputs(most=80))
def test_documents_put_aside_leave_no_trace(kind: str, documents: list[dict[str, Any]]) -> None:
    """What is derived is what would be derived if the bad documents had never been there."""
    # A document that is bad for one transform is good for the other, so use only those bad for both, or for none.
    add, late = bad_values(kind).values()
    documents = [doc for doc in documents if doc["v"] not in add ^ late]
    good = [doc for doc in documents if doc["v"] not in add]
    with tempfile.TemporaryDirectory() as name:
        worlds = [world_of(Path(name), kind, each) for each in ("all", "good")]
        for world, loaded in zip(worlds, (documents, good), strict=True):
            if loaded:
                world.ingest("t/source", loaded)
            world.step(shards=2)
        assert worlds[0].rows("t/out") == (worlds[1].rows("t/out") if good else [])
        for world in worlds:
            world.store.close()
