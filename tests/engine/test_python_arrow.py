"""Methods with `@arrow` derive the bytes of plain methods, with any number of shards and any division into batches."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from conftest import LATER, World, examples, write_catalog
from forked_flowctl import flowctl
from hypothesis import given, settings
from hypothesis import strategies as st
from test_flush import BASE, SECOND, inputs

from connectors.derive_python.runtime import session
from connectors.module_kit.process import ModuleProcess
from derive.catalog import load
from derive.document.clock import format_rfc3339, parse_rfc3339
from derive.engine.quarantine import Choice, open_entries
from derive.errors import LambdaError
from derive.spark.executor import SparkExecutor
from derive.why.audit import audit

pytestmark = pytest.mark.xdist_group("python modules")

CATALOG = """
collections:
  t/source:
    schema:
      type: object
      required: [id, k, v, at]
      properties: {id: {type: integer}, k: {type: string}, v: {type: number}, note: {type: [string, "null"]}, at: {type: string}}
    key: [/id]
  t/plain: &out
    schema:
      type: object
      required: [k]
      reduce: {strategy: merge}
      properties: {k: {type: string}, v: {type: number, reduce: {strategy: sum}}, last: {type: string}, note: {type: [string, "null"]}}
    key: [/k]
    derive:
      using: {python: {module: plain.py}}
      transforms: &transforms
        - {name: add, source: t/source, shuffle: {key: [/k]}, onViolation: quarantine}
        - {name: late, source: t/source, shuffle: any, readDelay: 3s}
  t/arrow:
    <<: *out
    derive: {using: {python: {module: columns.py}}, transforms: *transforms}
  t/mixed:
    <<: *out
    derive: {using: {python: {module: mixed.py}}, transforms: *transforms}
"""

HEAD = """
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from t.{name} import IDerivation, Request, arrow


class Derivation(IDerivation):
"""
PLAIN = """
    def add(self, read: Request.ReadFromAdd) -> Any:
        doc = read.doc
        if doc.v == 7.75:
            raise ValueError("7.75")
        v = doc.v / 3
        document = {"k": doc.k, "v": int(v) if v == int(v) else v, "last": f"{doc.k} {doc.id}"}
        return [document if doc.note is None else {**document, "note": doc.note}] * (doc.id % 3)

    def late(self, read: Request.ReadFromLate) -> Any:
        return [{"k": read.doc.k[:1], "last": read.now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}]
"""
ARROW_ADD = """
    @arrow
    def add(self, batch: pa.RecordBatch) -> Any:
        if 7.75 in batch["v"].to_pylist():
            raise ValueError("7.75")
        rows = [row for row, number in enumerate(batch["id"].to_pylist()) for _ in range(number % 3)]
        taken = batch.take(pa.array(rows, pa.int64()))
        last = [f"{row['k']} {row['id']}" for row in taken.select(["k", "id"]).to_pylist()]
        columns = {name: taken[name] for name in ("flow_row", "k")}
        columns |= {"v": pc.divide(taken["v"], 3.0), "last": pa.array(last, pa.string()), "note": taken["note"]}
        return pa.table(columns)
"""
ARROW_LATE = """
    @arrow
    def late(self, batch: pa.RecordBatch) -> Any:
        first = pc.utf8_slice_codeunits(batch["k"], 0, 1)
        return pa.table({"flow_row": batch["flow_row"], "k": first, "last": batch["flow_now"]})
"""
MODULES = {
    "plain__py": HEAD.format(name="plain") + PLAIN,
    "columns__py": HEAD.format(name="arrow") + ARROW_ADD + ARROW_LATE,
    "mixed__py": HEAD.format(name="mixed") + PLAIN[: PLAIN.index("    def late")] + ARROW_LATE,
}


ONE = CATALOG[: CATALOG.index("  t/arrow:")].replace("t/plain", "t/arrow").replace("plain.py", "columns.py")


def world_of(folder: str, name: str, catalog: str = CATALOG) -> World:
    path = Path(folder)
    return World(path / name, load(write_catalog(path, catalog, **MODULES)))


@settings(max_examples=examples(10, 2))
@given(inputs(), st.data())
def test_l1_arrow_methods_derive_the_bytes_of_plain_methods(
    documents: list[dict[str, Any]], data: st.DataObject
) -> None:
    """Documents, timestamps and quarantined documents are independent of columns, shards and batches."""
    for document in documents:
        if (note := data.draw(st.sampled_from(["missing", None, "x"]))) != "missing":
            document["note"] = note
    with tempfile.TemporaryDirectory() as folder:
        plain: list[Any] = []
        for shards in (1, 3, 5):
            world = world_of(folder, f"shards-{shards}")
            world.ingest("t/source", documents)
            world.step(shards=shards)
            plain = plain or world.rows("t/plain")
            for name in ("plain", "arrow", "mixed"):
                assert world.rows(f"t/{name}") == plain, (name, shards)
            world.store.close()
        live = world_of(folder, "live")
        begin = 0
        while begin < len(documents):
            end = data.draw(st.integers(begin + 1, len(documents)))
            live.ingest("t/source", documents[begin:end])
            following = parse_rfc3339(documents[end]["at"]) if end < len(documents) else LATER
            live.wall = min(following, live.store.upper("t/source") + data.draw(st.sampled_from([0, SECOND])))
            live.step(shards=3)
            begin = end
        live.wall = LATER
        live.step()
        spec = live.catalog.derivations["t/arrow"]
        put_aside = {entry["document"]["id"] for entry in open_entries(live.store, spec, Choice())}
        assert put_aside == {document["id"] for document in documents if document["v"] == 7.75}
        assert live.rows("t/arrow") == live.rows("t/mixed") == plain
        assert audit(live.store, spec, Path(tempfile.mkdtemp(dir=folder)), lambda _: None).differences == ()
        live.store.close()


def many(count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": number,
            "k": f"{'abc'[number % 3]}{number % 7}",
            "v": number % 40 / 4,
            "at": format_rfc3339(BASE + number),
        }
        for number in range(count)
    ]


@pytest.fixture
def undisturbed(tmp_path: Path) -> dict[str, str]:
    world = world_of(str(tmp_path), "undisturbed", ONE)
    world.ingest("t/source", many(300))
    world.step(shards=1)
    return world.digest()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("answer", [3, 8])
def test_l2_killed_arrow_module_is_replaced_and_gives_the_same_bytes(
    answer: int, undisturbed: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of the module is killed before it gives this answer, in the middle of a transaction."""
    world, answers, received = world_of(str(tmp_path), "killed", ONE), list[int](), ModuleProcess.receive
    world.ingest("t/source", many(300))

    def receive(process: ModuleProcess, seconds: float) -> bytes:
        answers.append(process.pid)
        if len(answers) == answer:
            os.kill(process.pid, signal.SIGKILL)
        return received(process, seconds)

    monkeypatch.setattr(session, "_ARRAY_ROWS", 20)
    monkeypatch.setattr(ModuleProcess, "receive", receive)
    world.step(shards=1)

    assert answers[answer - 1] != answers[-1]
    assert world.digest() == undisturbed


def test_l2_killed_driver_of_an_arrow_module_and_another_run_give_the_same_bytes(
    undisturbed: dict[str, str], tmp_path: Path
) -> None:
    world = world_of(str(tmp_path), "killed", ONE)
    world.ingest("t/source", many(300))
    command = ["run", "--until-idle", "--shards", "2", "--source", "flow.yaml", "--data", str(world.root)]
    kill = {**os.environ, "FLOW_FAILPOINT": "state.committing:2"}

    assert flowctl(tmp_path, *command, env=kill)[0] == -signal.SIGKILL
    assert flowctl(tmp_path, *command, env=dict(os.environ))[0] == 0
    assert world.digest() == undisturbed


def test_module_that_ends_its_process_stops_only_its_own_task(tmp_path: Path) -> None:
    ending = HEAD.format(name="plain") + PLAIN.replace("v = doc.v / 3", "import os; os._exit(3)")
    path = write_catalog(tmp_path, CATALOG[: CATALOG.index("  t/mixed")], **{**MODULES, "plain__py": ending})
    world = World(tmp_path / "data", load(path))
    world.ingest("t/source", many(30))
    with pytest.raises(LambdaError, match="the Python module of 't/plain' ended with status 3"):
        world.step()
    assert world.task("t/arrow").documents_in == 60  # of two transforms


@pytest.mark.spark
def test_arrow_methods_derive_the_same_bytes_on_spark(tmp_path: Path, spark: SparkExecutor) -> None:
    local, remote = world_of(str(tmp_path), "local", ONE), world_of(str(tmp_path), "spark", ONE)
    local.ingest("t/source", many(1_000))
    local.step()
    remote.ingest("t/source", many(1_000))
    remote.step(spark, shards=2)
    assert local.rows("t/arrow") != []
    assert remote.rows("t/arrow") == local.rows("t/arrow")
    for world in (local, remote):
        world.store.close()
