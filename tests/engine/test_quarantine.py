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
from shadowed import Shadowed

from derive.catalog import load
from derive.contents.reads import ReadOptions, read_rows
from derive.document.clock import format_rfc3339, parse_rfc3339
from derive.engine.quarantine import Choice, decide, open_entries
from derive.engine.reset import reset
from derive.errors import HeldError, LambdaError, SchemaViolation, TaskError
from derive.protocol.collection import quarantine_spec
from derive.protocol.specs import LambdaLimits
from derive.spark.executor import SparkExecutor
from derive.storage.metadata.quarantine import Decision
from derive.time.extent import Limits
from derive.why.audit import audit
from derive.why.explain import Explainer, Question

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
        sqlite: {{migrations: ["CREATE TABLE counts (k TEXT PRIMARY KEY, n INTEGER NOT NULL, v REAL CHECK (v < 1000));"]}}
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
@settings(max_examples=examples(12, 3))
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
            live.wall = parse_rfc3339(documents[end - 1]["at"])
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
@settings(max_examples=examples(12, 3))
@given(inputs(most=80))
def test_documents_put_aside_leave_no_trace(kind: str, documents: list[dict[str, Any]]) -> None:
    """The derived documents are those of a source without the bad documents."""
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


EVERY = Choice()


def edited(world: World, folder: Path, old: str, new: str) -> World:
    """Return the world with an edited catalog."""
    path = folder / "flow.yaml"
    path.write_text(path.read_text().replace(old, new))
    world.catalog = load(path)
    return world


def decided(world: World, decision: Decision, choice: Choice = EVERY) -> int:
    return decide(world.store, world.catalog.derivations["t/out"], choice, decision)


def listed(world: World, choice: Choice = EVERY) -> list[tuple[str, int]]:
    """Return the transform and the key of each open entry."""
    spec = world.catalog.derivations["t/out"]
    return [(entry["transform"], entry["key"][0]) for entry in open_entries(world.store, spec, choice)]


def document(number: int, key: str, value: float, second: int = 0) -> dict[str, Any]:
    return {"id": number, "k": key, "v": value, "at": format_rfc3339(BASE + second * SECOND)}


def sums(world: World) -> dict[str, float]:
    totals: dict[str, float] = {}
    for *_, text in world.rows("t/out"):
        row = orjson.loads(text)
        totals[row["k"]] = totals.get(row["k"], 0) + row.get("v", 0)
    return totals


@pytest.fixture
def sql_world(tmp_path: Path) -> World:
    """A world with two documents that `add` puts aside, and one that both transforms put aside."""
    world = world_of(tmp_path, "sql", "data")
    world.ingest("t/source", [document(1, "a", 13), document(2, "bc", 2, 1), document(3, "bc", 13, 2)])
    world.ingest("t/source", [document(4, "a", -1, 3)])
    world.step(shards=2)
    assert listed(world) == [("add", 1), ("add", 3), ("add", 4), ("late", 4)]
    return world


FAILING = "iif($v = 13, '{', '\"x\"')"


def test_documents_are_retried_by_the_edited_lambda_at_the_time_of_the_retry(sql_world: World, tmp_path: Path) -> None:
    before = sql_world.rows("t/out")
    world = edited(sql_world, tmp_path, FAILING, "'\"y\"'")
    world.wall += 1000 * SECOND
    assert decided(world, "retry", Choice("add", keys=([1], [3]))) == 2
    assert listed(world) == [("add", 4), ("late", 4)]
    world.wall += 10 * SECOND
    world.step()
    new = world.rows("t/out")[len(before) :]
    assert [(orjson.loads(text)["k"], orjson.loads(text)["n"]) for *_, text in new] == [("a", 1), ("bc", 202)]
    assert all(0 <= clock - (world.wall - 10 * SECOND) < SECOND for clock, *_ in new)
    assert listed(world) == [("add", 4), ("late", 4)]


def test_replays_of_retries_are_exact(sql_world: World, tmp_path: Path) -> None:
    world = edited(sql_world, tmp_path, FAILING, "'\"y\"'")
    world.wall += 1000 * SECOND
    decided(world, "retry")
    world.wall += 10 * SECOND
    world.step()
    world.ingest("t/source", [document(5, "a", 1, (world.wall - BASE) // SECOND)])
    world.wall += 10 * SECOND
    world.step()
    with tempfile.TemporaryDirectory() as scratch:
        assert audit(world.store, world.catalog.derivations["t/out"], Path(scratch), lambda _: None).differences == ()
    with tempfile.TemporaryDirectory() as scratch:
        explainer = Explainer(world.catalog, world.store, Path(scratch))
        keys = frozenset(row[2] for row in world.rows("t/out"))
        assert explainer.explain("t/out", Question(keys)).differences() == []
        causes = [row for rows in explainer.explain("t/out", Question(keys)).rows.values() for row in rows]
        assert sum(row.clock > BASE + 500 * SECOND for row in causes) >= 3


def test_document_that_fails_again_is_another_entry(sql_world: World) -> None:
    first = entries(sql_world)
    sql_world.wall += 1000 * SECOND
    assert decided(sql_world, "retry", Choice(ids=(first[0]["id"],))) == 1
    sql_world.wall += 10 * SECOND
    sql_world.step()
    assert len(entries(sql_world)) == len(first) + 1
    again = entries(sql_world)[-1]
    assert (again["key"], again["error"], again["document"]) == tuple(
        first[0][name] for name in ("key", "error", "document")
    )
    assert again["id"] != first[0]["id"]
    assert listed(sql_world) == [("add", 3), ("add", 4), ("add", 1), ("late", 4)]


def test_entry_is_decided_about_once(sql_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert decided(sql_world, "drop", Choice("add", keys=([4],))) == 1
    assert decided(sql_world, "drop", Choice("add", keys=([4],))) == 0
    monkeypatch.setattr(type(sql_world.store), "decided", lambda *_: set())  # another process decides meanwhile
    for decision in ("drop", "retry"):
        with pytest.raises(HeldError, match="another process"):
            decided(sql_world, decision, Choice("add"))
    monkeypatch.undo()
    assert listed(sql_world) == [("add", 1), ("add", 3), ("late", 4)]
    assert sql_world.store.garbage.unknown() == []
    assert sql_world.store.quarantined("t/out") == {"add": 2, "late": 1}


def test_retried_documents_are_read_without_the_option(sql_world: World, tmp_path: Path) -> None:
    world = edited(sql_world, tmp_path, FAILING, "'\"y\"'")
    world = edited(world, tmp_path, "onViolation: quarantine", "onViolation: stop")
    world.wall += 1000 * SECOND
    decided(world, "retry", Choice("add", keys=([1], [3])))
    before = len(world.rows("t/out"))
    world.wall += 10 * SECOND
    world.step()
    assert len(world.rows("t/out")) == before + 2
    decided(world, "retry", Choice("add"))
    world.wall += 10 * SECOND
    with pytest.raises(SchemaViolation, match="-1 is less than the minimum of 0"):
        world.step()


def test_reset_empties_the_quarantine(sql_world: World, tmp_path: Path) -> None:
    decided(sql_world, "retry", Choice("add"))
    sql_world.wall += 10 * SECOND
    sql_world.step()
    reset(sql_world.catalog, sql_world.store, ["t/out"])
    assert (entries(sql_world), listed(sql_world), sql_world.store.quarantined("t/out")) == ([], [], {})
    assert sql_world.store.garbage.unknown() == []
    world = edited(sql_world, tmp_path, FAILING, "'\"y\"'")
    world.step()
    assert listed(world) == [("add", 4), ("late", 4)]
    assert sums(world)["a"] == 13 + 13  # by `add`, and again by `late`, once each


def test_raised_backfill_closes_the_entries_of_the_former_reading(sql_world: World, tmp_path: Path) -> None:
    decided(sql_world, "retry", Choice("add", keys=([1],)))
    sql_world.wall += 10 * SECOND
    sql_world.step()
    assert listed(sql_world, Choice("add")) == [("add", 3), ("add", 4), ("add", 1)]
    world = edited(sql_world, tmp_path, "- name: add", "- name: add\n          backfill: 1")
    assert listed(world, Choice("add")) == []
    world.step()
    assert sorted(listed(world, Choice("add"))) == [("add", 1), ("add", 3), ("add", 4)]


def test_entries_of_a_renamed_transform_stay_open(sql_world: World, tmp_path: Path) -> None:
    decided(sql_world, "retry", Choice("add", keys=([1],)))  # read by the transform under its new name
    world = edited(sql_world, tmp_path, "- name: add", "- name: plus\n          formerly: add")
    world = edited(world, tmp_path, FAILING, "'\"y\"'")
    assert listed(world, Choice("plus")) == [("add", 3), ("add", 4)]
    world.wall += 10 * SECOND
    before = sums(world)
    world.step()
    assert sums(world)["a"] == before.get("a", 0) + 13
    assert decided(world, "retry", Choice("plus")) == 2
    world.wall += 10 * SECOND
    world.step()
    assert sums(world)["bc"] == before["bc"] + 13
    assert [name for name, _ in listed(world)] == ["plus", "late"]


def test_retry_of_a_transform_that_has_ended_is_refused(sql_world: World, tmp_path: Path) -> None:
    world = edited(
        sql_world, tmp_path, "source: t/source", 'source: { name: t/source, notAfter: "2024-01-01T00:00:00Z" }'
    )
    with pytest.raises(TaskError, match="has 'notAfter: 2024-01-01"):
        decided(world, "retry")
    assert len(listed(world)) == 4


def test_task_waits_for_documents_that_are_being_retried(sql_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry that commits after a later look of the task is read all the same."""
    world, retry = sql_world, type(sql_world.store).retry
    before = len(entries(world))

    def late(*arguments: Any) -> bool:
        world.wall += 100 * SECOND
        world.step()
        return retry(*arguments)

    monkeypatch.setattr(type(world.store), "retry", late)
    world.wall += 1000 * SECOND
    decided(world, "retry", Choice("add"))
    world.wall += 10 * SECOND
    world.step()
    assert len(entries(world)) == before + 3


def test_error_of_a_transform_that_stops_stops_the_task(tmp_path: Path) -> None:
    world = edited(
        world_of(tmp_path, "sql", "data"), tmp_path, "readDelay: 3s\n          onViolation: quarantine", "readDelay: 3s"
    )
    world.ingest("t/source", [document(1, "a", 13), document(2, "a", 7)])
    with pytest.raises(SchemaViolation, match="transform 'late' of 't/out' published an invalid document"):
        world.step(shards=1)


LIMITED = """
          lambda: |
            WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE $v = 13)
            SELECT $k AS k, $v AS v WHERE (SELECT max(i) FROM n) > 0;
"""


def test_time_limit_stops_the_task(tmp_path: Path) -> None:
    text = SQL[: SQL.index("        - name: late")]
    text = text[: text.index("\n          lambda")] + LIMITED
    world = World(tmp_path / "data", load(write_catalog(tmp_path, text)).within(LambdaLimits(sqlite_seconds=0.05)))
    world.ingest("t/source", [document(1, "a", 2), document(2, "a", 13)])
    with pytest.raises(LambdaError, match="took longer than 0.05 s"):
        world.step(shards=1)
    assert entries(world) == []


HOSTILE = """
import { Document, IDerivation, SourceAdd, SourceLate } from 'flow/t/out.ts';

export class Derivation extends IDerivation {
    add({ doc }: { doc: SourceAdd }): Document[] {
        if (doc.v === 13) {
            const held: number[][] = [];
            for (;;) held.push(new Array(1_000_000).fill(doc.v));
        }
        if (doc.v === 7) for (;;);
        return [];
    }
    late(): Document[] {
        return [];
    }
}
"""


@pytest.mark.deno
@pytest.mark.parametrize(
    ("value", "seconds", "message"), [(13, 60, "exceeded its heap limit"), (7, 2, "gave no answer within")]
)
def test_limits_of_deno_stop_the_task(
    value: float, seconds: int, message: str, tmp_path: Path, empty_pool: None
) -> None:
    catalog = load(write_catalog(tmp_path, TYPESCRIPT, out__ts=HOSTILE))
    world = World(tmp_path / "data", catalog.within(LambdaLimits(answer_seconds=seconds, heap_megabytes=32)))
    world.ingest("t/source", [document(1, "a", 2), document(2, "a", value)])
    with pytest.raises(LambdaError, match=message):
        world.step(shards=1)
    assert entries(world) == []


LOOP = """
collections:
  t/source: {key: [/id], schema: &any {type: object, required: [id, v], properties: {id: {type: integer}, v: {type: integer}, at: {type: string}}}}
  t/out:
    key: [/id]
    schema: {type: object, required: [id], properties: {id: {type: integer}, v: {type: integer, minimum: -3}}}
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE seen (id INTEGER, v INTEGER);"]}}
      transforms:
        - name: begin
          source: t/source
          shuffle: {key: [/id]}
          lambda: SELECT $id, $v;
        - name: again
          source: t/out
          shuffle: {key: [/id]}
          onViolation: quarantine
          lambda: |
            INSERT INTO seen VALUES ($id, $v);
            SELECT $id, (SELECT min(v) FROM seen WHERE id = $id) - 1 AS v WHERE $v > -10;
"""


@pytest.mark.parametrize("shards", [1, 3])
def test_self_read_puts_aside_what_ends_its_loop(shards: int, tmp_path: Path) -> None:
    world = World(tmp_path / "data", load(write_catalog(tmp_path, LOOP)))
    world.ingest("t/source", [{"id": number, "v": number, "at": format_rfc3339(BASE + number)} for number in range(5)])
    world.step(shards=shards)
    found = [(entry["key"], entry["document"]["v"]) for entry in entries(world)]
    assert sorted(found) == [([number], -3) for number in range(5)]
    assert len(world.rows("t/out")) == sum(number + 4 for number in range(5))
    (tmp_path / "digest").write_text(repr(quarantined(world)))
    other = World(tmp_path / "other", world.catalog)
    other.ingest("t/source", [{"id": number, "v": number, "at": format_rfc3339(BASE + number)} for number in range(5)])
    other.step(shards=4 - shards, limits=Limits(documents=1))
    assert (quarantined(other), other.digest()) == (quarantined(world), world.digest())


COMPUTED = SQL.replace("{ key: [/k] }", "{ lambda: SELECT upper($k) }").replace(
    "derive:", "derive:\n      shuffleKeyTypes: [string]"
)


def test_computed_shuffle_owns_valid_documents_beside_invalid_ones(tmp_path: Path) -> None:
    """Documents beside an invalid one go to the shard of their computed key."""
    catalog = load(write_catalog(tmp_path, COMPUTED))
    documents = [document(number, "ab"[number % 2], -1 if number % 5 == 0 else 1, number) for number in range(40)]
    digests = []
    for shards in (1, 3):
        world = World(tmp_path / str(shards), catalog)
        world.ingest("t/source", documents)
        world.step(shards=shards)
        digests.append((world.digest(), quarantined(world)))
        with tempfile.TemporaryDirectory() as scratch:
            question = Question(frozenset(row[2] for row in world.rows("t/out")))
            assert Explainer(catalog, world.store, Path(scratch)).explain("t/out", question).differences() == []
        world.store.close()
    assert digests[0] == digests[1]
    assert len(digests[0][1]) == 16


MANY = """
        - name: add
          source: t/source
          shuffle: any
          onViolation: quarantine
          lambda: |
            WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 15000)
            SELECT $k || i AS k, iif(i = 15000, $v, 1) AS v FROM n;
"""


def test_last_of_many_publications_takes_the_others_along(tmp_path: Path) -> None:
    text = SQL[: SQL.index("\n        - name: add")] + MANY
    world = World(tmp_path / "data", load(write_catalog(tmp_path, text)))
    world.ingest("t/source", [document(1, "a", 200), document(2, "b", 2)])
    world.step(shards=1)
    assert [entry["key"] for entry in entries(world)] == [[1]]
    assert {orjson.loads(text)["k"][0] for *_, text in world.rows("t/out")} == {"b"}


REDACTED = """
collections:
  t/source: {key: [/id], schema: {type: object, required: [id], properties: {id: {type: integer}, ssn: {type: string}, at: {type: string}}}}
  t/out:
    key: [/id]
    schema:
      type: object
      required: [id]
      properties: {id: {type: integer}, ssn: {type: string, redact: {strategy: block}}, other: {type: integer}}
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: add, source: t/source, shuffle: any, onViolation: quarantine, lambda: "SELECT $id, $ssn, $ssn AS other;"}
"""


def test_error_of_a_redacted_collection_shows_no_values(tmp_path: Path) -> None:
    world = World(tmp_path / "data", load(write_catalog(tmp_path, REDACTED)))
    world.ingest("t/source", [{"id": 1, "ssn": "123-45", "at": format_rfc3339(BASE)}])
    world.step(shards=1)
    (entry,) = entries(world)
    assert "'/other'" in entry["error"]
    assert "123-45" not in entry["error"]


@pytest.mark.spark
@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["sql", pytest.param("flush", marks=pytest.mark.deno)])
def test_spark_puts_the_same_documents_aside(kind: str, tmp_path: Path, spark: SparkExecutor) -> None:
    values = [1, 2, 7, 13, -1, 200, 2.5]
    documents = [
        document(number, "ab"[number % 2] + str(number % 5), values[number % 7], number) for number in range(60)
    ]
    worlds = []
    for name, executor, shards in (("one", None, 1), ("spark", spark, 4)):
        world = world_of(tmp_path, kind, name)
        world.ingest("t/source", documents)
        world.step(executor, shards, Limits(slice_documents=10, small_documents=0))
        check_entries(world, documents, kind)
        worlds.append(world)
    assert (worlds[1].digest(), quarantined(worlds[1])) == (worlds[0].digest(), quarantined(worlds[0]))


def test_swapped_shadow_brings_its_quarantine(sql_world: World, tmp_path: Path) -> None:
    world = sql_world
    decided(world, "retry", Choice("add", keys=([1],)))
    world = edited(world, tmp_path, FAILING, "'\"y\"'")
    Shadowed(world, world.catalog, 2, is_held=False).swap()
    world.wall += 10 * SECOND
    world.step()
    assert listed(world) == [("add", 4), ("late", 4)]
    assert sums(world)["a"] == 13 + 13
    assert world.store.internal_collections("t/out@2") == []


def test_next_run_removes_files_that_a_killed_run_wrote_into_the_quarantine(tmp_path: Path) -> None:
    world = world_of(tmp_path, "sql", "one")
    document = {"id": 1, "k": "a", "v": -1, "at": format_rfc3339(BASE)}
    world.ingest("t/source", [document])
    world.step(shards=1)
    writer, _ = world.store.acquire_task("t/out", 1, ["t/out", "t/out@quarantine"])
    left = world.root / "collections" / "t" / "out@quarantine@" / f"{writer.id}.9-0.parquet"
    left.write_bytes(b"")
    world.step(shards=1)
    assert not left.exists()
    assert [entry["key"] for entry in entries(world)] == [[1], [1]]


def test_swapped_quarantine_equals_one_of_a_fresh_folder(tmp_path: Path) -> None:
    values = (1, -1, 13, 7, 200)
    documents = [
        {"id": number, "k": "ab", "v": value, "at": format_rfc3339(BASE + number)}
        for number, value in enumerate(values)
    ]
    world = world_of(tmp_path, "sql", "one")
    edited = load(write_catalog(tmp_path, SQL.replace("n + 100", "n + 200")))
    fresh = World(tmp_path / "fresh", edited)
    for each in (world, fresh):
        each.ingest("t/source", documents)
        each.step(shards=1)
    Shadowed(world, edited, 1, is_held=False).swap()
    assert {entry["source"] for entry in entries(world)} == {"t/source"}
    assert quarantined(world) == quarantined(fresh) != []
    assert world.digest() == fresh.digest()
