"""Edits of transforms: each gives what a fresh folder gives, or holds from now on, or waits until it is accepted.

Each document is published with a 1 under its own key, and sums tell how many times it was counted.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest
from conftest import World, examples, write_catalog
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from derive.catalog import load
from derive.engine.derivation import place_of
from derive.engine.edits import fingerprints_of
from derive.engine.executor import InProcessExecutor
from derive.engine.rereading import find_rereadings
from derive.engine.reset import reset
from derive.engine.task_reconciler import open_changing_run
from derive.errors import FlowError, UnacceptedError
from derive.protocol.specs import DerivationSpec
from derive.relations.table_rows import TableRows
from derive.storage.metadata.definitions import Definitions
from derive.storage.metadata.descriptions import Edit, TaskState
from derive.storage.table_types import TableColumn

BASE, SECOND = 1_700_000_000_000_000, 1_000_000

HEAD = """
collections:
  r/x:
    schema: &schema {type: object, required: [id], properties: {id: {type: integer}, p: {type: string}}}
    key: [/id]
    projections: {p: {location: /p, partition: true}}
  r/y: {schema: *schema, key: [/id], projections: {p: {location: /p, partition: true}}}
  r/empty: {schema: *schema, key: [/id]}
  r/sums:
    schema:
      type: object
      required: [k]
      reduce: {strategy: merge}
      properties: {k: {type: string}, n: {type: integer, reduce: {strategy: REDUCTION}}EXTRA}
    key: [/k]
    derive:
      using: {sqlite: {}}
      shards: {maxTxnDuration: TICK}
      transforms:
"""
BESIDE = """
  r/beside:
    schema: *schema
    key: [/id]
    derive: {using: {sqlite: {}}, transforms: [{name: all, source: r/x, shuffle: any, lambda: "SELECT $id"}]}
"""
LAMBDA = "SELECT '{source}' || $id AS k, {n} AS n"


@dataclass(frozen=True)
class Transform:
    """A transform of the derivation."""

    name: str
    source: str
    n: int = 1
    more: str = ""

    def text(self) -> str:
        of = f"{{name: r/{self.source}}}" if "partitions" not in self.more else ""
        sql = LAMBDA.format(source=self.source, n=self.n)
        more = self.more or "backfill: 0"
        source = f"source: {of}, " if of else ""
        return f'        - {{name: {self.name}, {source}shuffle: any, {more}, lambda: "{sql}"}}\n'


def catalog_text(*transforms: Transform, reduction: str = "sum", tick: str = "1s", extra: str = "") -> str:
    head = HEAD.replace("REDUCTION", reduction).replace("TICK", tick).replace("EXTRA", extra)
    return head + "".join(transform.text() for transform in transforms) + BESIDE


FROM_X, FROM_Y = Transform("fromX", "x"), Transform("fromY", "y")
BEFORE = catalog_text(FROM_X, FROM_Y)


def world_of(folder: Path, text: str) -> World:
    return World(folder / "data", load(write_catalog(folder, text)), wall=BASE)


def ingest(world: World, begin: int, end: int) -> None:
    """Documents of both sources, and time enough for them."""
    for source in ("x", "y"):
        documents = [{"id": n, "p": "even" if n % 2 == 0 else "odd"} for n in range(begin, end)]
        world.ingest(f"r/{source}", documents, clock=None)
    world.wall += 10 * SECOND


def run(world: World, *, accepted: Sequence[str] = ()) -> FlowError | None:
    """Run everything; returns the error of the derivation, the other task has none."""
    at_work, _ = open_changing_run(world.catalog, world.store, InProcessExecutor(), shards=1, accepted=accepted)
    with closing(at_work):
        for _ in range(3):
            world.wall += 3 * SECOND
            at_work.step()
        assert at_work.tasks["r/beside"].error is None
        return at_work.tasks["r/sums"].error


def counts(world: World) -> Counter[str]:
    """How many times each document was counted."""
    counted: Counter[str] = Counter()
    for *_, text in world.rows("r/sums"):
        document = orjson.loads(text)
        counted[document["k"]] += document["n"]
    return counted


def once(*sources: str, end: int, times: int = 1) -> Counter[str]:
    return Counter({f"{source}{n}": times for source in sources for n in range(end)})


def edits(world: World) -> Sequence[Edit]:
    state = world.task("r/sums")
    return state.edits


AGAIN = Transform("fromX", "x", more="backfill: 1")
RENAMED = Transform("ofX", "x")
GOES_ON = [
    pytest.param(catalog_text(FROM_X, FROM_Y, extra=", m: {type: integer}"), 1, id="schema of what is derived"),
    pytest.param(catalog_text(FROM_X, FROM_Y, reduction="maximize"), 1, id="reduction of what is derived"),
    pytest.param(catalog_text(FROM_X, FROM_Y, tick="2s"), 1, id="ticks"),
    pytest.param(BEFORE.replace("required: [id], ", ""), 1, id="schema of a source"),
    pytest.param(catalog_text(FROM_Y, FROM_X), 1, id="order"),
    pytest.param(
        BEFORE.replace(
            "name: fromX, source: {name: r/x}, shuffle: any", "name: fromX, source: {name: r/x}, shuffle: {key: [/id]}"
        ),
        1,
        id="shuffle",
    ),
    pytest.param(BEFORE.replace("backfill: 0", "readDelay: 2s"), 1, id="delay"),
    pytest.param(BEFORE.replace("backfill: 0", "priority: 3"), 1, id="priority"),
    pytest.param(
        BEFORE.replace("{name: r/x}", "{name: r/x, partitions: {include: {p: [odd, even]}}}"), 1, id="selector"
    ),
    pytest.param(BEFORE.replace("{name: r/x}", "{name: r/x, notBefore: 2020-01-01T00:00:00Z}"), 1, id="notBefore"),
    pytest.param(catalog_text(Transform("ofX", "x", more="formerly: fromX"), FROM_Y), 1, id="renamed, formerly"),
    pytest.param(catalog_text(FROM_X, FROM_Y, Transform("none", "empty")), 1, id="new source"),
    pytest.param(catalog_text(FROM_X, FROM_Y, Transform("more", "x")), 2, id="another transform over an old source"),
    pytest.param(
        catalog_text(
            Transform("ofX", "x", more="formerly: ''"), Transform("none", "empty", more="formerly: ''"), FROM_Y
        ),
        2,
        id="new transform in place of an old one",
    ),
    pytest.param(
        catalog_text(FROM_X, Transform("more", "x", more="formerly: ''"), FROM_Y).replace("1 AS n", "1 + 0 AS n", 1),
        2,
        id="new transform beside an edited one",
    ),
    pytest.param(catalog_text(AGAIN, FROM_Y), 2, id="backfill is raised"),
    pytest.param(catalog_text(Transform("fromX", "x", more="backfill: 7"), FROM_Y), 2, id="backfill is raised by more"),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("after", "times"), GOES_ON)
def test_edit_that_reads_no_source_again_does_not_wait(after: str, times: int, tmp_path: Path) -> None:
    """Documents of `x` are counted as many times as somebody asked for; later ones by each transform that reads them."""
    world = world_of(tmp_path, BEFORE)
    ingest(world, 0, 4)
    assert run(world) is None
    world.catalog = load(write_catalog(tmp_path, after))
    ingest(world, 4, 6)
    assert run(world) is None
    expected = once("y", end=6) + once("x", end=4, times=times)
    later = 1 + ("name: more" in after)
    assert counts(world) == expected + Counter({"x4": later, "x5": later})
    assert run(world) is None
    assert counts(world) == expected + Counter({"x4": later, "x5": later})


WAITS = [
    pytest.param(
        catalog_text(RENAMED, FROM_Y),
        "transform 'fromX' was removed, and 'ofX' reads its source 'r/x': 'ofX' would read 4 documents of 'r/x' (from"
        " 2023-11-14T22:13:20.000000Z on) again and add the results to those published before",
        "to continue where 'fromX' stopped: write 'formerly: fromX' at 'ofX'; to undo the edit: rename 'ofX' to 'fromX'",
        once("x", end=4),
        id="renamed",
    ),
    pytest.param(
        catalog_text(Transform("ofX", "x", n=2), FROM_Y),
        "transform 'fromX' was removed, and 'ofX' reads its source 'r/x'",
        "to continue where 'fromX' stopped",
        once("x", end=4, times=2) + once("x", end=6) - once("x", end=4),
        id="renamed, and its lambda edited",
    ),
    pytest.param(
        catalog_text(Transform("ofX", "x", more="backfill: 3"), FROM_Y),
        "transform 'fromX' was removed",
        "to continue where 'fromX' stopped",
        once("x", end=4),
        id="renamed, and backfill raised",
    ),
    pytest.param(
        catalog_text(RENAMED, Transform("ofY", "y")),
        "4 documents of 'r/y'",
        "to continue where 'fromX' stopped: write 'formerly: fromX' at 'ofX'; to undo the edit: rename 'ofX' to 'fromX';"
        " to continue where 'fromY' stopped",
        once("x", "y", end=4),
        id="both are renamed",
    ),
    pytest.param(
        catalog_text(Transform("ofX", "x", more="formerly: fromX"), Transform("ofY", "y")),
        "transform 'fromY' was removed, and 'ofY' reads its source 'r/y'",
        "to continue where 'fromY' stopped: write 'formerly: fromY' at 'ofY'; to undo the edit: rename 'ofY' to 'fromY'",
        once("y", end=4),
        id="renamed, beside one that is renamed with formerly",
    ),
    pytest.param(
        catalog_text(Transform("fromX", "y"), Transform("fromY", "x")),
        "'fromX' reads 'r/y' in place of 'r/x', whose results stay: 'fromX' would read all documents of 'r/y' from"
        " the start and add the results to those published before",
        "to undo the edit: let 'fromX' read 'r/x' again",
        once("x", "y", end=4),
        id="names are swapped",
    ),
    pytest.param(
        catalog_text(Transform("ofX", "x", more="source: {name: r/x, partitions: {include: {p: [odd]}}}"), FROM_Y),
        "2 documents of 'r/x'",
        "to continue where 'fromX' stopped",
        Counter({"x1": 1, "x3": 1, "x4": -1}),
        id="renamed, and selected",
    ),
    pytest.param(
        catalog_text(FROM_X, Transform("fromX2", "x"), Transform("ofY", "y")),
        "4 documents of 'r/y'",
        "to continue where 'fromY' stopped",
        once("x", end=6) + once("y", end=4),
        id="renamed, beside a new one",
    ),
    pytest.param(
        catalog_text(Transform("fromX", "x", n=3), RENAMED, FROM_Y),
        "'ofX' has the former lambda of 'fromX', whose results stay: 'ofX' would read 4 documents of 'r/x'",
        "to continue where 'fromX' stopped: give 'ofX' the name 'fromX', and the present 'fromX' another name",
        once("x", end=4) + Counter({"x4": 3, "x5": 3}),
        id="renamed, and the name given to a new one",
    ),
    pytest.param(
        catalog_text(Transform("fromX", "x", n=3), Transform("ofX", "x", n=2), FROM_Y),
        "the lambda of 'fromX' was edited, and 'ofX' reads the source of 'fromX', 'r/x': it may be the former 'fromX':"
        " 'ofX' would read 4 documents of 'r/x'",
        "to add 'ofX' as a new transform: write \"formerly: ''\" at 'ofX'; to continue where 'fromX' stopped: give",
        once("x", end=4, times=2) + Counter({"x4": 4, "x5": 4}),
        id="renamed and edited, and the name given to a new one",
    ),
    pytest.param(
        catalog_text(FROM_X, Transform("more", "x", more="formerly: fromZ"), FROM_Y),
        "'more' has the former name 'fromZ', which this data folder does not know, and 'fromX' reads the same source"
        " 'r/x': 'more' would read 4 documents of 'r/x'",
        "to add 'more' as a new transform: write \"formerly: ''\" at 'more'; to continue a former transform: write",
        once("x", end=6),
        id="formerly is unknown",
    ),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("after", "message", "hint", "doubled"), WAITS)
def test_edit_that_reads_a_source_again_waits_until_it_is_undone_or_accepted(
    after: str, message: str, hint: str, doubled: Counter[str], tmp_path: Path
) -> None:
    """An edit that is undone never was; an accepted edit does what it said; after a reset all is as in a fresh folder."""
    world = world_of(tmp_path, BEFORE)
    ingest(world, 0, 4)
    assert run(world) is None
    before = counts(world)
    assert before == once("x", "y", end=4)
    edited = load(write_catalog(tmp_path, after))
    world.catalog = edited
    ingest(world, 4, 6)
    for _ in range(2):
        error = run(world)
        assert isinstance(error, UnacceptedError)
        assert message in error.message
        assert error.hint is not None
        assert error.hint.startswith(hint)
        assert error.hint.endswith(
            "; to accept the edit: flowctl run --accept r/sums; to start over: flowctl reset --task r/sums"
        )
        assert counts(world) == before
        assert edits(world) == ()
    shutil.copytree(world.root, tmp_path / "undone")
    undone = World(tmp_path / "undone", load(write_catalog(tmp_path, BEFORE)), wall=world.wall)
    assert run(undone) is None
    assert counts(undone) == once("x", "y", end=6)
    assert edits(undone) == ()

    assert run(world, accepted=["r/sums"]) is None
    assert len(edits(world)) > 0
    assert edits(world)[-1].message.endswith("as was accepted")
    total = once("x", "y", end=6)
    total.update(doubled)
    assert counts(world) == +total
    assert run(world) is None
    assert counts(world) == +total
    reset(edited, world.store, ["r/sums"])
    assert run(world) is None
    assert edits(world) == ()
    fresh = World(tmp_path / "fresh", edited, wall=BASE)
    ingest(fresh, 0, 6)
    assert run(fresh) is None
    assert counts(world) == counts(fresh)


TYPESCRIPT = """
collections:
  r/x: {schema: &schema {type: object, required: [id], properties: {id: {type: integer}}}, key: [/id]}
  r/y: {schema: *schema, key: [/id]}
  r/sums: {schema: *schema, key: [/id], derive: {using: {typescript: {module: sums.ts}}, transforms: [TRANSFORMS]}}
"""


def typescript(folder: Path, module: str, *transforms: str) -> DerivationSpec:
    (folder / "sums.ts").write_text(f"export class Derivation {{ {module} }}")
    return load(write_catalog(folder, TYPESCRIPT.replace("TRANSFORMS", ", ".join(transforms)))).derivations["r/sums"]


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        (["{name: b, source: r/x, shuffle: any}"], "transform 'a' was removed, and 'b' reads its source 'r/x'"),
        (
            ["{name: a, source: r/x, shuffle: any}", "{name: b, source: r/x, shuffle: any}"],
            "the module was edited, and 'b' reads the source of 'a', 'r/x': it may be the former 'a'",
        ),
        (["{name: a, source: r/x, shuffle: any}", "{name: b, source: r/y, shuffle: any}"], None),
        (["{name: a, source: r/x, shuffle: any}", "{name: b, source: r/x, shuffle: any, formerly: ''}"], None),
        (["{name: a, source: r/x, shuffle: any}"], None),
    ],
)
def test_new_transform_of_an_edited_module_waits(transforms: list[str], message: str | None, tmp_path: Path) -> None:
    before = typescript(tmp_path, "a() { return []; }", "{name: a, source: r/x, shuffle: any}")
    world = World(tmp_path / "data", load(str(tmp_path / "flow.yaml")), wall=BASE)
    world.ingest("r/x", [{"id": 1}, {"id": 2}], clock=None)
    world.wall += 10 * SECOND
    (a,) = before.transforms
    state = TaskState(
        "r/sums",
        1,
        {"a": world.wall},
        {},
        transactions=1,
        places={"a": place_of(before, a)},
        fingerprints=fingerprints_of(before),
    )
    edits = find_rereadings(world.store, typescript(tmp_path, "a() {} b() {}", *transforms), state)
    assert [edit.message.partition(": 'b' would read 2 documents")[0] for edit in edits] == [message] * bool(message)


def test_lowered_backfill_waits_if_documents_would_be_read_again(tmp_path: Path) -> None:
    world = world_of(tmp_path, BEFORE)
    ingest(world, 0, 2)
    assert run(world) is None
    raised = load(write_catalog(tmp_path, catalog_text(AGAIN, FROM_Y)))
    world.catalog = raised
    ingest(world, 2, 4)
    assert run(world) is None
    world.catalog = load(write_catalog(tmp_path, BEFORE))
    error = run(world)
    assert isinstance(error, UnacceptedError)
    assert "the 'backfill' of 'fromX' was 1 before the edit: 'fromX' would read 2 documents of 'r/x'" in error.message
    assert error.hint is not None
    assert error.hint.startswith("to read 'r/x' again: raise 'backfill' above 1")
    world.catalog = raised
    assert run(world) is None
    assert counts(world) == once("x", "y", end=4) + once("x", end=2)


def test_acceptance_is_stored_and_applies_to_one_edit(tmp_path: Path) -> None:
    world = world_of(tmp_path, BEFORE)
    ingest(world, 0, 2)
    assert run(world) is None
    world.catalog = load(write_catalog(tmp_path, catalog_text(RENAMED, FROM_Y)))
    opened, _ = open_changing_run(world.catalog, world.store, InProcessExecutor(), shards=1, accepted=["r/sums"])
    opened.close()  # before it has done anything
    assert run(world) is None
    assert counts(world) == once("x", "y", end=2) + once("x", end=2)
    world.catalog = load(write_catalog(tmp_path, catalog_text(Transform("thirdX", "x"), FROM_Y)))
    assert isinstance(run(world), UnacceptedError)


def test_an_acceptance_is_not_that_of_another_edit(tmp_path: Path) -> None:
    world = world_of(tmp_path, BEFORE)
    ingest(world, 0, 2)
    assert run(world) is None
    world.catalog = load(write_catalog(tmp_path, catalog_text(RENAMED, FROM_Y)))
    opened, _ = open_changing_run(world.catalog, world.store, InProcessExecutor(), shards=1, accepted=["r/sums"])
    opened.close()
    world.catalog = load(write_catalog(tmp_path, catalog_text(FROM_X, Transform("ofY", "y"))))
    assert isinstance(run(world), UnacceptedError)
    world.catalog = load(write_catalog(tmp_path, BEFORE))
    assert run(world) is None
    assert counts(world) == once("x", "y", end=2)


# Laws


@dataclass
class Step:
    """An edit: for each source the name of the one transform that reads it; None for none.

    Attributes:
        names: of the transforms, by source.
        formerly: whether transforms say what the last transform of their source was called.
        documents: how many each source is given then.
    """

    names: dict[str, str | None]
    formerly: bool
    documents: int


steps = st.builds(
    Step,
    names=st.fixed_dictionaries({name: st.sampled_from(["a", "b", "c", None]) for name in ("x", "y")}).filter(
        lambda names: names["x"] != names["y"]
    ),
    formerly=st.booleans(),
    documents=st.integers(0, 2),
)


@dataclass
class History:
    """A folder, and what its catalog has been."""

    world: World
    folder: Path
    last: dict[str, str] = field(default_factory=dict)
    documents: int = 0

    def play(self, step: Step) -> None:
        transforms = []
        said: set[str] = set()
        for source, name in step.names.items():
            if name is None:
                continue
            former = self.last.get(source, name)
            is_said = step.formerly and former not in {*step.names.values(), *said}  # else `check` refuses it
            said |= {former} if is_said else set()
            transforms.append(Transform(name, source, more=f"formerly: {former}" if is_said else ""))
        self.world.catalog = load(write_catalog(self.folder, catalog_text(*transforms)))
        ingest(self.world, self.documents, self.documents + step.documents)
        self.documents += step.documents
        error = run(self.world)
        assert error is None or isinstance(error, UnacceptedError)
        if error is None:
            self.last |= {source: name for source, name in step.names.items() if name is not None}
        assert all(count == 1 for count in counts(self.world).values()), (step, counts(self.world))


@settings(max_examples=examples(40, 6), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(steps, min_size=2, max_size=6))
@example(
    history=[
        Step({"x": "a", "y": None}, False, 1),
        Step({"x": None, "y": "a"}, False, 0),
        Step({"x": "b", "y": "a"}, False, 1),
    ]
)
def test_edits_count_no_document_twice_with_one_transform_per_source(history: list[Step]) -> None:
    """No name that transforms are given, take from one another or have again makes a document count twice."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        played = History(world_of(folder, BEFORE), folder)
        try:
            for step in history:
                played.play(step)
        finally:
            played.world.store.close()


@pytest.mark.parametrize("is_formerly", [False, True])
def test_transform_renamed_twice_continues(is_formerly: bool, tmp_path: Path) -> None:
    """With `formerly` every document is counted once; without it, it waits both times."""
    world = world_of(tmp_path, BEFORE)
    ingest(world, 0, 2)
    assert run(world) is None
    for count, (name, former) in enumerate([("ofX", "fromX"), ("fromX", "ofX")], start=1):
        world.catalog = load(
            write_catalog(
                tmp_path, catalog_text(Transform(name, "x", more=f"formerly: {former}" if is_formerly else ""), FROM_Y)
            )
        )
        ingest(world, 2 * count, 2 * count + 2)
        error = run(world, accepted=[] if is_formerly else ["r/sums"])
        assert error is None
    doubled = Counter[str]() if is_formerly else once("x", end=2) + Counter({"x2": 1, "x3": 1})
    assert counts(world) == once("x", "y", end=6) + doubled


# Relations behind the name of a source


TABLES = """
collections:
  sql/public/a: {schema: &rows {type: object, required: [id], properties: {id: {type: integer}}}, key: [/id]}
  sql/public/b: {schema: *rows, key: [/id]}
  r/sums:
    schema:
      type: object
      required: [k]
      reduce: {strategy: merge}
      properties: {k: {type: string}, n: {type: integer, reduce: {strategy: sum}}}
    key: [/k]
    derive: {using: {sqlite: {}}, transforms: [TRANSFORM]}
"""


def table_catalog(name: str, source: str, more: str = "backfill: 0", n: int = 1) -> str:
    sql = f"SELECT 't' || $id AS k, {n} AS n"
    text = f'{{name: {name}, source: sql/public/{source}, shuffle: any, {more}, lambda: "{sql}"}}'
    return TABLES.replace("TRANSFORM", text)


FIRST = table_catalog("ofA", "a")
REPLACED_UNDER_EDITS = [
    pytest.param("rename", [], table_catalog("other", "b"), True, id="both renamed"),
    pytest.param("rename", [], table_catalog("other", "b", n=2), True, id="both renamed, lambda edited"),
    pytest.param("rename", [], table_catalog("other", "b", "formerly: ofA"), False, id="both renamed, formerly"),
    pytest.param("rename", [], table_catalog("ofA", "b"), False, id="table renamed"),
    pytest.param(
        "rename",
        [table_catalog("ofA", "a", "disable: true")],
        table_catalog("other", "b"),
        True,
        id="disabled, renamed",
    ),
    pytest.param(
        "rename", [table_catalog("ofA", "a", "backfill: 1")], table_catalog("ofA", "b"), True, id="backfill lowered"
    ),
    pytest.param("recreate", [], table_catalog("other", "a"), True, id="table created again, transform renamed"),
    pytest.param("nothing", [], table_catalog("other", "a"), True, id="transform renamed"),
    pytest.param("nothing", [], FIRST, False, id="nothing"),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("what", "between", "after", "waits"), REPLACED_UNDER_EDITS)
def test_edit_waits_despite_renamed_transforms_and_tables(
    what: str, between: list[str], after: str, waits: bool, tmp_path: Path
) -> None:
    """Names of transforms and of tables change at once: rows are counted as often as somebody asked for, or it waits."""
    world = world_of(tmp_path, FIRST)
    columns = (TableColumn("id", "bigint"),)
    table = world.store.tables.create("sql/public/a", columns)

    def put(key: int) -> None:
        rows = TableRows(table).changes([((key,), 1)])
        world.store.tables.append(world.store.timeline.assign(1), {table.id: rows})
        world.wall += SECOND

    put(1)
    assert run_tables(world) is None
    for text in between:
        world.catalog = load(write_catalog(tmp_path, text))
        put(2)
        assert run_tables(world) is None
    before = counts(world)
    if what == "rename":
        world.define(Definitions(renamed={table.id: "sql/public/b"}))
    elif what == "recreate":
        world.define(Definitions(dropped=(table.id,)))
        table = world.store.tables.create("sql/public/a", columns)
        put(1)
    world.catalog = load(write_catalog(tmp_path, after))
    error = run_tables(world)
    assert isinstance(error, UnacceptedError) is waits, error
    assert counts(world) == before


def run_tables(world: World) -> FlowError | None:
    """Run everything; returns the error of the derivation, None also if it is disabled."""
    at_work, _ = open_changing_run(world.catalog, world.store, InProcessExecutor(), shards=1)
    with closing(at_work):
        for _ in range(3):
            world.wall += 3 * SECOND
            at_work.step()
        return at_work.tasks["r/sums"].error if "r/sums" in at_work.tasks else None
