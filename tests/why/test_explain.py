"""Replays of the documents that matter give what is stored, for every way to derive and every edit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import World, write_catalog
from explained import BASE, SECOND, advance, assert_explained, audited, differing, explainer_of, keys_of

from derive.catalog import load
from derive.document.clock import format_rfc3339
from derive.document.key import pack
from derive.engine.reset import reset, split
from derive.relations.table_rows import TableRows
from derive.storage.compaction import compact
from derive.storage.table_types import TableColumn
from derive.why import explain
from derive.why.explain import Question, reasons_of
from derive.why.replay import Part, Replay

HEAD = """
collections:
  c/in:
    key: [/KEY]
    schema:
      type: object
      required: [id, who, n]
      properties:
        id: {type: integer}
        who: {type: string}
        n: {type: number}
        x: {type: integer, default: DEFAULT}
        at: {type: string}
"""
OUT = """
  c/out:
    key: [/OUT]
    schema:
      type: object
      required: [OUT]
      REDUCE
      properties: {PROPERTIES}
    derive:
      using: USING
      MORE
      transforms:
"""
MERGE = "reduce: {strategy: merge}"
SUMS = (
    "who: {type: string}, n: {type: number, reduce: {strategy: sum}}, times: {type: integer, reduce: {strategy: sum}}"
)
PLAIN = "id: {type: integer}, who: {type: string}, n: {type: number}"
TABLE = '{sqlite: {migrations: ["CREATE TABLE t (who TEXT PRIMARY KEY, k INTEGER) WITHOUT ROWID;"]}}'
COUNT = "INSERT INTO t VALUES ($who, 1) ON CONFLICT DO UPDATE SET k = k + 1; SELECT $id, $who, k AS n FROM t WHERE who = $who;"
BY_WHO = "{key: [/who]}"


def transform(code: str, *, name: str = "a", shuffle: str = BY_WHO, source: str = "c/in", more: str = "") -> str:
    return f"        - {{name: {name}, source: {source}, shuffle: {shuffle}, lambda: {json.dumps(code)}{more}}}\n"


def catalog(
    out: str, properties: str, using: str, transforms: str, reduce: str = "", more: str = "", key: str = "id"
) -> str:
    text = HEAD.replace("KEY", key).replace("DEFAULT", "1") + OUT
    parts = {"OUT": out, "PROPERTIES": properties, "USING": using, "REDUCE": reduce, "MORE": more}
    for name, part in parts.items():
        text = text.replace(name, part)
    return text + transforms


SUMMED = catalog(
    "who", SUMS, "{sqlite: {}}", transform("SELECT $who, $n, 1 AS times WHERE $n > 20;", shuffle="any"), MERGE
)
COUNTED = catalog("id", PLAIN, TABLE, transform(COUNT))
CYCLE = COUNTED + transform("UPDATE t SET k = k + 10 WHERE who = $who;", name="b", source="c/out")
LATEST = catalog(
    "who", "who: {type: string}, n: {type: number}", "{sqlite: {}}", transform("SELECT $who, $n;", shuffle="any")
)


def documents(begin: int, count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": number,
            "who": f"p{number * 5 % 7}",
            "n": number * 37 % 101,
            "at": format_rfc3339(BASE + number * 300_000),
        }
        for number in range(begin, begin + count)
    ]


class History:
    """A data folder to which documents are added, under catalogs that are edited."""

    def __init__(self, folder: Path, text: str) -> None:
        self._folder = folder
        self._count = 0
        self.world = World(folder / "data", load(write_catalog(folder, text)), wall=BASE)

    def edit(self, text: str) -> None:
        self.world.catalog = load(write_catalog(self._folder, text))

    def add(self, count: int, shards: int = 1) -> None:
        """Ingest documents, and run the tasks."""
        self.world.ingest("c/in", documents(self._count, count))
        self._count += count
        self.world.wall = BASE + self._count * 300_000
        advance(self.world, shards)

    def end(self) -> None:
        """Let all delays pass."""
        self.world.wall += 7200 * SECOND
        advance(self.world)


@pytest.fixture
def history(tmp_path: Path) -> Iterator[Callable[[str], History]]:
    begun: list[History] = []

    def begin(text: str) -> History:
        begun.append(History(tmp_path, text))
        return begun[-1]

    yield begin
    for one in begun:
        one.world.store.close()


WAYS = {
    "a filter that is reduced": SUMMED,
    "state by key": COUNTED,
    "a self-read": CYCLE,
    "a computed shuffle": catalog(
        "id",
        PLAIN,
        TABLE,
        transform(COUNT, shuffle='{lambda: "SELECT lower($who) AS w;"}'),
        more="shuffleKeyTypes: [string]",
    ),
    "a read delay": COUNTED
    + transform("UPDATE t SET k = k - 1 WHERE who = $who;", name="forget", more=", readDelay: 5s"),
    "chance and time": catalog(
        "id",
        PLAIN,
        TABLE,
        transform(COUNT.replace("k AS n", "k + abs(random() % 1000) + unixepoch('now') AS n"), more=", readDelay: 5m"),
    ),
    "priorities": catalog(
        "id",
        PLAIN,
        TABLE,
        transform("SELECT $id, $who, ifnull((SELECT k FROM t WHERE who = $who), 0) AS n;", more=", priority: 1")
        + transform("INSERT INTO t VALUES ($who, 1) ON CONFLICT DO UPDATE SET k = k + 1;", name="b"),
    ),
    "documents that stay separate": catalog(
        "who",
        "who: {type: string}, x: {type: [object, array], reduce: {strategy: merge}}",
        "{sqlite: {}}",
        transform("SELECT $who, iif($n % 2, json_object('v', $n), json_array($n)) AS x;", shuffle="any"),
        MERGE,
    ),
    "a redacted property": catalog(
        "id",
        "id: {type: integer}, who: {type: string, redact: {strategy: sha256}}, n: {type: number}",
        TABLE,
        transform(COUNT),
    ),
    "a default": catalog("id", PLAIN, TABLE, transform(COUNT.replace("k AS n", "k + $x AS n"))),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shards", [1, 3])
def test_explanation_gives_the_stored_documents(history: Callable[[str], History], way: str, shards: int) -> None:
    tried = history(WAYS[way])
    tried.add(40, shards)
    tried.add(20, shards)
    tried.end()

    assert_explained(tried.world)
    assert differing(tried.world, "c/out", singly=True) == []


def test_explanation_has_causes_of_transforms_with_keys_of_other_lengths(history: Callable[[str], History]) -> None:
    """Regression: a transform with 'shuffle: any' has the keys of its source, here of two values."""
    code = "SELECT $id, $who, 0 AS n WHERE $n < 0;"
    tried = history(
        catalog("id", PLAIN, TABLE, transform(COUNT) + transform(code, name="b", shuffle="any"), key="who, /id")
    )
    tried.add(10)
    assert_explained(tried.world)


EDITS = {
    "the lambda": (SUMMED, SUMMED.replace("$n > 20", "$n > 60")),
    "the lambda, over state": (COUNTED, COUNTED.replace("k = k + 1", "k = k + 2")),
    "a transform more": (SUMMED, SUMMED + transform("SELECT $who, 1000 AS n WHERE $n < 50;", name="b", shuffle="any")),
    "a backfill": (LATEST, LATEST.replace('SELECT $who, $n;"', 'SELECT $who, $n;", backfill: 1')),
    "a backfill, over state": (COUNTED, COUNTED.replace('= $who;"}', '= $who;", backfill: 1}')),
    "a longer delay": (COUNTED, COUNTED.replace('= $who;"}', '= $who;", readDelay: 2s}')),
    "a shorter delay": (COUNTED.replace('= $who;"}', '= $who;", readDelay: 4s}'), COUNTED),
    "the reduction": (SUMMED, SUMMED.replace("strategy: sum}}, times", "strategy: maximize}}, times")),
    "a default": (WAYS["a default"], WAYS["a default"].replace("default: 1", "default: 5")),
    "the tick": (SUMMED, SUMMED.replace("      transforms:", "      shards: {maxTxnDuration: 5s}\n      transforms:")),
    "a cycle": (CYCLE, CYCLE.replace("k + 1 ", "k + 3 ").replace("k + 1;", "k + 3;")),
    "a transform more on a cycle": (CYCLE, CYCLE + transform("UPDATE t SET k = k + 100 WHERE who = $who;", name="c")),
    "the selection": (
        SUMMED,
        SUMMED.replace("source: c/in", f'source: {{name: c/in, notAfter: "{format_rfc3339(BASE + 14 * SECOND)}"}}'),
    ),
    "another name": (COUNTED, COUNTED.replace("name: a,", "name: other, formerly: a,")),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("edit", EDITS)
def test_explanation_gives_the_documents_of_every_definition(history: Callable[[str], History], edit: str) -> None:
    before, after = EDITS[edit]
    assert before != after
    tried = history(before)
    tried.add(40)
    tried.edit(after)
    tried.add(20, 2)
    tried.edit(before)
    tried.add(10)
    tried.end()

    assert len(tried.world.store.past("c/out")) >= 3
    assert_explained(tried.world)


def test_explanation_of_a_reset_and_a_split_derivation_is_equal(history: Callable[[str], History]) -> None:
    tried = history(COUNTED)
    tried.add(30, 2)
    split(tried.world.store, "c/out")
    tried.add(20)
    assert_explained(tried.world)
    reset(tried.world.catalog, tried.world.store, ["c/out"])
    tried.edit(COUNTED.replace("k = k + 1", "k = k + 2"))
    tried.end()

    assert len(tried.world.rows("c/out")) == 50
    assert_explained(tried.world)


def test_explanation_at_a_time_sees_earlier_documents_only(history: Callable[[str], History]) -> None:
    tried = history(SUMMED)
    tried.add(60)
    (key, *_) = keys_of(tried.world, "c/out")
    clocks = [row[0] for row in tried.world.rows("c/out") if row[2] == key]
    with explainer_of(tried.world) as explainer:
        for number, clock in enumerate(clocks):
            explanation = explainer.explain("c/out", Question(frozenset([key]), end=clock + 1))
            assert explanation.differences() == []
            assert len(explanation.stored[key]) == number + 1


def test_lambda_that_uses_other_keys_is_reported(history: Callable[[str], History]) -> None:
    tried = history(
        catalog(
            "id",
            PLAIN,
            TABLE,
            transform(COUNT.replace("k AS n FROM t WHERE who = $who", "(SELECT sum(k) FROM t) AS n")),
        )
    )
    tried.add(30)
    question = Question(frozenset([pack([29])]))
    with explainer_of(tried.world) as explainer:
        explanation = explainer.explain("c/out", question)
        assert explanation.differences() == [pack([29])]
        (reason,) = reasons_of(explainer, "c/out", question, explanation)
    assert reason.startswith("a lambda uses state of other shuffle keys")
    assert audited(tried.world, "c/out").differences == ()


def test_lambda_that_fails_without_other_keys_is_reported(history: Callable[[str], History]) -> None:
    """A replay of one key fails where the run did not: the reason is the state of the other keys, not the lambda."""
    of_first = "(SELECT k FROM t WHERE who = 'p0') AS n"
    text = catalog("id", PLAIN, TABLE, transform(COUNT.replace("k AS n FROM t WHERE who = $who", of_first)))
    tried = history(text.replace("required: [id]", "required: [id, n]"))
    tried.add(28)
    tried.end()
    question = Question(frozenset([pack([27])]))
    with explainer_of(tried.world) as explainer:
        explanation = explainer.explain("c/out", question)
        assert explanation.differences() == [pack([27])]
        (reason,) = reasons_of(explainer, "c/out", question, explanation)
    assert reason.startswith("a lambda uses state of other shuffle keys")


def test_explanation_enters_only_parts_with_documents_of_the_key(
    history: Callable[[str], History], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several priorities, each transaction is a part of its own."""
    later = transform("SELECT $id + 1000 AS id, $who, 1 AS n;", name="b", more=", priority: 2")
    tried = history(catalog("id", PLAIN, TABLE, transform(COUNT) + later))
    for _ in range(8):
        tried.add(4)
    tried.end()
    entered = set[int]()
    enter = Replay.enter

    def recorded(replay: Replay, part: Part) -> None:
        entered.add(part.number)
        enter(replay, part)

    monkeypatch.setattr(Replay, "enter", recorded)
    with explainer_of(tried.world) as explainer:
        explanation = explainer.explain("c/out", Question(frozenset([pack([31])])))
    read = {number for number, rows in explanation.rows.items() if rows}

    assert explanation.differences() == []
    assert entered == read
    assert len(explanation.rows) > len(read) + 2


CONVERTED = """
  c/texts:
    key: [/id]
    schema:
      type: object
      required: [id]
      properties: {id: {type: string, format: integer}, at: {type: string}}
"""


def test_explanation_has_causes_whose_key_the_lambda_converts(history: Callable[[str], History]) -> None:
    """Two sources publish the same document in one tick; the key of one is text, which a lambda gets as a number."""
    code = "SELECT $id, 'x' AS who;"
    both = transform(code, shuffle="any") + transform(code, name="b", source="c/texts", shuffle="any")
    tried = history(catalog("id", PLAIN, "{sqlite: {}}", both) + CONVERTED)
    tried.world.wall += SECOND
    tried.world.ingest("c/texts", [{"id": "5", "at": format_rfc3339(BASE + SECOND)}])
    tried.add(10)
    tried.end()
    with explainer_of(tried.world) as explainer:
        explanation = explainer.explain("c/out", Question(frozenset([pack([5])])))
    assert explanation.differences() == []
    assert {cause.cause.transform for cause in explanation.causes[pack([5])]} == {0, 1}


@pytest.mark.parametrize(
    "code", ['SELECT lower($who) AS "$who", $n;', "SELECT $who, $n WHERE $n < 2 UNION ALL SELECT lower($who), $n;"]
)
def test_explanation_has_causes_of_columns_named_as_a_parameter(code: str, history: Callable[[str], History]) -> None:
    """A column may be named as a parameter and have another value; the earlier document of the tick is replaced."""
    properties = "who: {type: string}, n: {type: number}"
    tried = history(catalog("who", properties, "{sqlite: {}}", transform(code, shuffle="any")))
    rows = [{"id": 1, "who": "P", "n": 2.5}, {"id": 2, "who": "p", "n": 1.5}]
    tried.world.ingest("c/in", [{**row, "at": format_rfc3339(BASE)} for row in rows])
    tried.end()
    with explainer_of(tried.world) as explainer:
        explanation = explainer.explain("c/out", Question(frozenset([pack(["p"])])))
    assert explanation.differences() == []
    assert {cause.cause.key for cause in explanation.causes[pack(["p"])]} == {pack([1]), pack([2])}


def test_compacted_source_is_reported(history: Callable[[str], History]) -> None:
    tried = history(catalog("id", PLAIN, TABLE, transform(COUNT), key="who"))
    tried.add(40)
    since = tried.world.store.upper("c/in")
    compact(tried.world.store, tried.world.catalog.collections["c/in"], since=since, grace=0)
    tried.add(20)
    keys = frozenset(keys_of(tried.world, "c/out"))
    with explainer_of(tried.world) as explainer:
        explanation = explainer.explain("c/out", Question(keys))
        assert explanation.differences() != []
        (reason,) = reasons_of(explainer, "c/out", Question(keys), explanation)
    assert reason.startswith(f"the history of 'c/in' before {format_rfc3339(since)} was compacted")
    assert audited(tried.world, "c/out").reasons == (reason,)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_removed_source_is_reported(*, is_dropped: bool, history: Callable[[str], History]) -> None:
    tried = history(catalog("id", PLAIN, TABLE, transform(COUNT)))
    tried.add(20)
    tried.end()
    store = tried.world.store
    store.drop("c/in", force=True) if is_dropped else store.truncate("c/in")
    keys = frozenset(keys_of(tried.world, "c/out"))
    with explainer_of(tried.world) as explainer:
        explanation = explainer.explain("c/out", Question(keys))
        (reason,) = reasons_of(explainer, "c/out", Question(keys), explanation)
    assert reason.startswith("'c/in' was reset")
    assert reason.endswith("so documents that were processed are gone")


def test_compacted_output_is_explained_by_its_reduction(history: Callable[[str], History]) -> None:
    tried = history(SUMMED)
    tried.add(40)
    compact(
        tried.world.store, tried.world.catalog.collections["c/out"], since=tried.world.store.upper("c/out"), grace=0
    )
    tried.add(20)
    tried.end()

    assert tried.world.store.collection("c/out").since > 0  # type: ignore[union-attr]
    assert differing(tried.world, "c/out") == []
    assert audited(tried.world, "c/out").differences == ()


def test_past_of_an_older_folder_is_assumed_and_reported(history: Callable[[str], History]) -> None:
    tried = history(COUNTED)
    tried.add(40)
    with tried.world.store._metadata.transaction() as database:
        database.execute("DELETE FROM history")
    tried.edit(COUNTED.replace("k = k + 1", "k = k + 2"))
    upper = tried.world.store.upper("c/out")
    tried.add(20)
    keys = frozenset(keys_of(tried.world, "c/out"))
    with explainer_of(tried.world) as explainer:
        explanation = explainer.explain("c/out", Question(keys))
        assert len(explanation.differences()) > 30
        (reason,) = reasons_of(explainer, "c/out", Question(keys), explanation)
    assert reason.startswith(f"the definitions in force before {format_rfc3339(upper)} are not recorded")


MUTANTS: dict[str, tuple[str, object, str]] = {
    "histories end before the first tick": ("tick_end", lambda *_: 0, "state by key"),
    "delays are ignored": ("offset_of", lambda *_: 0, "a read delay"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_of_the_explanation_differs(
    history: Callable[[str], History], monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    name, wrong, way = MUTANTS[mutant]
    tried = history(WAYS[way])
    tried.add(40)
    tried.end()
    assert differing(tried.world, "c/out") == []
    monkeypatch.setattr(explain, name, wrong)

    assert differing(tried.world, "c/out") != []


def test_explanation_without_the_past_differs(
    history: Callable[[str], History], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = EDITS["the lambda, over state"]
    tried = history(before)
    tried.add(40)
    tried.edit(after)
    tried.add(20)
    assert differing(tried.world, "c/out") == []
    monkeypatch.setattr(tried.world.store, "past", lambda _: [])

    assert differing(tried.world, "c/out") != []


TABLE_READER = """
collections:
  sql/public/o:
    key: [/id]
    schema:
      type: object
      required: [id]
      properties: {id: {type: integer}, n: {type: integer}, _meta: {type: object, properties: {op: {type: string}}}}
  c/out:
    key: [/n]
    schema:
      type: object
      required: [n]
      reduce: {strategy: merge}
      properties: {n: {type: integer}, rows: {type: integer, reduce: {strategy: sum}}}
    derive:
      using: {sqlite: {}}
      transforms:
        - name: a
          source: sql/public/o
          shuffle: any
          lambda: SELECT $n, iif($_meta$op IS 'd', -1, 1) AS rows;
"""
COLUMNS = (TableColumn("id", "bigint", nullable=False), TableColumn("n", "bigint"))


def test_explanation_of_a_table_has_its_deletions(history: Callable[[str], History]) -> None:
    world = history(TABLE_READER).world
    table = world.store.tables.create("sql/public/o", COLUMNS, key=["id"])
    for changes in ([((i, i % 3), 1) for i in range(9)], [((0, 0), -1), ((1, 1), -1), ((1, 2), 1)]):
        world.wall += SECOND
        world.store.tables.append(world.store.timeline.assign(1), {table.id: TableRows(table).changes(changes)})
        world.wall += 3 * SECOND
        advance(world)

    assert sum(json.loads(row[3])["rows"] for row in world.rows("c/out")) == 8
    assert_explained(world)


MODULE = """
import { Document, IDerivation, SourceFromIn } from 'flow/c/out.ts';
type State = { seen?: Record<string, number> };
export class Derivation extends IDerivation {
    seen: Map<string, number>;
    touched = new Map<string, number>();
    constructor(open: { state: State }) { super(open); this.seen = new Map(Object.entries(open.state.seen ?? {})); }
    fromIn(read: { doc: SourceFromIn }): Document[] {
        const n = (this.seen.get(read.doc.who) ?? 0) + read.doc.n;
        this.seen.set(read.doc.who, n);
        this.touched.set(read.doc.who, n);
        return [];
    }
    override flush(): Document[] {
        const all = [...this.touched].map(([who, n]) => ({ who, n }));
        this.touched.clear();
        return all;
    }
    override startCommit() { return { state: { updated: { seen: Object.fromEntries(this.seen) }, mergePatch: true } }; }
    override reset() { this.seen.clear(); this.touched.clear(); }
}
"""
FLUSHED = catalog(
    "who",
    "who: {type: string}, n: {type: number}",
    "{typescript: {module: m.ts}}",
    f"        - {{name: fromIn, source: c/in, shuffle: {BY_WHO}}}\n",
)


@pytest.mark.deno
def test_explanation_of_an_edited_module_has_the_ends_of_ticks(
    history: Callable[[str], History], tmp_path: Path, empty_pool: None
) -> None:
    (tmp_path / "m.ts").write_text(MODULE)
    tried = history(FLUSHED)
    tried.add(30, 2)
    (tmp_path / "m.ts").write_text(MODULE.replace("({ who, n })", "({ who, n: -n })"))
    tried.edit(FLUSHED)
    tried.add(20, 2)

    assert {json.loads(row[3])["n"] > 0 for row in tried.world.rows("c/out")} == {True, False}
    assert_explained(tried.world)
