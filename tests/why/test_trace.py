"""Traces: what each lambda was given, found as state, changed and published, and how its sources came to be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from conftest import World, write_catalog
from explained import BASE, SECOND, advance, explainer_of

from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.document.key import pack
from derive.why import observe
from derive.why.observe import Change, Observation
from derive.why.trace import Trace, trace

CATALOG = """
collections:
  t/moves:
    key: [/id]
    schema:
      type: object
      required: [id, who, n]
      properties: {id: {type: integer}, who: {type: string}, n: {type: integer}, at: {type: string}}
  t/balances:
    key: [/id]
    schema: {type: object, required: [id, who], properties: {id: {type: integer}, who: {type: string}, left: {type: integer}}}
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE t (who TEXT PRIMARY KEY, k INTEGER) WITHOUT ROWID;"]}}
      transforms:
        - name: move
          source: t/moves
          shuffle: {key: [/who]}
          readDelay: 2s
          lambda: |
            INSERT INTO t VALUES ($who, $n) ON CONFLICT DO UPDATE SET k = k + $n;
            SELECT $id, $who, k AS left FROM t WHERE who = $who;
  t/sums:
    key: [/who]
    schema:
      type: object
      required: [who]
      reduce: {strategy: merge}
      properties: {who: {type: string}, sum: {type: integer, reduce: {strategy: sum}}}
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: add, source: t/balances, shuffle: any, lambda: "SELECT $who, $left AS sum;"}
  t/modules:
    key: [/who]
    schema: {type: object, required: [who], properties: {who: {type: string}, n: {type: integer}}}
    derive:
      using: {typescript: {module: m.ts}}
      transforms: [{name: fromMoves, source: t/moves, shuffle: {key: [/who]}}]
"""
MODULE = """
import { Document, IDerivation, SourceFromMoves } from 'flow/t/modules.ts';
type State = { seen?: Record<string, number> };
export class Derivation extends IDerivation {
    seen: Map<string, number>;
    constructor(open: { state: State }) { super(open); this.seen = new Map(Object.entries(open.state.seen ?? {})); }
    fromMoves(read: { doc: SourceFromMoves }): Document[] {
        const n = (this.seen.get(read.doc.who) ?? 0) + read.doc.n;
        this.seen.set(read.doc.who, n);
        return [{ who: read.doc.who, n }];
    }
    override startCommit() { return { state: { updated: { seen: Object.fromEntries(this.seen) }, mergePatch: true } }; }
    override reset() { this.seen.clear(); }
}
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "data", load(write_catalog(tmp_path, CATALOG, m__ts=MODULE)), wall=BASE)
    documents = [(1, "ann", 10), (2, "ben", 7), (3, "ann", -4), (4, "ann", 1)]
    made.ingest(
        "t/moves", [{"id": i, "who": who, "n": n, "at": format_rfc3339(BASE + i * SECOND)} for i, who, n in documents]
    )
    made.wall = BASE + 60 * SECOND
    advance(made, 2)
    yield made
    made.store.close()


def traced(world: World, name: str, key: object, depth: int = 1, end: int | None = None) -> Trace:
    with explainer_of(world) as explainer:
        found = trace(explainer, name, pack([key]), world.store.upper(name) if end is None else end, depth)
    assert found is not None
    return found


def observed(found: Trace) -> Observation:
    seen = found.documents[-1].causes[-1].observation
    assert seen is not None
    return seen


def test_trace_has_the_parameters_the_state_and_the_changes_of_a_lambda(world: World) -> None:
    found = traced(world, "t/balances", 3)
    (document,) = found.documents
    (cause,) = document.causes
    seen = observed(found)

    assert (found.value, found.is_equal, found.omitted) == ('{"id":3,"who":"ann","left":6}', True, 0)
    assert (cause.transform, cause.source, cause.row.key, cause.read_delay) == (
        "move",
        "t/moves",
        pack([3]),
        2 * SECOND,
    )
    assert (cause.row.clock, document.stored.clock) == (BASE + 3 * SECOND, BASE + 5 * SECOND)
    assert seen.given == {"$who": "ann", "$n": -4, "$id": 3}
    assert (seen.earlier, seen.state_rows) == (1, 1)
    assert [(state.table, state.row) for state in seen.state] == [("t", ("ann", 10))]
    writer = seen.state[0].writer
    assert writer is not None
    assert (writer.transform, writer.source, writer.row.key) == ("move", "t/moves", pack([1]))
    assert seen.changes == (Change("t", ("ann", 10), ("ann", 6)),)
    assert seen.published == ({"id": 3, "who": "ann", "left": 6},)
    assert not cause.is_derived


def test_trace_shows_each_step_of_a_reduction_and_the_sources_of_sources(world: World) -> None:
    found = traced(world, "t/sums", "ann")

    assert found.value == '{"who":"ann","sum":23}'
    assert [document.reduced for document in found.documents] == [
        '{"who":"ann","sum":10}',
        '{"who":"ann","sum":16}',
        '{"who":"ann","sum":23}',
    ]
    above = [document.causes[0].above for document in found.documents]
    assert [one and one.causes[0].row.key for one in above] == [pack([1]), pack([3]), pack([4])]
    assert [one and one.is_equal for one in above] == [True] * 3


def test_trace_ends_at_its_depth(world: World) -> None:
    (*_, document) = traced(world, "t/sums", "ann", depth=0).documents

    assert (document.causes[0].is_derived, document.causes[0].above) == (True, None)


def test_trace_at_a_time_has_the_value_of_that_time(world: World) -> None:
    found = traced(world, "t/sums", "ann", end=BASE + 5 * SECOND)

    assert (found.value, len(found.documents)) == ('{"who":"ann","sum":10}', 1)


def test_trace_of_an_ingested_document_has_its_time(world: World) -> None:
    found = traced(world, "t/moves", 2)

    assert (found.is_derived, [document.stored.clock for document in found.documents]) == (False, [BASE + 2 * SECOND])


def test_trace_of_an_unknown_key_is_none(world: World) -> None:
    with explainer_of(world) as explainer:
        assert trace(explainer, "t/sums", pack(["zoe"]), world.store.upper("t/sums"), 1) is None


@pytest.mark.deno
def test_trace_has_the_state_of_a_module(world: World, empty_pool: None) -> None:
    found = traced(world, "t/modules", "ann")
    seen = observed(found)

    assert (found.value, found.is_equal, found.omitted) == ('{"who":"ann","n":7}', True, 2)
    assert (seen.value_before, seen.value_after) == ({"seen": {"ann": 6}}, {"seen": {"ann": 7}})
    assert seen.published == ({"who": "ann", "n": 7},)


def test_trace_of_a_long_history_knows_writers_of_late_rows_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (state,) = observed(traced(world, "t/balances", 4)).state
    assert state.writer is not None
    monkeypatch.setattr(observe, "_ATTRIBUTED", 1)

    seen = observed(traced(world, "t/balances", 4))

    assert (seen.earlier, seen.state) == (2, (state._replace(writer=None),))
    assert seen.changes == (Change("t", ("ann", 6), ("ann", 7)),)


SMALL = """
collections:
  t/moves:
    key: [/id]
    schema:
      type: object
      required: [id, who, n]
      properties: {id: {type: integer}, who: {type: string}, n: {type: integer}, at: {type: string}}
  t/out:
    key: [/who]
    schema:
      type: object
      required: [who]
      reduce: {strategy: merge}
      properties: {who: {type: string}, n: {type: integer, reduce: {strategy: sum}}}
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE t (k);"]}}
      transforms: [{name: move, source: t/moves, shuffle: {key: [/who]}, lambda: "LAMBDA"}]
"""


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[str, Sequence[int]], World]]:
    begun: list[World] = []

    def begin(code: str, numbers: Sequence[int]) -> World:
        made = World(tmp_path / "data", load(write_catalog(tmp_path, SMALL.replace("LAMBDA", code))), wall=BASE)
        begun.append(made)
        moves = [
            {"id": i, "who": "ann", "n": n, "at": format_rfc3339(BASE + i * SECOND)} for i, n in enumerate(numbers)
        ]
        made.ingest("t/moves", moves)
        made.wall = BASE + 60 * SECOND
        advance(made)
        return made

    yield begin
    for made in begun:
        made.store.close()


def test_trace_shows_documents_that_cancel_each_other(begin: Callable[[str, Sequence[int]], World]) -> None:
    """The last document equals the value by chance: it does not replace the earlier ones."""
    found = traced(begin("SELECT $who, $n;", [20, -20, 5]), "t/out", "ann")

    assert found.value == '{"who":"ann","n":5}'
    assert [document.reduced for document in found.documents] == [
        '{"who":"ann","n":20}',
        '{"who":"ann","n":0}',
        '{"who":"ann","n":5}',
    ]


def test_trace_shows_only_the_last_document_if_it_replaces_earlier_documents(
    begin: Callable[[str, Sequence[int]], World],
) -> None:
    found = traced(begin("SELECT $who;", [1, 2, 3]), "t/out", "ann")
    assert (len(found.documents), found.omitted, found.omitted_value) == (1, 2, None)


def test_trace_names_the_writers_of_equal_rows(begin: Callable[[str, Sequence[int]], World]) -> None:
    """Two rows are equal, and a real number equals an integer; each was written by a document of its own."""
    code = "INSERT INTO t VALUES (iif($n = 3, 1.0, 1)); SELECT $who, $n;"
    seen = observed(traced(begin(code, [1, 2, 3, 4]), "t/out", "ann"))

    assert [(repr(state.row[0]), state.writer and state.writer.row.key) for state in seen.state] == [
        ("1", pack([0])),
        ("1", pack([1])),
        ("1.0", pack([2])),
    ]


def test_trace_has_the_deletion_of_all_rows_after_a_long_history(
    begin: Callable[[str, Sequence[int]], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite deletes all rows of a table at once, if nothing observes rows when it prepares the statement."""
    monkeypatch.setattr(observe, "_ATTRIBUTED", 1)
    code = "DELETE FROM t; INSERT INTO t VALUES ($n); SELECT $who, $n;"
    seen = observed(traced(begin(code, range(9)), "t/out", "ann"))

    assert seen.changes == (Change("t", (7,), None), Change("t", None, (8,)))
