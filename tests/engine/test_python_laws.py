"""A module in Python that keeps state, waits, and publishes at the end of ticks derives the same bytes in every run."""

from __future__ import annotations

import json
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from conftest import World, examples, write_catalog
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from test_flush import CATALOG, inputs, run_in_parts

from connectors.derive_python.connector import PythonConnector
from derive.catalog import load
from derive.engine.reset import split
from derive.shard.inspection import copied_states, shard_of_key

pytestmark = pytest.mark.xdist_group("python modules")

TEXT = CATALOG.replace("typescript: {module: out.ts}", "python: {module: out.py}")

# Each key's total is in `self.state`, the number of its documents in the state of `start_commit`.
MODULE = """
import asyncio
import random
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from t.out import ConnectorState, Document, IDerivation, Request, Response


class Derivation(IDerivation):
    def __init__(self, open: Request.Open):
        self.counts: dict[str, int] = open.state.get("counts", {})
        self.counted: dict[str, int] = {}
        self.changed: dict[str, float] = {}

    async def add(self, read: Request.ReadFromAdd) -> AsyncIterator[Document]:
        doc = read.doc
        self.state["total"] = self.state.get("total", 0) + doc.v
        self.counts[doc.k] = self.counted[doc.k] = self.counts.get(doc.k, 0) + 1
        self.changed[doc.k] = self.changed.get(doc.k, 0) + doc.v
        yield Document(k=doc.k, total=self.state["total"] + self.counts[doc.k])

    async def late(self, read: Request.ReadFromLate) -> AsyncIterator[Document]:
        await asyncio.sleep(1_000_000)
        total = self.state.get("total", 0)
        yield Document(k=read.doc.k[:1], v=total / 3, last=f"late {random.random()} {read.now}")

    async def flush(self, state_patches: list[Any], flushed: Response.Flushed) -> AsyncIterator[Document]:
        changed, self.changed = self.changed, {}
        flushed.state = ConnectorState(updated={"counts": self.counted}, merge_patch=True)
        self.counted = {}
        for k, v in changed.items():
            yield Document(k=k[:1], v=v / 7, last=f"{k} {datetime.now()}")
"""


def world_of(folder: str, name: str, text: str = TEXT, module: str = MODULE) -> World:
    path = Path(folder)
    return World(path / name, load(write_catalog(path, text, out__py=module)))


@settings(max_examples=examples(10, 2))
@given(inputs(), st.data())
def test_l1_shards_batching_and_splits_give_the_same_bytes(
    documents: list[dict[str, Any]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = world_of(folder, "one")
        whole.ingest("t/source", documents)
        whole.step(shards=1)
        assert whole.rows("t/out") != []
        live = world_of(folder, "live")
        run_in_parts(live, documents, 3, data)
        assert live.digest() == whole.digest()
        for each in (whole, live):
            each.store.close()


def test_split_divides_values_by_shuffle_key(tmp_path: Path) -> None:
    world = world_of(str(tmp_path), "divided")
    spec, keys = world.catalog.derivations["t/out"], [f"k{number}" for number in range(20)]
    at = "2024-01-01T00:00:00Z"
    world.ingest("t/source", [{"id": number, "k": key, "v": 1, "at": at} for number, key in enumerate(keys)])
    world.step(shards=1)

    for _ in range(2):
        split(world.store, "t/out", connector=PythonConnector())

    stored: set[str] = set()
    with copied_states(world.store, world.store.root, "t/out") as states:
        for shard, path in states.items():
            with closing(apsw.Connection(str(path))) as database:
                owned = [json.loads(key) for (key,) in database.execute("SELECT key FROM flow_python_keys")]
            assert {shard_of_key(spec, key, 4) for key in owned} <= {shard}
            stored.update(map(json.dumps, owned))
    assert len(states) == 4
    assert stored == {json.dumps([key]) for key in keys}
    world.store.close()


BALANCES = """
collections:
  t/source:
    schema:
      type: object
      required: [id, k, v, at]
      properties: {id: {type: integer}, k: {type: string}, v: {type: number}, at: {type: string}}
    key: [/id]
  t/typescript: &balances
    schema:
      type: object
      required: [k, balance]
      reduce: {strategy: merge}
      properties:
        k: {type: string}
        balance: {type: number}
        count: {type: integer, reduce: {strategy: sum}}
        last: {type: string}
    key: [/k]
    derive:
      using: {typescript: {module: balances.ts}}
      transforms: &transforms [{name: add, source: t/source, shuffle: {key: [/k]}}]
  t/python:
    <<: *balances
    derive: {using: {python: {module: balances.py}}, transforms: *transforms}
  t/structs:
    <<: *balances
    derive: {using: {python: {module: structs.py, models: msgspec}}, transforms: *transforms}
"""
TYPESCRIPT_BALANCES = """
import { Document, IDerivation, SourceAdd } from 'flow/t/typescript.ts';

type Balances = Record<string, number>;

export class Derivation extends IDerivation {
    balances: Balances;
    changed: Balances = {};

    constructor(open: { state: Balances }) {
        super(open);
        this.balances = open.state;
    }

    add({ doc }: { doc: SourceAdd }): Document[] {
        const balance = this.balances[doc.k] = this.changed[doc.k] = (this.balances[doc.k] ?? 0) + doc.v;
        return [{ balance, count: 1, k: doc.k, last: new Date().toISOString() }]; // models sort properties
    }

    startCommit() {
        const updated = this.changed;
        this.changed = {};
        return { state: { updated, mergePatch: true } };
    }
}
"""
PYTHON_BALANCES = """
from t.python import Document, IDerivation, Request


class Derivation(IDerivation):
    def add(self, read: Request.ReadFromAdd) -> list[Document]:
        doc, values = read.doc, self.state
        values["balance"] = balance = values.get("balance", 0) + doc.v
        last = read.now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        rounded = int(balance) if balance == int(balance) else balance
        return [Document(k=doc.k, balance=rounded, count=1, last=last)]
"""


@pytest.mark.deno
@settings(max_examples=examples(6, 1), phases=[Phase.generate])
@given(inputs())
def test_l1_balances_are_those_of_typescript_with_any_number_of_shards(documents: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        modules = {
            "balances__ts": TYPESCRIPT_BALANCES,
            "balances__py": PYTHON_BALANCES,
            "structs__py": PYTHON_BALANCES.replace("t.python", "t.structs"),
        }
        catalog = load(write_catalog(Path(folder), BALANCES, **modules))
        expected: list[Any] = []
        for shards in (1, 3, 5):
            world = World(Path(folder) / str(shards), catalog)
            world.ingest("t/source", documents)
            world.step(shards=shards)
            expected = expected or world.rows("t/typescript")
            for name in ("typescript", "python", "structs"):
                assert world.rows(f"t/{name}") == expected, (name, shards)
            world.store.close()
        assert expected != []
